"""Hundreds of drawn cases, with --all thousands: every way of a mechanism is the same function as its definition.

A case is a mechanism with its options, a mask, lengths, padding (which may hold NaN), a layout in memory, a precision,
and what wants a gradient. Outputs and gradients of all `WAYS` are compared with the definition in float64, as are
scans that go on from a state, and fused steps. In float64 the bound is rounding; in lower precision it is
FlashAttention's rule: the error against float64 is at most twice that of the plain reference in the same precision,
and a small floor.

`TestTheFuzzerItself` injects bugs, each of which must be found. Draws are the same in every run of the same tests
(`derandomize`; Hypothesis also draws constants out of the modules that are loaded).
"""

from __future__ import annotations

import copy
import os
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leapformer_fairseq.attention import (
    CAUSAL,
    Carry,
    ChunkMask,
    Mechanism,
    PrefixMask,
    Projections,
    TokenInfo,
    step_of,
)
from leapformer_fairseq.attention.bidirectional.base import Bidirectional
from leapformer_fairseq.attention.decoding.linear import LinearStep
from leapformer_fairseq.attention.linear import base as linear_base
from leapformer_fairseq.attention.ops import cpu as native
from leapformer_fairseq.attention.ops import dispatch, linear, segments
from leapformer_fairseq.attention.sparse.fitted import Fitted
from leapformer_fairseq.attention.sparse.pattern import Pattern

from .. import covering
from .cases import (
    DIM,
    ENCODERS,
    HEADS,
    LINEAR,
    MECHANISMS,
    NAMES,
    NORMED,
    OUTPUT_GATED,
    VALUE_DIM,
    WAYS,
    build,
    fitted,
    heads,
    joined,
)
from .cases import VARIANTS as CONVOLVED

LONGEST, INPUT_DIM, WIDTH, PACKED = 70, 11, HEADS * DIM, 5
SLOTS = {"abc_slots": 5}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {}),
    ("relu", {}),
    ("relu", {"normalizer_floor": 0.1}),
    ("elu", {}),
    ("cosformer", {}),
    ("cosformer", {"cosformer_length": 80, "cosformer_overrun": "extrapolate"}),
    ("cosformer", {"cosformer_length": 20}),  # overrun
    ("leap", {}),
    ("leap", {"leap_factor": DIM, "leap_input": "raw"}),
    ("leap", {"leap_per_head": True, "leap_factor": 1}),
    ("leap", {"leap_per_head": True, "leap_factor": DIM}),
    ("rope", {}),
    ("rope", {"rope_dims": DIM, "rope_theta": 100.0}),
    ("rope", {"rope_dims": 2}),
    ("abc-mlp", SLOTS),
    ("abc-mlp", {"abc_slots": 1}),
    ("abc-mlp", {"abc_slots": 5, "input_dim": INPUT_DIM}),
    ("abc-mlp", {"abc_slots": 7, "abc_activation": "sigmoid", "input_dim": INPUT_DIM, "abc_untied": True}),
    ("abc-mlp", {"abc_slots": 5, "abc_activation": "relu"}),
    ("abc-mlp", {"abc_slots": 5, "abc_activation": "relu", "abc_empty_slots": "literal"}),
    ("abc-linformer", {"abc_slots": 5, "abc_max_length": 80}),
    ("abc-random", SLOTS),
    ("abc-random", {"abc_slots": 40, "abc_seed": 3}),
    ("abc-random", {"abc_slots": 5, "abc_empty_slots": "literal"}),
    ("abc-pool", SLOTS),
    ("abc-pool", {"abc_slots": 5, "abc_pool_size": 15}),
    ("abc-pool", {"abc_slots": 80, "abc_pool_size": 1, "abc_empty_slots": "literal"}),
    ("abc-global", SLOTS),
    ("abc-global", {"abc_slots": 5, "abc_global_every": 3}),
    ("abc-cluster", SLOTS),
    ("abc-cluster", {"abc_slots": 3, "abc_empty_slots": "literal", "abc_cluster_rounds": 1}),
    ("abc-window", SLOTS),
    ("abc-window", {"abc_slots": 1}),
    ("abc-window", {"abc_slots": 5, "abc_empty_slots": "literal"}),
    ("abc-dilated", {"abc_slots": 4}),
    ("abc-dilated", {"abc_slots": 4, "abc_empty_slots": "literal"}),
    ("luna", {"luna_length": PACKED}),
    ("luna", {"luna_length": PACKED, "luna_activation": "softplus2", "luna_fixed_length": True}),
    *(
        ("luna", {"luna_length": PACKED, "block": block, "luna_projections": projections, "luna_packed": packed})
        for block in ("encoder-self", "decoder-self", "decoder-cross")
        for projections in ("tied", "raw", "untied", "standard")
        for packed in ("encoder", "learned")
        if (block, packed) != ("encoder-self", "learned")
    ),
]
VARIANTS += [(name, {"sparse_window": 3}) for name in ("entmax-window", "sparsefinder-distance")]
VARIANTS += [
    ("sparsefinder-kmeans", {"sparsefinder_centroids": 4, "sparsefinder_nearest": 2, "sparse_global": "first"}),
    ("sparsefinder-quantize", {"sparsefinder_binning": "dynamic"}),
    ("sparsefinder-block1", {"sparsefinder_block_size": 4, "sparsefinder_blocks": 2}),
    ("sparsefinder-block2", {"sparsefinder_block_size": 5, "sparsefinder_blocks": 1}),
    ("entmax", {"entmax_alpha": "learned"}),
]
VARIANTS += [(name, {"output_gate": "none"}) for name in OUTPUT_GATED]
VARIANTS += [(name, {}) for name in NAMES if name not in {known for known, _ in VARIANTS} or name.startswith("entmax")]
PATTERNS = {i for i, (name, _) in enumerate(VARIANTS) if issubclass(MECHANISMS[name], Pattern)}
# whose queries are the last of the keys' tokens, or all of them
WHOLE = {i for i, (name, _) in enumerate(VARIANTS) if issubclass(MECHANISMS[name], Bidirectional) or name in ENCODERS}
ALIGNED = {
    i
    for i in PATTERNS | WHOLE
    if VARIANTS[i][0] in ENCODERS
    or "decoder-cross" not in MECHANISMS[VARIANTS[i][0]].capabilities.blocks
    or {"sparse_window", "sparse_global"} & VARIANTS[i][1].keys()
}
LAYOUTS = ("contiguous", "time first", "packed", "expanded", "every second")
PADDING = (None, "all real", "left", "right", "one empty")
SIDES = ("q", "k", "v", "inputs", "carry")
FUZZ = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "phases": [Phase.generate, Phase.shrink],
    "suppress_health_check": list(HealthCheck),
}


