"""Attention with a recurrence that forgets or replaces, against the loops of `ops.reference`, and what only it can do.

Maps, gates and norms are written once more, as formulas of one sequence and head. `test_a_wrong_formula_is_noticed`
changes each a little, and the same comparison must fail.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from leapformer_fairseq.attention import CAUSAL, ChunkMask, PrefixMask, TokenInfo
from leapformer_fairseq.attention.ops import dispatch, recurrent, reference
from leapformer_fairseq.attention.ops.recurrent import Written
from tests.covering import shared_out

from .cases import (
    DIM,
    HEADS,
    MECHANISMS,
    NORMED,
    OPTIONS,
    OURS,
    OUTPUT_GATED,
    RECURRENT,
    WAYS,
    Case,
    build,
    difference,
    fitted,
    inputs,
    make,
    run,
)
from .test_reference import CASES, all_keys, by_heads, compared, counts, fourier, network, served

DELTA = [name for name in RECURRENT if MECHANISMS[name].replaces]
GATED = [name for name in RECURRENT if not name.startswith("delta")]


# ------------------------------------------------------------ what is written and read, of one sequence and head
def logits(gate, x: Tensor, head: int) -> Tensor:
    """(S, 1), or (S, D) of a gate for each feature."""
    x = x if gate.inner is None else x @ gate.inner.weight.T
    return (x @ gate.outer.weight.T + gate.outer.bias + gate.begin).unflatten(1, (HEADS, -1))[:, head]


def angles(x: Tensor, proportion: Tensor) -> Tensor:
    angle = (math.pi / 2 * proportion).unsqueeze(1)
    return torch.cat([x * angle.cos(), x * angle.sin()], 1)


def direction(x: Tensor) -> Tensor:
    return unit(x * torch.sigmoid(x))


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def gated_relu(m, q, k, x, h):
    return q.relu(), k.relu(), logits(m.gate, x, h).sigmoid().log(), None


def gated_leap(m, q, k, x, h):
    q, k = q.relu(), k.relu()
    q, k = angles(q, network(m.query_proportion, q, h)), angles(k, network(m.key_proportion, k, h))
    return q, k, logits(m.gate, x, h).sigmoid().log(), None


def rfa_gate(m, q, k, x, h):
    gate = logits(m.gate, x, h).sigmoid()
    return fourier(m, q, h), fourier(m, k, h) * (1 - gate), gate.log(), None


def retention(m, q, k, x, h):
    return q / DIM**0.5, k, torch.full((len(k), 1), math.log(1 - 2 ** (-5 - h))).double(), None


def gla(m, q, k, x, h):
    return q / DIM**0.5, k, logits(m.gate, x, h).sigmoid().log() / 16, None


def hgrn2(m, q, k, x, h):
    floor = m.chosen.hgrn_floor
    keep = floor + (1 - floor) * logits(m.gate, x, h).sigmoid()
    return q * q.sigmoid(), 1 - keep, keep.log(), None


def strength(m, x, h):
    return (x @ m.strength.weight[h]).sigmoid().unsqueeze(1) * (2 if m.chosen.delta_negative else 1)


def delta(m, q, k, x, h):
    q, k = (unit(y) if m.convolution else direction(y) for y in (q, k))
    return q / DIM**0.5, k, torch.zeros(len(k), 1).double(), strength(m, x, h)


def gated_delta(m, q, k, x, h):
    decay = -m.log_rate[h].exp() * torch.log1p(logits(m.gate, x, h).exp())
    q, k, _, b = delta(m, q, k, x, h)
    return q, k, decay, b


FORMULAS = [
    ("gated-relu", {}, gated_relu),
    ("gated-leap", {}, gated_leap),
    ("rfa-gate", {}, rfa_gate),
    ("retention", {}, retention),
    ("simple-gla", {}, gla),
    ("simple-gla", {"gate_init": "published"}, gla),
    ("gla", {"gate_init": "published"}, gla),
    ("hgrn2", {}, hgrn2),
    ("hgrn2", {"hgrn_floor": 0.3}, hgrn2),
    ("delta", {}, delta),
    ("delta", {"delta_negative": True}, delta),
    ("gated-delta", {"gate_init": "published"}, gated_delta),
    ("kda", {}, gated_delta),
    ("simple-gla-conv", {}, gla),
    ("delta-conv", {}, delta),
    ("gated-delta", {"short_conv": 3}, gated_delta),
    ("kda-conv", {}, gated_delta),
]
assert {name for name, _, _ in FORMULAS} == OURS.intersection(RECURRENT)


def made(name, options, block=None):
    """With gates that differ from token to token."""
    mechanism = build(name, DIM, HEADS, block=block, **{**OPTIONS.get(name, {}), **options})
    mechanism = fitted(mechanism).double()
    with torch.no_grad():
        for parameter in mechanism.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mechanism


def truth(m, case, formula, wrong=False):
    """The output by the loop, of one sequence and head."""

    def one(q, k, v, h, whole):
        x = all_keys(m, whole)
        if getattr(m, "convolution", None):
            q, k, v = convolved(m, q, k, v, h, case)
        q, k, decay, b = formula(m, q, k, x, h)
        decay = 1.01 * decay - 0.001 if wrong else decay
        if not m.averages:
            return normed(read(q, k, v, decay, b))
        ones = torch.cat([v, v.new_ones(len(v), 1)], 1)
        sums = read(q, k, ones, decay, b)
        return sums[:, :-1] / sums[:, -1:].clamp_min(m.normalizer_floor)

    def read(q, k, v, decay, b):
        if m.block != "encoder-self" or case.mask is not None:
            return reference.recurrence(q, k, v, decay, b, counts(case))
        if b is None:
            return reference.two_sided(q, k, v, decay)
        causal = range(1, len(q) + 1)
        back = reference.recurrence(*(y.flip(0) for y in (q, k, v, decay, b)), causal).flip(0)
        return reference.recurrence(q, k, v, decay, b, causal) + back

    return by_heads(one)


def convolves(name, options) -> bool:
    return bool(getattr(made(name, options), "convolution", None))


def convolved(m, q, k, v, h, case):
    """Of one head."""
    queries, keys, values = m.convolution.weight.split([HEADS * DIM, HEADS * DIM, HEADS * v.shape[1]], 1)
    ends = range(1, len(q) + 1) if case.mask == CAUSAL else None
    each = [(y, w.unflatten(1, (HEADS, -1))[:, h]) for y, w in ((q, queries), (k, keys), (v, values))]
    return (reference.convolution(y, w, m.convolution.before, ends) for y, w in each)


def normed(o: Tensor) -> Tensor:
    return o / (o.square().mean(1, keepdim=True) + 1e-5).sqrt()


# -------------------------------------------------------------------------------------------------------- the loops
EXAMPLES = [pytest.param(*one, id="-".join(map(str, (one[0], *one[1].values())))) for one in FORMULAS]


SERVED = [
    pytest.param(*one.values, case, id=f"{one.id}-{case}")
    for one in EXAMPLES
    for case in (*CASES, Case(40, 40, CAUSAL))
    if served(*one.values[:2], case) and (case.queries == case.keys or not convolves(*one.values[:2]))
]


@pytest.mark.parametrize(("name", "options", "formula", "case"), SERVED)
def test_recurrences_are_the_loop(name, options, formula, case):
    mechanism = made(name, options)
    found = compared(mechanism, case, truth(mechanism, case, formula))
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("count", [1, 2, 23])
@pytest.mark.parametrize(("name", "options", "formula"), EXAMPLES)
def test_encoders_read_in_both_directions(name, options, formula, count):
    mechanism, case = made(name, options, "encoder-self"), Case(count, count, None)
    found = compared(mechanism, case, truth(mechanism, case, formula))
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize(("name", "options", "formula"), shared_out(EXAMPLES, 0))
def test_a_wrong_formula_is_noticed(name, options, formula):
    for block, case in ((None, CASES[1]), ("encoder-self", Case(9, 9, None))):
        mechanism = made(name, options, block)
        assert min(compared(mechanism, case, truth(mechanism, case, formula, wrong=True)).values()) > 1e-6


# ------------------------------------------------------------------------------------------------- the operation
@st.composite
def recurrences(draw):
    """Queries, what keys write, the first state, the mask, and the size of a block."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    queries, features, values = draw(st.integers(1, 70)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    mask = draw(
        st.one_of(
            st.none(),
            st.just(CAUSAL),
            st.builds(PrefixMask, st.integers(1, 9), st.integers(1, 7)),
            st.builds(ChunkMask, st.integers(2, 6), st.integers(0, 3)),
        )
    )
    keys = queries if isinstance(mask, ChunkMask) or mask == CAUSAL else draw(st.integers(1, 150))
    keys = mask.count(queries - 1, keys) if isinstance(mask, PrefixMask) else keys
    kind = draw(st.sampled_from(["none", "head", "feature", "strong"]))
    rows = lambda n, width: torch.randn(n, width, dtype=torch.float64)  # noqa: E731
    decay = None if kind == "none" else F.logsigmoid(rows(keys, 1 if kind == "head" else features))
    decay = 40 * decay if kind == "strong" else decay  # e^-c alone would overflow
    b = draw(st.sampled_from([None, rows(keys, 1).sigmoid()]))
    k = F.normalize(rows(keys, features), dim=1)
    written = Written(k, rows(keys, values), decay, b)
    return rows(queries, features), written, rows(features, values), mask, draw(st.sampled_from([1, 4, 16, 200]))


