"""What the attention tests share: mechanisms by name, inputs, padding, and one run with all its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from leapformer_fairseq.attention import (
    CAUSAL,
    Capabilities,
    LinearMechanism,
    Mask,
    Mechanism,
    PrefixMask,
    State,
    TokenInfo,
)
from leapformer_fairseq.attention import MECHANISMS as REGISTERED
from leapformer_fairseq.attention import build as build_registered
from leapformer_fairseq.attention.ops import dispatch
from leapformer_fairseq.attention.recurrent.base import RecurrentMechanism
from leapformer_fairseq.attention.recurrent.convolution import ShortConvolution
from leapformer_fairseq.attention.recurrent.normed import OUTPUT_GATE

from .. import covering

# options that make another mechanism of one: under names of their own they take all tests, too
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}-conv": (name, {"short_conv": taps}) for name, taps in (("simple-gla", 2), ("delta", 4), ("kda", 4))
}
# of an encoder, for tests of self-attention in chunks
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}-encoder": (of, {**options, "block": "encoder-self"}) for name, (of, options) in VARIANTS.items()
}
MECHANISMS = {**REGISTERED, **{name: REGISTERED[of] for name, (of, _) in {**VARIANTS, **ENCODERS}.items()}}
NAMES = sorted({*REGISTERED, *VARIANTS})
# those whose formulas the tests know: not those of a user's folder
OURS = {name for name in NAMES if MECHANISMS[name].__module__.startswith("leapformer_fairseq.")}
RECURRENT = [name for name in NAMES if issubclass(MECHANISMS[name], RecurrentMechanism)]
LINEAR = [name for name in NAMES if issubclass(MECHANISMS[name], LinearMechanism) and name not in RECURRENT]
BOUNDED = [name for name in NAMES if name.startswith("abc-")]
CONSTANT = [name for name in NAMES if MECHANISMS[name].capabilities.constant_state]
# whose output is brought to unit size
NORMED = [name for name in RECURRENT if not MECHANISMS[name].averages]
# whose output gate is as wide as values, which in these tests are not as wide as heads
OUTPUT_GATED = [name for name in (*NORMED, *ENCODERS) if OUTPUT_GATE in MECHANISMS[name].options]
# whose weights of all keys are no average
UNNORMALIZED = [name for name in NAMES if not MECHANISMS[name].capabilities.normalized]
SLOTS = {"abc_slots": 5}
# what a mechanism needs to be built, or to be tested in all blocks
OPTIONS = {
    "cosformer": {"cosformer_length": 50},
    **{name: SLOTS for name in BOUNDED},
    "abc-pool": {"abc_slots": 5, "abc_pool_size": 100},
    "abc-global": {"abc_slots": 5, "abc_global_every": 3},
    "sparsefinder-distance": {"sparsefinder_threshold": 2.5},
    "sparsefinder-kmeans": {"sparsefinder_centroids": 4, "sparsefinder_nearest": 2},
    "entmax-bigbird-blocks": {"sparsefinder_block_size": 3, "sparsefinder_blocks": 2},
    "sparsefinder-block1": {"sparsefinder_block_size": 3, "sparsefinder_blocks": 2},
    "sparsefinder-block2": {"sparsefinder_block_size": 3, "sparsefinder_blocks": 2, "sparsefinder_centroids": 3},
    "entmax-window": {"sparse_window": 5},
    "entmax-longformer": {"longformer_globals": 2},
    "entmax-bigbird": {"bigbird_random": 2},
    "entmax-reformer": {"reformer_buckets": 4},
    "entmax-routing": {"routing_centroids": 3},
    "bigbird": {"bigbird_block_size": 3, "bigbird_random_blocks": 2},
    "local": {"local_block_size": 5},
    "longformer": {"longformer_window": 6},
    "performer": {"performer_features": 12},
    "rfa": {"rfa_features": 12},
    "rfa-gate": {"rfa_features": 12},
    "t2r": {"t2r_features": 12},
    **{name: {"output_gate": "none"} for name in OUTPUT_GATED},
    "reformer": {"lsh_buckets": 4, "lsh_chunk": 5},
    "s4d": {"s4d_state": 6},
    "sinkhorn": {"sinkhorn_block_size": 5, "sinkhorn_max_length": 160},
    "skyformer": {"skyformer_landmarks": 20},
    "sparse-transformer": {"sparse_transformer_block_size": 6, "sparse_transformer_summary": 2},
    "synthesizer": {"synthesizer_rank": 3, "synthesizer_max_length": 160},
}
SIDES = (None, "left", "right")
HEADS, DIM, VALUE_DIM = 2, 8, 5
NO_PAIRS = {"pairs": 0, "pairs_per_token": 0}
TORCH = {"kernels": False}
KEPT = {"kept_numbers": 10**9, "kept_slot_tokens": 10**9}
#: every way to an output: the execution, and bounds that make the dispatch take one way
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "reference": ("reference", {}),
    "loop": ("loop", {}),
    "kernel": ("scan", {}),
    "pairs": ("scan", {"pairs": 10**9, "pairs_per_token": 10**9, **KEPT, **TORCH}),
    "kept": ("scan", {**NO_PAIRS, **KEPT, **TORCH}),
    "again": (
        "scan",
        {
            **NO_PAIRS,
            **TORCH,
            "kept_numbers": 0,
            "kept_slot_tokens": 0,
            "segment_tokens": 64,
            "segment_slot_tokens": 64,
            "least_segment": 1,
            "states_in_turn": 1,  # and what a GPU does otherwise
            "may_synchronise": False,
        },
    ),
}


#: ways in which a kernel may take the place of operations in PyTorch
BY_KERNEL = ("auto", "loop", "kernel")


class Case(NamedTuple):
    """Numbers of queries and keys, and who sees what."""

    queries: int
    keys: int
    mask: Mask

    def __str__(self) -> str:
        if self.mask is None:
            return f"all-{self.queries}x{self.keys}"
        return f"k{self.mask.lagging}r{self.mask.ratio}-{self.queries}x{self.keys}"


CASES = (
    Case(1, 1, CAUSAL),
    Case(37, 37, CAUSAL),
    Case(131, 131, CAUSAL),
    Case(33, 47, None),
    Case(20, 150, PrefixMask(3, 7)),
    Case(70, 90, PrefixMask(2, 3)),  # the keys end before the queries
    Case(4, 100, PrefixMask(1, 3)),  # most keys are never seen
    Case(5, 13, PrefixMask(9, 2)),  # k * ratio > S: every query sees everything
)
PATTERNS = (CAUSAL, None, PrefixMask(2, 2))


def heads(x: Tensor) -> Tensor:
    """(T, B, C) to (B, H, T, D), as a block does with what it has projected."""
    return x.unflatten(-1, (HEADS, -1)).permute(1, 2, 0, 3)


def joined(x: Tensor) -> Tensor:
    """(B, H, T, D) to (T, B, C)."""
    return x.permute(2, 0, 1, 3).flatten(2)


def build(name: str, head_dim: int, num_heads: int, **options: Any) -> Mechanism:
    """A mechanism, one of the VARIANTS or of the ENCODERS."""
    of, more = {**VARIANTS, **ENCODERS}.get(name, (name, {}))
    return fed(build_registered(of, head_dim, num_heads, **{**more, **options}))


class Fed:
    """A mechanism that finds inputs where a test gives none: the keys, or the queries, of all heads.

    As if the projections of the block were the identity, so that most tests need not know who reads inputs.
    """

    def forward(self, q, k, v, *, query=None, key=None, mask=None, **more):
        return super().forward(q, k, v, **self._of(q, k, query, key, mask), mask=mask, **more)

    def weights(self, q, k, *, query=None, key=None, mask=None):
        return super().weights(q, k, **self._of(q, k, query, key, mask), mask=mask)

    def _of(self, q, k, query, key, mask):
        query, key = self._described(q, k, query, key, mask)
        return {"query": informed(query, q), "key": informed(key, k)}

    def write(self, state, k, v, key):
        return super().write(state, k, v, informed(key, k))

    def write_loop(self, state, k, v, key):
        return super().write_loop(state, k, v, informed(key, k))

    def read(self, state, q, query):
        return super().read(state, q, informed(query, q))

    def scan_(self, state, q, k, v, query, key, mask=None):
        return super().scan_(state, q, k, v, informed(query, q), informed(key, k), mask)

    def loop(self, state, q, k, v, query, key, mask=None):
        return super().loop(state, q, k, v, informed(query, q), informed(key, k), mask)

    def extend(self, state, q, k, v, tokens):
        return super().extend(state, q, k, v, informed(tokens, k))


def fed(mechanism: Mechanism) -> Mechanism:
    """The mechanism, `Fed` if it reads inputs."""
    needs = mechanism.capabilities
    if needs.needs_inputs or needs.needs_query_inputs:
        mechanism.__class__ = _fed_class(type(mechanism))
    return mechanism


@cache
def _fed_class(of: type[Mechanism]) -> type[Mechanism]:
    name = f"Fed{of.__name__}"
    globals()[name] = type(name, (Fed, of), {"__module__": __name__})  # where pickle finds it
    return globals()[name]


def informed(tokens: TokenInfo, x: Tensor) -> TokenInfo:
    """The tokens, if they lack inputs with x (B, H, T, D) of all heads as such."""
    return tokens if tokens.inputs is not None else replace(tokens, inputs=x.transpose(1, 2).flatten(2))


def make(name: str, **options: object) -> Mechanism:
    return fitted(build(name, DIM, HEADS, **{**OPTIONS.get(name, {}), **options})).double()


def fitted(mechanism: Mechanism) -> Mechanism:
    """With a short convolution of values that are, as here, not as wide as heads."""
    old = getattr(mechanism, "convolution", None)
    assert (old is None) == (not getattr(mechanism.chosen, "short_conv", 0))
    if old is not None:
        mechanism.convolution = ShortConvolution(HEADS * (2 * DIM + VALUE_DIM), old.before, old.ahead)
        mechanism.value_dim = None
    return mechanism


def reason(mechanism: Mechanism, mask: Mask) -> str | None:
    """Why it cannot be used as a library with this mask."""
    return mechanism.capabilities.unsupported_reason(None, mask)


@cache
def capabilities(name: str) -> Capabilities:
    """Of a mechanism as `make` builds it."""
    return make(name).capabilities


def serves(name: str, mask: Mask) -> bool:
    """Whether a mechanism is defined for queries that see this much."""
    return capabilities(name).unsupported_reason(None, mask) is None


def serving(mask: Mask, names: Sequence[str] = NAMES, state: bool = False) -> list[str]:
    """The mechanisms that are defined for queries that see this much, or of them those with a state."""
    found = [name for name in names if serves(name, mask)]
    return [name for name in found if MECHANISMS[name].capabilities.incremental] if state else found


def pairs(names: Sequence[str], patterns: Iterable[Any]) -> list[Any]:
    """Every mechanism with every case or pattern that it serves, as parameters of a test."""
    return [
        pytest.param(name, one, id=f"{name}-{one}")
        for name in names
        for one in patterns
        if serves(name, one.mask if isinstance(one, Case) else one)
    ]


def in_turn(names: Sequence[str], patterns: Iterable[Any], ways: Iterable[str] = tuple(WAYS)) -> list[Any]:
    """As `pairs`, and with each the ways to try: those of a mechanism are dealt out to its cases; all with --all."""
    found = []
    for name in names:
        served = pairs([name], patterns)
        for i, one in enumerate(served):
            dealt = (
                tuple(ways) if covering.whole_products else tuple(ways)[(i + len(found)) % len(served) :: len(served)]
            )
            found.append(pytest.param(*one.values, dealt, id=one.id))
    return found


def inputs(queries: int, keys: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """q, k and v."""
    shapes = ((queries, DIM), (keys, DIM), (keys, VALUE_DIM))
    return tuple(torch.randn(batch, HEADS, *shape, dtype=torch.float64).to(dtype) for shape in shapes)


def polished(mechanism: Mechanism, sums: Tensor, q: Tensor) -> Tensor:
    """What a mechanism makes of weighted values: most leave them as they are."""
    return mechanism.polish(sums, q, TokenInfo.whole(q.shape[2])) if mechanism.name in RECURRENT else sums


def padding(count: int, side: str | None, batch: int = 2) -> Tensor | None:
    """A keep mask: the first sequence of the batch is full, the others miss about a third on one side."""
    if side is None:
        return None
    missing = count // 3
    keep = torch.ones(batch, count, dtype=torch.bool)
    keep[1:, slice(0, missing) if side == "left" else slice(count - missing, count)] = False
    return keep


def attend(mechanism: Mechanism, *qkv: Tensor, way: str = "auto", chunk: int | None = None, **call: Any) -> Tensor:
    """The output, by one of the `WAYS`; `chunk` queries of a chunk."""
    execution, bounds = WAYS[way]
    chunks = {} if chunk is None else {"chunk": chunk, "chunk_keys": chunk * getattr(call.get("mask"), "ratio", 1)}
    with dispatch.override(**bounds, **chunks):
        return mechanism(*qkv, execution=execution, **call)


def run(mechanism: Mechanism, qkv: tuple[Tensor, ...], grad: Tensor | None = None, **call: Any) -> list[Tensor]:
    """The output, and with `grad` also the gradients of q, k, v and of the parameters."""
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv)
    mechanism.zero_grad(set_to_none=True)
    out = attend(mechanism, q, k, v, **call)
    if grad is None:
        return [out.detach()]
    with dispatch.override(**WAYS[call.get("way", "auto")][1]):  # "again" computes segments again
        out.backward(grad.to(out.dtype))
    return [out.detach(), *gradients((q, k, v, *mechanism.parameters()))]


def gradients(leaves: Iterable[Tensor]) -> list[Tensor]:
    """Zeros for what an output does not depend on."""
    return [torch.zeros_like(x) if x.grad is None else x.grad.clone() for x in leaves]


def difference(got: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of any tensor, relative to the largest number expected in it (but at least 1).

    NaN is inf: Python's max passes over NaN.
    """
    pairs = [(a.detach(), b.detach()) for a, b in zip(got, expected, strict=True)]
    found = [float((a - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in pairs]
    return max(math.inf if math.isnan(one) else one for one in found)


def empty(mechanism: Mechanism, batch: int, value_dim: int, like: Tensor, mask: Mask = CAUSAL) -> State:
    """The state before the first key, by default to be read causally."""
    return mechanism.init_state(batch, value_dim, like, mask=mask)


def written(mechanism: Mechanism, k: Tensor, v: Tensor, key: TokenInfo) -> State:
    """The state of all keys, to be read by queries that see them all."""
    return mechanism.write(mechanism.init_state(len(k), v.shape[3], k, key), k, v, key)


def scanned(
    mechanism: Mechanism, state: State | None, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo, mask: Mask = CAUSAL
) -> tuple[Tensor, State]:
    """Self-attention of more tokens; without a state, of the first ones."""
    state = mechanism.init_state(len(k), v.shape[3], k, tokens, mask) if state is None else state
    return mechanism.scan(state, q, k, v, tokens, tokens, mask)


def steps(mechanism: Mechanism, qkv: tuple[Tensor, ...], tokens: TokenInfo, prompt: int = 0) -> tuple[Tensor, State]:
    """Causal attention read as generation reads it: a prompt in one piece, then token by token."""
    state: State | None = None
    outputs = []
    count = qkv[0].shape[2]
    for start, stop in pairwise([0, *range(prompt or 1, count + 1)]):
        q, k, v = (x[:, :, start:stop] for x in qkv)
        out, state = scanned(mechanism, state, q, k, v, tokens.narrow(start, stop))
        outputs.append(out)
    return torch.cat(outputs, 2), state