# -------------------------------------------------------------------------------------------------------------- cases
@dataclass
class Drawn:
    """One case."""

    variant: int
    mask: Any
    queries: int
    keys: int
    batch: int = 2
    padded: str | None = None
    garbage: bool = False
    layouts: tuple[str, ...] = ("contiguous",) * 3
    wanted: frozenset[str] = frozenset(SIDES)
    parameters: int = -1  # bits: which parameters want a gradient
    given: bool = True  # whether inputs are given
    lengths: bool = True
    bounds: dict[str, int] = field(default_factory=dict)
    seed: int = 0

    def __str__(self) -> str:
        return f"{VARIANTS[self.variant]}: {self!r}"

    def mechanism(self, as_wide: bool = False) -> Mechanism:
        """`as_wide`: for values as wide as heads."""
        torch.manual_seed(self.seed)
        name, options = VARIANTS[self.variant]
        mechanism = build(name, DIM, HEADS, **options)
        mechanism = (mechanism if as_wide else fitted(mechanism)).double()
        if name == "luna":
            for parameter in mechanism.parameters():
                nn.init.normal_(parameter, std=0.4)
        for i, parameter in enumerate(mechanism.parameters()):
            parameter.requires_grad_(bool(self.parameters >> i & 1))
        return mechanism.train(not isinstance(mechanism, Fitted))  # what is fitted to a trained model refuses to train

    def stock(self) -> Projections | None:
        """What Luna gets from a block."""
        if "block" not in VARIANTS[self.variant][1]:
            return None
        stock = Projections(*(nn.Linear(WIDTH, WIDTH).double() for _ in range(4)))
        for layer in stock:
            layer.requires_grad_(bool(self.parameters & 1))
        return stock

    def keep(self) -> Tensor | None:
        if self.padded is None:
            return None
        keep = torch.ones(self.batch, self.keys, dtype=torch.bool)
        missing = self.keys // 3
        if self.padded == "left":
            keep[1:, :missing] = False
        elif self.padded == "right":
            keep[1:, self.keys - missing :] = False
        elif self.padded == "one empty":
            keep[-1] = False
        return keep

    @property
    def itself(self) -> bool:
        """Self-attention: queries are the keys' tokens."""
        known = self.mask == CAUSAL or isinstance(self.mask, ChunkMask)
        known = known or (self.mask is None and self.variant in PATTERNS | WHOLE)
        return self.queries == self.keys and known


