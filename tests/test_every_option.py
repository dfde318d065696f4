"""Every option changes something: of mechanisms, criterions, agents, recipes and stages, as they are registered.

An option that is new fails here until its other value stands in a table below: nobody can forget that it has to matter.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch import Tensor

from leapformer_fairseq.attention import BLOCKS, CAUSAL, MECHANISMS, Carry, TokenInfo, build

from . import losses
from .attention.cases import OPTIONS as SMALL

HEADS, DIM, COUNT = 2, 8, 24
WIDTH = HEADS * DIM
LENGTHS = (COUNT, 3)  # the second sentence is shorter than what Luna packs it into
BASE = {
    **SMALL,
    **{name: {} for name in ("delta", "gated-delta", "simple-gla", "gla", "hgrn2", "kda")},
    "cosformer": {"cosformer_length": 15},
    "abc-pool": {"abc_slots": 5, "abc_pool_size": "0/5/0"},
    "abc-mlp": {"abc_slots": 5, "abc_activation": "relu"},
    "abc-cluster": {"abc_slots": 4},
    "entmax-bigbird-blocks": {"sparsefinder_block_size": 2, "sparsefinder_blocks": 2},
    "sparsefinder-block1": {"sparsefinder_block_size": 2, "sparsefinder_blocks": 2},
    "sparsefinder-block2": {"sparsefinder_block_size": 2, "sparsefinder_blocks": 2, "sparsefinder_centroids": 5},
    "sparsefinder-quantize": {"sparsefinder_bins": 3},
}
# Other values than those of BASE and the defaults.
OTHER: dict[str, Any] = {
    "bigbird_block_size": 4,
    "bigbird_random_blocks": 1,
    "local_block_size": 4,
    "longformer_window": 4,
    "lsh_hashes": 3,
    "lsh_buckets": 2,
    "lsh_chunk": 4,
    "s4d_state": 4,
    "sinkhorn_block_size": 4,
    "sinkhorn_max_length": 90,
    "skyformer_landmarks": 10,
    "skyformer_ridge": 0.7,
    "sparse_transformer_block_size": 5,
    "sparse_transformer_summary": 1,
    "synthesizer_rank": 2,
    "synthesizer_max_length": 90,
    "abc_slots": "7",
    "abc_empty_slots": "literal",
    "abc_cluster_rounds": 1,
    "abc_untied": True,
    "abc_max_length": 50,
    "normalizer_floor": 30.0,
    "cosformer_length": 30,
    "cosformer_step": 4,
    "cosformer_overrun": "extrapolate",
    "hedgehog_importance": True,
    "leap_factor": 2,
    "leap_per_head": True,
    "leap_input": "raw",
    "performer_features": 8,
    "rfa_features": "8",
    "rfa_floor": 30.0,
    "rope_theta": 10.0,
    "rope_dims": (2, 6, -1),
    "t2r_features": "6",
    "taylor_dim": 5,
    "luna_length": 6,
    "luna_activation": "softplus2",
    "luna_projections": ("raw", "untied", "standard"),
    "luna_pack_heads": 4,
    "luna_positions": "learned",
    "luna_fixed_length": True,
    "luna_packed": ("learned", "non-contextual"),
    "abc_activation": ("exp", "sigmoid"),
    "abc_seed": 5,
    "abc_pool_size": "20",
    "abc_global_every": "7",
    "output_gate": ("swish", "sigmoid", "none"),
    "delta_negative": True,
    "short_conv": (2, 4, 6),
    "gate_init": "published",
    "gate_order": "recency",
    "hgrn_floor": 0.5,
    "entmax_alpha": ("1.2", "learned"),
    "sparse_window": 7,
    "sparse_global": ("first", "both"),
    "sparse_noncausal": True,
    "sparse_seed": 5,
    "bigbird_random": 6,
    "sparsefinder_block_size": 5,
    "sparsefinder_blocks": 1,
    "sparsefinder_dimensions": 2,
    "sparsefinder_threshold": 0.3,
    "sparsefinder_distance": "squared",
    "sparsefinder_centroids": 2,
    "sparsefinder_nearest": 1,
    "sparsefinder_block_score": "released",
    "longformer_globals": 1,
    "sparsefinder_bins": 2,
    "sparsefinder_bin_tokens": 5,
    "sparsefinder_binning": "dynamic",
    "reformer_buckets": 2,
    "routing_centroids": 2,
}
# Seen elsewhere than in what comes out of one block.
ATTRIBUTES = {
    "cosformer_step": lambda mechanism: mechanism.capabilities.length_remedy,  # tests/attention/test_registry.py
    "abc_untied": lambda mechanism: mechanism.tied,
    "sparse_noncausal": lambda mechanism: mechanism.capabilities.missing,
    "abc_max_length": lambda mechanism: mechanism.capabilities.limit_options and mechanism.control_table.shape,
    "sinkhorn_max_length": lambda mechanism: mechanism.sorting.shape,
    "synthesizer_max_length": lambda mechanism: mechanism.longest,
}
# What an option is about, for all mechanisms or for one.
WITH: dict[Any, dict[str, Any]] = {
    "sparse_noncausal": {"sparse_global": "both"},
    "cosformer_step": {"cosformer_length": 0},
    ("sparsefinder-block1", "sparsefinder_centroids"): {"sparsefinder_block_score": "released"},
    ("abc-cluster", "abc_cluster_rounds"): {"abc_slots": 3},
}
NEEDS_A_FILE = {"sparsefinder_file"}  # tests/studies/sparsefinder
PER_BLOCK = ("abc_slots", "rfa_features", "t2r_features", "abc_pool_size", "abc_global_every")


def ready(name: str, block: str, **options: Any) -> Any:
    """A mechanism whose parameters depend on their names and shapes alone, so that no option changes them by chance."""
    torch.manual_seed(0)
    mechanism = build(name, DIM, HEADS, block=block, input_dim=WIDTH, **{**BASE.get(name, {}), **options}).double()
    for title, parameter in mechanism.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(title.encode()))
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return mechanism.eval()


def passed(mechanism: Any, block: str) -> list[Tensor]:
    """What comes out of a block, and the gradients of all parameters."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, HEADS, COUNT, DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    x = k.transpose(1, 2).flatten(2) * 0.7
    keep = torch.arange(COUNT) < torch.tensor(LENGTHS).unsqueeze(1)
    packed = torch.randn(2, getattr(mechanism, "slots", 1), WIDTH, generator=generator).double()
    whole = TokenInfo.whole(COUNT, keep)
    key = TokenInfo(
        whole.positions, whole.lengths, keep, x, Carry(packed) if getattr(mechanism, "given", False) else None
    )
    query = key if block == "encoder-self" else key.without_lengths()  # a decoder does not know how long it will become
    key = query if block == "decoder-self" else key
    q = q / 3  # so that few weights are 0 where they may be
    k = v if mechanism.capabilities.keys_are_values else k
    mask = CAUSAL if block == "decoder-self" else None
    mechanism.zero_grad(set_to_none=True)
    out = mechanism(q, k, v, query=query, key=key, mask=mask)
    out = out * keep[:, None, :, None]  # nobody looks at padding
    if out.requires_grad:
        out.square().sum().backward()
    return [out.detach(), *(x.grad for x in mechanism.parameters() if x.grad is not None)]