def looped(q, written, first, mask):
    """Output and last state, one key after the other."""
    k, v, decay, b = written
    outputs, state = [], first

    def after(state, rows):
        for s in rows:
            state = state if decay is None else state * decay[s].exp().unsqueeze(1)
            state = state + torch.outer(k[s], v[s] if b is None else b[s] * (v[s] - state.T @ k[s]))
        return state

    if isinstance(mask, ChunkMask):
        for start in range(0, len(q), mask.tokens):
            stop = min(start + mask.tokens, len(q))
            state = after(state, range(start, min(start + mask.size, stop)))
            seen = after(state, range(min(start + mask.size, stop), stop))
            outputs.append(q[start:stop] @ seen)
        return torch.cat(outputs), state
    read = 0
    for t, query in enumerate(q):
        count = len(k) if mask is None else mask.count(t, len(k))
        state, read = after(state, range(read, count)), count
        outputs.append(query @ state)
    return torch.stack(outputs), state


@settings(deadline=None, max_examples=150)
@given(recurrences())
def test_blocks_are_the_loop(given_):
    q, written, first, mask, block = given_
    leaves = [x for x in (q, *written, first) if x is not None]

    def differentiated(function):
        copies = [None if x is None else x.clone().requires_grad_() for x in (q, *written, first)]
        out, state = function(copies[0], Written(*copies[1:5]), copies[5])
        (out.sin().sum() + state.sin().sum()).backward()
        return [out, state, *(torch.zeros_like(x) if x.grad is None else x.grad for x in copies if x is not None)]

    expected = differentiated(lambda q, w, s: looped(q, w, s, mask))
    got = differentiated(lambda q, w, s: recurrent.sums(q, w, s, mask, block))
    assert len(got) == len(leaves) + 2
    assert difference(got, expected) < 1e-10