def masks(mechanism: Mechanism) -> list[str]:
    found = {"all": None, "causal": CAUSAL, "wait-k": PrefixMask(2, 2), "chunks": ChunkMask(2)}
    block = mechanism.block
    if block is not None:
        found = {"decoder-self": {"causal": CAUSAL}, "encoder-self": {"all": None, "chunks": ChunkMask(2)}}.get(
            block, {"all": None}
        )
    return [kind for kind, mask in found.items() if mechanism.capabilities.unsupported_reason(block, mask) is None]


BUILT = [build(name, DIM, HEADS, **options) for name, options in VARIANTS]
STATES = [i for i, mechanism in enumerate(BUILT) if mechanism.capabilities.incremental]
KINDS = {i: masks(mechanism) for i, mechanism in enumerate(BUILT)}
LENGTHS = st.one_of(st.sampled_from([0, 1, 2, 3]), st.integers(1, 20), st.integers(1, LONGEST))


@st.composite
def drawn(draw, kinds=("all", "causal", "wait-k", "chunks"), variants=tuple(KINDS), least=0):
    variant, kind = draw(st.sampled_from([(i, kind) for i in variants for kind in KINDS[i] if kind in kinds]))
    queries, keys = (max(least, draw(LENGTHS)) for _ in range(2))
    if kind == "causal":
        mask = CAUSAL
        linear_or_softmax = VARIANTS[variant][0] in ("softmax", "relu", "elu", "leap", "rope")
        if not linear_or_softmax or draw(st.booleans()):
            keys = max(queries, keys) if draw(st.integers(0, 3)) == 0 else queries
    elif kind == "wait-k":
        mask = PrefixMask(draw(st.integers(1, 9)), draw(st.integers(1, 7)))
    elif kind == "chunks":
        past = draw(st.sampled_from([None, None, 0, 3, 20]))
        mask, keys = ChunkMask(draw(st.integers(1, 9)), draw(st.integers(0, 4)), past), queries
    else:
        mask = None
    if variant in ALIGNED:
        keys = queries
    small = st.sampled_from([1, 2, 3, 5, 16, 64])
    return Drawn(
        variant,
        mask,
        queries,
        keys,
        batch=draw(st.integers(1, 3)),
        padded=draw(st.sampled_from(PADDING)),
        garbage=draw(st.booleans()),
        layouts=tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(3)),
        wanted=draw(st.frozensets(st.sampled_from(SIDES))) if draw(st.booleans()) else frozenset(SIDES),
        parameters=draw(st.integers(0, 2**12 - 1)) if draw(st.booleans()) else -1,
        given=draw(st.booleans()),
        lengths=draw(st.booleans()),
        bounds={
            "chunk": draw(small),
            "chunk_keys": draw(small),
            "segment_tokens": draw(st.sampled_from([1, 20, 64, 300])),
            "least_segment": draw(st.sampled_from([1, 3, 20])),
            "states_in_turn": draw(st.sampled_from([1, 3, 10**9])),
            "window": draw(small),
            "may_synchronise": draw(st.booleans()),
        },
        seed=draw(st.integers(0, 2**20)),
    )


def base(layout: str, batch: int, count: int, width: int) -> Tensor:
    """Random numbers out of which `laid` makes (B, H, T, D)."""
    shape = {
        "time first": (count, batch, HEADS, width),
        "packed": (batch, count, HEADS, 3 * width),
        "expanded": (1, HEADS, count, width),
        "every second": (batch, HEADS, count, 2 * width),
    }
    return torch.randn(shape.get(layout, (batch, HEADS, count, width)), dtype=torch.float64)


def laid(x: Tensor, layout: str, batch: int) -> Tensor:
    if layout == "time first":
        return x.permute(1, 2, 0, 3)
    if layout == "packed":
        return x.transpose(1, 2).chunk(3, -1)[1]
    if layout == "expanded":
        return x.expand(batch, -1, -1, -1)
    return x[..., ::2] if layout == "every second" else x