def serves(mechanism: Any, block: str) -> bool:
    capabilities = mechanism.capabilities
    return block not in capabilities.unsupported and (block != "decoder-self" or capabilities.incremental)


def differ(one: list[Tensor], other: list[Tensor]) -> bool:
    return [x.shape for x in one] != [x.shape for x in other] or any(
        not torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(one, other, strict=True)
    )


# What has no effect, and why.
NONE = {
    **{
        (name, "sparse_global"): "the first and the last are global anyway"
        for name in ("entmax-bigbird", "entmax-bigbird-blocks", "sparsefinder-block1", "sparsefinder-block2")
    },
    **{
        (name, "sparse_noncausal"): "it needs a file first"
        for name, kind in MECHANISMS.items()
        if kind.capabilities.missing
    },
}
OF_MECHANISMS = [
    pytest.param(name, option.name, id=f"{name}-{option.name}")
    for name, mechanism in sorted(MECHANISMS.items())
    for option in mechanism.options
    if option.name not in NEEDS_A_FILE and (name, option.name) not in NONE
]
DEFAULT_IS_ONE = {"output_gate"}  # "published" is another one in each mechanism


@pytest.mark.parametrize(("name", "option"), OF_MECHANISMS)
def test_every_option_of_a_mechanism_changes_it(name: str, option: str) -> None:
    values = OTHER[option] if isinstance(OTHER[option], tuple) else (OTHER[option],)
    more = WITH.get((name, option), WITH.get(option, {}))
    different = 0
    for value in values:
        changed = {}
        for block in BLOCKS:
            before, after = (ready(name, block, **more, **given) for given in ({}, {option: value}))
            if option in ATTRIBUTES:
                changed[block] = ATTRIBUTES[option](before) != ATTRIBUTES[option](after)
            elif serves(before, block) and serves(after, block):
                changed[block] = differ(passed(before, block), passed(after, block))
        different += any(changed.values())
    assert different >= len(values) - (option in DEFAULT_IS_ONE), f"{option} as {values} changes too little: {changed}"


@pytest.mark.parametrize(
    ("name", "option"), [case for case in OF_MECHANISMS if case.values[1] in PER_BLOCK], ids=lambda value: value
)
def test_an_option_with_a_number_for_each_block_holds_in_that_block(name: str, option: str) -> None:
    alike, other = {"abc_pool_size": (5, 7), "abc_global_every": (2, 9)}.get(option, (5, 7))
    if name.startswith("rfa"):
        alike, other = 4, 8
    for place, block in enumerate(BLOCKS):
        numbers = [str(alike)] * 3
        numbers[place] = str(other)
        for looked_at in BLOCKS:
            if not serves(ready(name, looked_at, **{option: str(alike)}), looked_at):
                continue
            plain, mixed, all_other = (
                passed(ready(name, looked_at, **{option: value}), looked_at)
                for value in (str(alike), "/".join(numbers), str(other))
            )
            assert not differ(mixed, all_other if looked_at == block else plain), (block, looked_at)