@pytest.mark.parametrize("features", [1, 3])
def test_gates_that_close_at_once_give_no_nan_in_float32(features):
    """Each token forgets all before it: what is read is that token's own."""
    q, k, v = (torch.rand(1, 1, 300, n) for n in (3, 3, 2))
    decay = torch.full((1, 1, 300, features), -1e4).requires_grad_()
    out, state = recurrent.sums(q, Written(k, v, decay), torch.ones(1, 1, 3, 2), CAUSAL, 64)
    out.sum().backward()
    assert decay.grad.isfinite().all()
    assert torch.allclose(out, (q * k).sum(-1, keepdim=True) * v, atol=1e-6)
    assert torch.allclose(state[0, 0], torch.outer(k[0, 0, -1], v[0, 0, -1]))


@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("forgotten", [5, 23, 31, 39.5, 41])
@pytest.mark.parametrize(("name", "head_dim"), [*((name, DIM) for name in GATED), ("gla", 1), ("hgrn2", 1)])
def test_outputs_and_gradients_in_float32_whatever_a_block_forgets(name, head_dim, forgotten, scale, monkeypatch):
    """The reference is the loop over keys in float64; training gets through states of several blocks."""
    torch.manual_seed(1)
    exact = build(name, head_dim, HEADS, **OPTIONS.get(name, {})).double()
    count = 2 * exact.block_queries + 3
    qkv = [scale * torch.randn(1, HEADS, count, head_dim, dtype=torch.float64) for _ in range(3)]
    grad = torch.randn_like(qkv[0])
    right = type(exact).written

    def written(self, k, v, tokens):
        keys = right(self, k, v, tokens)
        return keys._replace(decay=keys.decay - keys.decay.detach() - forgotten / self.block_queries)

    monkeypatch.setattr(type(exact), "written", written)
    expected = run(exact, qkv, grad, mask=CAUSAL, way="reference")
    got = run(copy.deepcopy(exact).float(), [x.float() for x in qkv], grad, mask=CAUSAL, way="kept")
    for one, of in zip(got, expected, strict=True):
        assert one.isfinite().all() and (one - of).abs().max() <= 2e-4 * of.abs().max().clamp_min(0.2)