class Numbers:
    """The tensors of a case in some precision, and what they become."""

    def __init__(self, case: Drawn) -> None:
        self.case, self.mechanism, self.stock = case, case.mechanism(), case.stock()
        torch.manual_seed(case.seed + 1)
        sizes = ((case.queries, DIM), (case.keys, DIM), (case.keys, VALUE_DIM if self.stock is None else DIM))
        self.leaves = {
            side: base(layout, case.batch, *size) for side, layout, size in zip("qkv", case.layouts, sizes, strict=True)
        }
        self.keep = case.keep()
        if case.garbage and self.keep is not None:
            for side, layout in zip("kv", case.layouts[1:], strict=True):
                if layout != "expanded":  # there, an entry's padding is another's token
                    view = laid(self.leaves[side], layout, case.batch)
                    view.masked_fill_(~self.keep[:, None, :, None], float("nan"))
        capabilities, options = self.mechanism.capabilities, VARIANTS[case.variant][1]
        if self.stock is not None or (capabilities.needs_inputs and (case.given or "input_dim" in options)):
            self.leaves["inputs"] = torch.randn(case.batch, case.keys, self.mechanism.input_dim).double()
            if case.garbage and self.keep is not None:
                self.leaves["inputs"].masked_fill_(~self.keep.unsqueeze(-1), float("nan"))
        if capabilities.carry_width:
            self.leaves["carry"] = torch.randn(case.batch, PACKED, WIDTH).double()
        self.grad = torch.randn(case.batch, HEADS, case.queries, sizes[2][1], dtype=torch.float64)

    def rounded(self, dtype: torch.dtype) -> None:
        """Every number becomes one of this precision.

        Where a normalizer, or what is brought to unit size, may be almost 0 queries and keys become positive: dividing
        by it would make any error large.
        """
        name, options = VARIANTS[self.case.variant]
        if name in ("relu", "cosformer", "leap", "gated-relu", "gated-leap", *NORMED, *ENCODERS):
            self.leaves |= {side: self.leaves[side].abs() + 0.1 for side in "qk"}
        if name in {**CONVOLVED, **ENCODERS}:
            self.mechanism.convolution.weight.data.abs_()
        if options.get("abc_activation") == "relu":  # divided by the sum of the control
            self.mechanism.control_weight.data.abs_()
            self.leaves |= {side: self.leaves[side].abs() + 0.1 for side in ("k", "inputs") if side in self.leaves}
        self.leaves = {side: x.to(dtype).double() for side, x in self.leaves.items()}
        self.grad = self.grad.to(dtype).double()
        self.mechanism.to(dtype).double()
        for layer in self.stock or ():
            layer.to(dtype).double()

    def tokens(self, leaves: dict[str, Tensor]) -> tuple[TokenInfo, TokenInfo]:
        case = self.case
        key = TokenInfo.whole(case.keys, self.keep)
        carry = leaves.get("carry")
        key = replace(key, inputs=leaves.get("inputs"), carry=None if carry is None else Carry(carry))
        query = key if case.itself else TokenInfo.whole(case.queries)
        if not case.lengths and (not self.mechanism.capabilities.needs_length or self.mechanism.assumed_length):
            length_free = case.mask is not None or VARIANTS[case.variant][0] not in ("abc-pool", "abc-global")
            if length_free:
                key, query = key.without_lengths(), query.without_lengths()
        return query, key

    def real(self) -> Tensor:
        """1 at outputs that are defined, (B, 1, T, 1): a padded query's are not."""
        case = self.case
        if self.keep is None or not (case.itself or self.aligned()):
            return torch.ones(case.batch, 1, case.queries, 1, dtype=torch.float64)
        return self.keep[:, None, : case.queries, None].double()

    def aligned(self) -> bool:
        """Causal queries of a bounded memory are the first of the keys, also where there are more keys."""
        return self.case.mask == CAUSAL and VARIANTS[self.case.variant][0].startswith(("abc", "luna"))

    def run(self, way: str, dtype: torch.dtype = torch.float64, **bounds: Any) -> dict[str, Tensor]:
        """The output and all gradients, by name."""
        case, mechanism, stock = self.case, self.mechanism, self.stock
        if dtype != torch.float64:
            mechanism, stock = copy.deepcopy(mechanism).to(dtype), copy.deepcopy(stock)
            stock = None if stock is None else Projections(*(layer.to(dtype) for layer in stock))
        if stock is not None:
            mechanism.receive(stock)
        leaves = {side: x.to(dtype).requires_grad_(side in case.wanted) for side, x in self.leaves.items()}
        qkv = (laid(leaves[side], layout, case.batch) for side, layout in zip("qkv", case.layouts, strict=True))
        query, key = self.tokens(leaves)
        trained = dict(mechanism.named_parameters())
        for name, layer in zip(Projections._fields, stock or (), strict=False):
            trained |= {f"{name}.{part}": parameter for part, parameter in layer.named_parameters()}
        wanted = {name: x for name, x in {**leaves, **trained}.items() if x.requires_grad}
        execution, changes = WAYS[way]
        changes = {**case.bounds, **{k: v for k, v in changes.items() if k not in case.bounds}}
        with dispatch.override(**{**changes, **bounds}):
            out = mechanism(*qkv, query=query, key=key, mask=case.mask, execution=execution)
            assert out.dtype == dtype and out.shape == self.grad.shape
            found = {"output": out.detach() * self.real()}
            if out.requires_grad:
                sent = (self.grad * self.real()).to(dtype)
                grads = torch.autograd.grad(out, wanted.values(), sent, allow_unused=True)
                for (name, x), grad in zip(wanted.items(), grads, strict=True):
                    assert grad is None or grad.dtype == x.dtype, name
                    found[name] = torch.zeros_like(x) if grad is None else grad
            else:
                some = case.queries and case.keys  # of nothing, the output hangs on q alone
                unused = {name[0] for name in mechanism.capabilities.unused_projections} if some else set()
                assert not set(wanted) & set("qkv" if some else "q") - unused, "an output without a graph"
        return {name: x.double() for name, x in found.items()}