VARIANTS = [
    pytest.param(name, options, id="-".join([name, *(f"{key}={value}" for key, value in options.items())]))
    for name, mechanism in sorted(MECHANISMS.items())
    for options in [
        {},
        *(
            {option.name: value}
            for option in mechanism.options
            for value in (
                OTHER.get(option.name) if isinstance(OTHER.get(option.name), tuple) else [OTHER.get(option.name)]
            )
            if isinstance(option.default, bool) or option.choices or option.name == "entmax_alpha"
        ),
    ]
]
# Parameters that one block of the mechanism does not use, each for a reason.
UNUSED: dict[str, set[str]] = {}


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_every_parameter_of_a_mechanism_matters(name: str, options: dict[str, Any]) -> None:
    """Each one has a gradient, and each head of it."""
    seen = 0
    for block in BLOCKS:
        mechanism = ready(name, block, **options)
        if not serves(mechanism, block):
            continue
        passed(mechanism, block)
        for title, parameter in mechanism.named_parameters():
            seen += 1
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, f"{title} in {block} is not used"
    assert seen or not list(ready(name, "encoder-self", **options).parameters())


# Options by which a parameter is as long as the longest sequence, and how many tokens share one of its places.
TABLES = {"abc_max_length": 1, "synthesizer_max_length": 1, "sinkhorn_max_length": 4}
OF_TABLES = [
    (name, option)
    for name, kind in sorted(MECHANISMS.items())
    for option in TABLES
    if option in {o.name for o in kind.options}
]


def test_every_longest_sequence_is_known_here() -> None:
    known = {
        option.name for kind in MECHANISMS.values() for option in kind.options if option.name.endswith("max_length")
    }
    assert known == TABLES.keys() == {option for _, option in OF_TABLES}


@pytest.mark.parametrize(("name", "option"), OF_TABLES)
def test_every_position_has_a_place_of_its_own_in_a_table(name: str, option: str) -> None:
    """The first ones, up to the length of the longest sentence: no place is skipped, none stands for two positions."""
    more = {"sinkhorn_block_size": TABLES[option]} if name == "sinkhorn" else {}
    seen = 0
    for block in BLOCKS:
        one, longer = (ready(name, block, **more, **{option: length}) for length in (40, 44))
        if not serves(one, block):
            continue
        passed(one, block)
        shapes = {title: parameter.shape for title, parameter in longer.named_parameters()}
        for title, parameter in one.named_parameters():
            for axis in [axis for axis, size in enumerate(parameter.shape) if size != shapes[title][axis]]:
                used = parameter.grad.movedim(axis, 0).flatten(1).ne(0).any(1).nonzero().flatten().tolist()
                assert used == list(range(-(-COUNT // TABLES[option]))), f"{title} in {block}"
                seen += 1
    assert seen


def test_a_learned_alpha_is_that_of_its_head() -> None:
    one, other = (ready("entmax", "encoder-self", entmax_alpha="learned") for _ in range(2))
    other.alpha_logit.data[0] += 1
    (before, *_), (after, *_) = (passed(mechanism, "encoder-self") for mechanism in (one, other))
    assert not torch.allclose(before[:, 0], after[:, 0]) and torch.equal(before[:, 1], after[:, 1])


# --------------------------------------------------------------------------------------------------------- criterions
@pytest.mark.parametrize("name", losses.OURS)
def test_every_option_of_a_criterion_is_known_here(name: str) -> None:
    case = losses.CASES[name]
    left = losses.options(name) - {"teacher"}  # a file
    if "ctc_weight" not in case.other:  # only for models with a head for it
        left -= {"ctc_weight"}
    assert left == set(case.other) and left <= set(case.given)


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, case in losses.CASES.items() for option in case.other]
)
def test_every_option_of_a_criterion_changes_the_loss_or_the_log(name: str, option: str) -> None:
    case = losses.CASES[name]
    torch.manual_seed(0)
    sample, more = case.sample(), (case.more or {}).get(option, {})
    before, after = (
        losses.outcome(name, sample, training=True, **more, **changed) for changed in ({}, {option: case.other[option]})
    )
    assert before != after, option
    again = losses.outcome(name, sample, training=True, **more)
    assert before == again, "nothing else changes them"


@pytest.mark.parametrize("name", ["label_smoothed_cross_entropy_wait_k"])
def test_what_holds_in_training_does_not_change_validation(name: str) -> None:
    torch.manual_seed(0)
    sample = losses.CASES[name].sample()
    plain, weighted = (losses.outcome(name, sample, unheard_weight=weight) for weight in (1.0, 0.0))
    assert plain == weighted