# ----------------------------------------------------------------------------------------------------- properties
@pytest.mark.parametrize("mask", [CAUSAL, PrefixMask(2, 3)])
@pytest.mark.parametrize(("name", "plain"), [("gated-relu", "relu"), ("gated-leap", "leap")])
def test_an_open_gate_is_the_ungated_mechanism(name, plain, mask):
    gated, ungated, (q, k, v) = make(name), make(plain), inputs(12, 30 if mask != CAUSAL else 12)
    gated.load_state_dict({**gated.state_dict(), **ungated.state_dict()})
    gated.gate.begin.fill_(40.0)
    assert difference([gated(q, k, v, mask=mask)], [ungated(q, k, v, mask=mask)]) < 1e-12


def test_gated_delta_with_an_open_gate_is_delta():
    gated, ungated, qkv = make("gated-delta"), make("delta"), inputs(20, 20)
    gated.strength.load_state_dict(ungated.strength.state_dict())
    gated.gate.begin.fill_(-40.0)
    assert difference([gated(*qkv, mask=CAUSAL)], [ungated(*qkv, mask=CAUSAL)]) < 1e-12


@pytest.mark.parametrize("name", ["gated-relu", "gated-leap", "simple-gla", "gla", "gated-delta", "kda"])
def test_a_closed_gate_forgets(name):
    """What was read before a token whose gate is closed does not matter after it."""
    mechanism, (q, k, v) = make(name), inputs(12, 12)
    logits = torch.zeros(1, HEADS, 12, 1).double()
    logits[:, :, 6] = 1e6 if name in DELTA else -1e6
    mechanism.gate.forward = lambda k, tokens: logits.expand(len(k), -1, -1, mechanism.gate.begin.numel() // HEADS)
    expected = mechanism(q, k, v, mask=CAUSAL)[:, :, 6:]
    for x in (k, v):
        x[:, :, :6] = torch.randn_like(x[:, :, :6])
    assert difference([mechanism(q, k, v, mask=CAUSAL)[:, :, 6:]], [expected]) < 1e-12


def test_delta_overwrites_what_an_orthonormal_key_read():
    keys = torch.eye(4, dtype=torch.float64)[[0, 1, 2, 0]]
    values = torch.randn(4, 3, dtype=torch.float64)
    written = Written(keys, values, None, torch.ones(4, 1, dtype=torch.float64))
    out, _ = recurrent.sums(torch.eye(4, dtype=torch.float64), written, torch.zeros(4, 3).double(), None, 32)
    assert difference([out], [torch.stack([values[3], values[1], values[2], torch.zeros(3).double()])]) < 1e-12


@pytest.mark.parametrize("name", DELTA)
def test_an_encoder_that_reads_a_reversed_sequence_gives_the_reversed_output(name):
    mechanism, (q, k, v) = made(name, {}, "encoder-self"), inputs(15, 15)
    if getattr(mechanism, "convolution", None):
        taps = mechanism.convolution.weight.detach()
        taps.copy_((taps + taps.flip(0)) / 2)
    reversed_ = mechanism(*(x.flip(2) for x in (q, k, v))).flip(2)
    assert difference([reversed_], [mechanism(q, k, v)]) < 1e-11


@pytest.mark.parametrize("block", [None, "encoder-self"])
@pytest.mark.parametrize("name", RECURRENT)
def test_padding_anywhere_changes_nothing(name, block):
    mechanism, (q, k, v) = made(name, {}, block), inputs(14, 14, batch=1)
    mask = None if block else CAUSAL
    keep = torch.tensor([[0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0]], dtype=torch.bool)
    tokens = TokenInfo.whole(14, keep)
    short = [x[:, :, keep[0]] for x in (q, k, v)]
    expected = mechanism(*short, mask=mask)
    got = mechanism(q, k, v, query=tokens, key=tokens, mask=mask)[:, :, keep[0]]
    assert difference([got], [expected]) < 1e-12


@pytest.mark.parametrize("name", [name for name in NORMED if name in OUTPUT_GATED])
@pytest.mark.parametrize("activation", ["published", "swish", "sigmoid"])
def test_output_gates(name, activation):
    """A function of the query's input, after the norm, in every execution."""
    mechanism = build(name, DIM, HEADS, output_gate=activation).double()
    plain = build(name, DIM, HEADS, output_gate="none").double()
    plain.load_state_dict({key: value for key, value in mechanism.state_dict().items() if "output" not in key})
    q, k, v = (torch.randn(2, HEADS, 11, DIM).double() for _ in range(3))
    x = torch.randn(2, 11, DIM * HEADS).double()
    tokens = TokenInfo(torch.arange(1, 12).unsqueeze(0), inputs=x)
    expected = plain(q, k, v, query=tokens, key=tokens, mask=CAUSAL)
    if mechanism.output is not None:
        z = (x @ mechanism.output.weight.T).unflatten(2, (HEADS, DIM)).transpose(1, 2)
        expected = expected * (z.sigmoid() if mechanism.activation == "sigmoid" else z * z.sigmoid())
    for way, (execution, bounds) in WAYS.items():
        with dispatch.override(**bounds):
            got = mechanism(q, k, v, query=tokens, key=tokens, mask=CAUSAL, execution=execution)
        assert difference([got], [expected]) < 1e-12, way
    state = mechanism.init_state(2, DIM, k, tokens, CAUSAL)
    steps = []
    for t in range(11):
        q_t, k_t, v_t = (y[:, :, t : t + 1] for y in (q, k, v))
        out, state = mechanism.scan(state, q_t, k_t, v_t, tokens.narrow(t, t + 1), tokens.narrow(t, t + 1))
        steps.append(out)
    assert difference([torch.cat(steps, 2)], [expected]) < 1e-12