def apart(got: Tensor, expected: Tensor) -> float:
    """The largest difference; inf where a number is none."""
    if not expected.numel():
        return 0.0
    assert torch.isfinite(expected).all()
    return float((got - expected).abs().nan_to_num(torch.inf, torch.inf).max())


def scale(x: Tensor) -> float:
    return max(1.0, float(x.abs().max())) if x.numel() else 1.0


# ------------------------------------------------------------------------------------------------------------- checks
def check_exactly(case: Drawn) -> None:
    numbers = Numbers(case)
    expected = numbers.run("reference")
    for way in WAYS:
        if way == "reference":
            continue
        got = numbers.run(way)
        for name in set(got) - set(expected):  # what only this way's graph holds has no part in the output
            assert not got[name].any(), f"{way}, {name}: {scale(got[name])}, and the definition has none in {case}"
        for name, x in expected.items():
            one = got.get(name, torch.zeros_like(x))
            assert apart(one, x) < 1e-11 * scale(x), f"{way}, {name}: {apart(one, x)} in {case}"
    check_alone(case, numbers, expected["output"])


def check_alone(case: Drawn, numbers: Numbers, expected: Tensor) -> None:
    """Every sequence by itself, without its padding: the definition knows of padding only what a caller would do."""
    by_columns = isinstance(case.mask, ChunkMask) or not (case.mask is None or case.itself)
    if numbers.keep is None or not case.queries or (by_columns and case.padded == "left"):
        return
    mechanism, leaves = numbers.mechanism, numbers.leaves
    q, k, v = (laid(leaves[x], layout, case.batch) for x, layout in zip("qkv", case.layouts, strict=True))
    query, key = numbers.tokens(leaves)
    for i, keep in enumerate(numbers.keep):
        if not keep.any() or (case.mask == CAUSAL and not case.itself):
            continue
        inputs, carry = (None if x is None else x[i : i + 1] for x in (leaves.get("inputs"), leaves.get("carry")))
        here = TokenInfo.whole(int(keep.sum()))
        here = here.of_length(None) if key.lengths is None else here
        here = replace(here, inputs=None if inputs is None else inputs[:, keep])
        here = replace(here, carry=None if carry is None else Carry(carry))
        columns = keep if case.itself else torch.ones(case.queries, dtype=torch.bool)
        one = here if case.itself else query
        parts = q[i : i + 1, :, columns], k[i : i + 1, :, keep], v[i : i + 1, :, keep]
        out = mechanism(*parts, query=one, key=here, mask=case.mask, execution="reference")
        assert apart(out[0].detach(), expected[i, :, columns]) < 1e-11 * scale(expected), f"alone, {i} in {case}"


def check_in_precision(case: Drawn, dtype: torch.dtype) -> None:
    numbers = Numbers(case)
    numbers.rounded(dtype)
    expected, plain = numbers.run("reference"), numbers.run("reference", dtype)
    unit = torch.finfo(dtype).eps * max(map(scale, expected.values()))
    for way in WAYS:
        got = numbers.run(way, dtype)
        in_segments = WAYS[way][0] == "scan"  # autograd adds their gradients of a parameter in its precision
        for name, x in expected.items():
            rounded = in_segments and name not in {"output", *SIDES}
            floor = unit * (64 if dtype == torch.float32 else 12 if rounded else 1)
            error, allowed = apart(got[name], x), 2 * apart(plain[name], x) + floor
            assert error <= allowed, f"{way} {dtype}, {name}: {error} > {allowed} in {case}"


def check_arriving(case: Drawn, cuts: list[int]) -> None:
    """Scans that go on from a state, here and there forked or reordered, are the whole at once."""
    if case.mask is None and case.variant in ALIGNED:
        return  # tokens of which some were read before cannot see those that come
    numbers = Numbers(replace(case, lengths=case.lengths or case.mask is None))
    mechanism, stock = numbers.mechanism, numbers.stock
    if stock is not None:
        mechanism.receive(stock)
    if case.mask is None and not mechanism.capabilities.append:
        cuts = []
    with torch.no_grad(), dispatch.override(**case.bounds):
        q, k, v = (laid(numbers.leaves[x], layout, case.batch) for x, layout in zip("qkv", case.layouts, strict=True))
        query, key = numbers.tokens(numbers.leaves)
        expected = mechanism(q, k, v, query=query, key=key, mask=case.mask, execution="reference")
        if numbers.keep is not None:  # states are written with what was cleared
            hidden = ~numbers.keep[:, None, :, None]
            k, v, key = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0), key.cleared()
        state = mechanism.init_state(case.batch, v.shape[3], k, key, case.mask)
        outputs = []
        if case.mask is None:
            for start, stop in spans(case.keys, cuts):
                state = mechanism.write(state, k[:, :, start:stop], v[:, :, start:stop], key.narrow(start, stop))
            for start, stop in spans(case.queries, cuts):
                outputs.append(mechanism.read(state, q[:, :, start:stop], query.narrow(start, stop)))
        else:
            unit = case.mask.tokens if isinstance(case.mask, ChunkMask) else 1
            for start, stop in spans(case.queries, [cut * unit for cut in cuts]):
                before = state.fork()
                arguments = q[:, :, start:stop], k[:, :, start:stop], v[:, :, start:stop]
                here = key.narrow(start, stop)
                _, once = mechanism.scan(state, *arguments, here, here, case.mask)
                out, state = mechanism.scan(before, *arguments, here, here, case.mask)
                outputs.append(out)
                for name, x in once.tensors().items():
                    if x.is_floating_point():
                        assert apart(x, state.tensors()[name]) == 0, f"a forked state is no copy: {name} in {case}"
        got, real = torch.cat(outputs, 2), numbers.real()
    assert apart(got * real, expected * real) < 1e-11 * scale(expected), case


def spans(count: int, cuts: list[int]) -> list[tuple[int, int]]:
    """From 0 to `count`, cut where `cuts` say."""
    marks = [0, *sorted({cut for cut in cuts if 0 < cut < count}), count]
    return list(zip(marks, marks[1:], strict=False))


def check_fused_steps(case: Drawn, dtype: torch.dtype, compiled: bool, shared: int, bias: bool) -> None:
    """Self-attention step by step, or cross-attention of which `shared` neighbours read one state."""
    case = replace(case, layouts=("contiguous",) * 3, given=True, garbage=False, padded=None, parameters=0, queries=9)
    cross = case.mask is None
    if cross and case.variant in ALIGNED:
        return
    case = replace(case, keys=max(1, case.keys) if cross else 9)
    torch.manual_seed(case.seed)
    mechanism = case.mechanism(as_wide=True).to(dtype)
    width = mechanism.input_dim
    stock = Projections(*(nn.Linear(width, WIDTH, bias=bias).to(dtype) for _ in range(4)))
    stock = stock._replace(out=nn.Linear(WIDTH, WIDTH, bias=bias).to(dtype))
    mechanism.receive(stock)
    fused = step_of(mechanism, stock._replace(k=None, v=None) if cross else stock)
    if fused is None:
        return
    exact, stock64 = copy.deepcopy(mechanism).double(), Projections(*(copy.deepcopy(x).double() for x in stock))
    exact.receive(stock64)
    shared = shared if cross else 1
    source = torch.randn(case.keys, case.batch, width, dtype=dtype)
    x = torch.randn(case.queries, case.batch * shared, width, dtype=dtype) if cross else source
    packed = torch.randn(case.batch, PACKED, WIDTH, dtype=dtype) if mechanism.capabilities.carry_width else None

    def described(dtype: torch.dtype) -> TokenInfo:
        carry = None if packed is None else Carry(packed.to(dtype))
        key = replace(TokenInfo.whole(case.keys), inputs=source.transpose(0, 1).to(dtype), carry=carry)
        return key if cross else key.without_lengths()

    def kv(projections: Projections, source: Tensor) -> tuple[Tensor, Tensor]:
        v = heads(projections.v(source))
        return v if mechanism.capabilities.keys_are_values else heads(projections.k(source)), v

    with torch.no_grad(), nullcontext() if compiled else native.turned_off():
        # the definition, in float64; the sequences of shared states side by side
        k, v = (y.repeat_interleave(shared, 0) for y in kv(stock64, source.double()))
        key = described(torch.float64)
        key = replace(
            key,
            inputs=key.inputs.repeat_interleave(shared, 0),
            carry=None if key.carry is None else Carry(key.carry.values.repeat_interleave(shared, 0)),
        )
        asked = replace(TokenInfo.whole(case.queries).without_lengths(), inputs=x.transpose(0, 1).double())
        query = asked if cross else key
        if VARIANTS[case.variant][0] == "cosformer" and not exact.assumed_length:
            return
        q = heads(stock64.q(x.double()))
        out = exact(q, k, v, query=query, key=key, mask=case.mask, execution="reference")
        expected = stock64.out(joined(out))

        k, v = kv(stock, source)
        key = described(dtype)
        state = mechanism.init_state(case.batch, v.shape[3], k, key, case.mask)
        if cross:
            state = mechanism.write(state, k, v, key)
        got = torch.stack([fused(x[t], state, t + 1) for t in range(case.queries)])
    tolerance = 1e-11 if dtype == torch.float64 else 1e-4
    assert apart(got.double(), expected) < tolerance * scale(expected), case


# FUZZ_TIMES=4 draws four times as many: for a night, or after work on the core
TIMES = int(os.environ.get("FUZZ_TIMES", 1)) * (5 if covering.whole_products else 1)
EXACT, LOWER, ARRIVING, FUSED = (count * TIMES for count in (200, 80, 80, 80))


@settings(max_examples=EXACT, **FUZZ)
@given(case=drawn())
def test_every_way_is_the_same_function(case):
    check_exactly(case)


@settings(max_examples=LOWER, **FUZZ)
@given(
    case=drawn(least=1, variants=[i for i in KINDS if i not in PATTERNS]),  # an edge may be there or not by rounding
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_errors_in_lower_precision_are_those_of_the_plain_reference(case, dtype):
    check_in_precision(case, dtype)


CUTS = st.lists(st.one_of(st.integers(1, 10), st.integers(1, LONGEST)), max_size=6)


@settings(max_examples=ARRIVING, **FUZZ)
@given(case=drawn(kinds=("all", "causal", "chunks"), variants=STATES, least=1), cuts=CUTS, one_by_one=st.booleans())
def test_scans_that_go_on_are_the_whole_at_once(case, cuts, one_by_one):
    if case.mask is not None:
        case = replace(case, keys=case.queries)
    if isinstance(case.mask, ChunkMask) and case.padded == "left":
        case = replace(case, padded="right")  # a chunk of nothing is read as it comes, by softmax
    check_arriving(case, list(range(LONGEST)) if one_by_one else cuts)


@settings(max_examples=FUSED, **FUZZ)
@given(
    case=drawn(kinds=("all", "causal"), variants=STATES, least=1),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    compiled=st.booleans(),
    shared=st.integers(1, 3),
    bias=st.booleans(),
)
def test_fused_steps_are_the_definition(case, dtype, compiled, shared, bias):
    check_fused_steps(case, dtype, compiled, shared, bias)


SCANS = [  # queries, keys, mask
    (6, 20, PrefixMask(3, 2)),
    (6, 4, PrefixMask(3, 2)),
    (6, 20, PrefixMask(1, 2)),
    (6, 12, PrefixMask(1, 2)),
    (6, 20, None),
    (6, 4, None),
]


@pytest.mark.parametrize("few", [False, True], ids=["chunks", "pairs"])
@pytest.mark.parametrize(("queries", "keys", "mask"), SCANS)
@pytest.mark.parametrize("name", ["softmax", "relu", "leap", "rope"])
@torch.no_grad()
def test_a_scan_by_itself_serves_any_mask(name, queries, keys, mask, few):
    """`Mechanism.scan`, called from outside: the output, and a state that has read what some query saw."""
    mechanism = build(name, DIM, HEADS).double()
    q, k, v = (torch.randn(2, HEADS, *size).double() for size in ((queries, DIM), (keys, DIM), (keys, VALUE_DIM)))
    query, key = TokenInfo.whole(queries), TokenInfo.whole(keys)
    expected = mechanism(q, k, v, query=query, key=key, mask=mask, execution="reference")
    with dispatch.override(pairs=10**9 if few else 0, pairs_per_token=10**9 if few else 0):
        first = mechanism.init_state(2, VALUE_DIM, k, key, mask)
        out, state = mechanism.scan(first, q, k, v, query, key, mask)
    seen = keys if mask is None else mask.count(queries - 1, keys)
    read = mechanism.init_state(2, VALUE_DIM, k, key, mask)
    read = mechanism.write(read, k[:, :, :seen], v[:, :, :seen], key.narrow(0, seen))
    assert apart(out, expected) < 1e-12
    for side in (state, read):
        last = mechanism.read(side, q[:, :, -1:], query.narrow(queries - 1, queries))
        assert apart(last, expected[:, :, -1:]) < 1e-12


# ------------------------------------------------------------------------------------------------------------ controls
def off_by_one(self, scores):
    return scores.tril_(1) if scores.shape[1] == scores.shape[2] else scores


def no_padding(self, k, tokens):
    return self.map_keys(k, tokens)


def one_normalizer(sums, floor, dtype=None, scale=None):
    return sums[..., :-1] / sums[..., -1:].clamp_min(1e-3)


def without_the_last(self, from_queries, last, real=linear._Chunks._state_gradients):
    return real(self, from_queries, torch.zeros_like(last))


def forgetful_cut(mask, queries, keys, size, unit, real=segments.cut):
    found = real(mask, queries, keys, size, unit)
    return [at for i, at in enumerate(found) if i == 0 or at.t1 > at.t0 or at.s1 - at.s0 > 1]


BUGS = {
    "a query sees the next key": (linear._Chunks, "_hide_future", off_by_one),
    "padding is written": (linear_base.LinearMechanism, "_keys", no_padding),
    "another floor": (linear, "normalize", one_normalizer),
    "keys hear nothing of later segments": (linear._Chunks, "_state_gradients", without_the_last),
    "a segment of one key is lost": (segments, "cut", forgetful_cut),
}


LINEARS = [i for i in KINDS if VARIANTS[i][0] in LINEAR]


class TestTheFuzzerItself:
    """Each bug, once injected, is found."""

    @pytest.mark.parametrize("bug", covering.kept(BUGS, "a query sees the next key"))
    def test_an_injected_bug_is_found(self, bug, monkeypatch):
        monkeypatch.setattr(*BUGS[bug])
        # It ends with the first example that shows the bug, and what is drawn depends on the modules that are loaded.
        fuzz = settings(max_examples=10 * EXACT, **{**FUZZ, "phases": [Phase.generate]}, report_multiple_bugs=False)
        with pytest.raises((AssertionError, RuntimeError)):
            fuzz(given(case=drawn(variants=LINEARS))(check_exactly))()

    def test_a_sum_in_half_precision_is_found(self, monkeypatch):
        monkeypatch.setattr(linear_base, "accumulated", lambda x: x.to(torch.bfloat16).to(x.dtype))
        fuzz = settings(max_examples=LOWER, **{**FUZZ, "phases": [Phase.generate]}, report_multiple_bugs=False)
        with pytest.raises(AssertionError):
            fuzz(given(case=drawn(least=1))(lambda case: check_in_precision(case, torch.float32)))()

    def test_a_step_that_counts_from_zero_is_found(self, monkeypatch):
        real = LinearStep.attend
        early = lambda self, p, x, state, at, lengths: real(self, p, x, state, at - 1, lengths)  # noqa: E731
        monkeypatch.setattr(LinearStep, "attend", early)
        fuzz = settings(max_examples=FUSED, **{**FUZZ, "phases": [Phase.generate]}, report_multiple_bugs=False)
        with pytest.raises(AssertionError):
            positioned = [i for i in STATES if VARIANTS[i][0] in ("cosformer", "rope")]
            cases = drawn(kinds=("all", "causal"), variants=positioned, least=1)
            fuzz(given(case=cases)(lambda case: check_fused_steps(case, torch.float64, False, 1, True)))()
