"""The decoding step is the same function as the parallel way: in PyTorch, in C, and for every way to build it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import CAUSAL, MECHANISMS, Attention, Projections, TokenInfo, softmax, step_of
from leapformer_fairseq.attention.bounded.sums import SlotSums
from leapformer_fairseq.attention.decoding.cached import CachedStep
from leapformer_fairseq.attention.decoding.step import Step
from leapformer_fairseq.attention.ops import cpu as native

from ..compiler import needs_compiler
from ..covering import covering
from . import cases
from .cases import (
    DIM,
    HEADS,
    attend,
    build,
    empty,
    heads,
    joined,
    written,
)
from .conftest import take

B, H, D, C, T = 3, HEADS, DIM, HEADS * DIM, 9
LINEAR = [
    ("relu", {}),
    ("elu", {}),
    ("cosformer", {"cosformer_length": 6}),  # shorter than T: proportions saturate
    ("cosformer", {"cosformer_step": 4}),
    ("leap", {}),
    ("leap", {"leap_factor": D}),
    ("leap", {"leap_per_head": True}),
    ("leap", {"leap_input": "raw"}),
    ("leap", {"leap_per_head": True, "leap_factor": D}),
    ("rope", {}),
    ("rope", {"rope_dims": D, "rope_theta": 100.0}),
]
SLOTS = [
    ("abc-mlp", {"abc_slots": 5}),
    ("abc-mlp", {"abc_slots": 5, "abc_activation": "relu"}),
    ("abc-mlp", {"abc_slots": 5, "abc_activation": "relu", "abc_empty_slots": "literal"}),
    ("abc-mlp", {"abc_slots": 8, "abc_activation": "sigmoid"}),
    ("abc-linformer", {"abc_slots": 5, "abc_max_length": 11}),
    ("abc-random", {"abc_slots": 5}),
    ("abc-random", {"abc_slots": 5, "abc_empty_slots": "literal"}),
    ("abc-global", {"abc_slots": 5, "abc_global_every": 3}),
    ("abc-pool", {"abc_slots": 5, "abc_pool_size": 3}),
]
VARIANTS = [*LINEAR, *SLOTS]
VARIANTS += [(name, {}) for name in cases.LINEAR if name not in dict(VARIANTS)]  # whatever else is registered
OTHERS = [("softmax", {}), ("abc-window", {"abc_slots": 3}), ("abc-dilated", {"abc_slots": 3})]  # without a kernel
# not defined for a decoder's self-attention
CROSS_ONLY = [("abc-cluster", {"abc_slots": 5})]
CROSS_ONLY += [
    (name, {"abc_slots": 5})
    for name, mechanism in MECHANISMS.items()
    if issubclass(mechanism, SlotSums) and name not in dict([*VARIANTS, *CROSS_ONLY])
]
KNOWN = dict([*VARIANTS, *OTHERS, *CROSS_ONLY, ("luna", {})])  # luna: test_luna_step.py
OTHERS += [
    (name, {})
    for name, mechanism in MECHANISMS.items()
    if name not in KNOWN and "decoder-self" in mechanism.capabilities.blocks and mechanism.capabilities.incremental
]
WAYS = ["C", "torch"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def label(x):
    return "-".join(map(str, (x[0], *x[1].values()))) if isinstance(x, tuple) else str(x)


def possible(dtype, way, **_):
    """The step in C takes float32 only: pairs with float64, too, would leave variants that nothing compares in C."""
    return dtype == torch.float32 or way == "torch"


def each(variants):
    return pytest.mark.parametrize(("name", "options"), variants, ids=[label(x) for x in variants])


dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def block(name, options, dtype, bias=True):
    torch.manual_seed(0)
    mechanism = build(name, D, H, input_dim=C, **options).to(dtype)
    q, k, v, out = (nn.Linear(C, H * D, bias=bias).to(dtype) for _ in range(4))
    return mechanism, Projections(q, out, k, v)


def rows(count, x=None):
    """TokenInfo of unknown length that are projected from x (T, B, C)."""
    return replace(TokenInfo.whole(count).without_lengths(), inputs=None if x is None else x.transpose(0, 1))


def assert_same_states(state, other, tolerance):
    for name, tensor in state.tensors().items():
        torch.testing.assert_close(tensor, other.tensors()[name], rtol=0, atol=tolerance)


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "PyTorch"])
@pytest.mark.parametrize("rows", [1, 3, 4])
@each([("leap", {}), ("abc-mlp", {"abc_slots": 5}), ("luna", {"luna_length": 5})])
@torch.no_grad()
def test_rows_that_do_not_fit_to_the_state_are_refused(name, options, rows, compiled):
    mechanism, projections = block(name, options, torch.float32)
    step, state = step_of(mechanism, projections), empty(mechanism, 2, D, torch.zeros(0))
    with nullcontext() if compiled else native.turned_off(), pytest.raises((ValueError, RuntimeError)):
        step(torch.randn(rows, C), state, 1)


@covering(possible, label, variant=[*VARIANTS, *OTHERS], dtype=list(TOLERANCE), bias=[True, False], way=WAYS)
@torch.no_grad()
def test_steps_of_self_attention_equal_the_parallel_form(variant, dtype, bias, way, monkeypatch):
    take(way, monkeypatch)
    name, options = variant
    mechanism, projections = block(name, options, dtype, bias)
    q, o, k, v = projections
    x = torch.randn(T, B, C, dtype=dtype)
    where = {"query": rows(T, x), "key": rows(T, x), "mask": CAUSAL}
    expected = o(joined(mechanism(heads(q(x)), heads(k(x)), heads(v(x)), execution="reference", **where)))
    step, state = step_of(mechanism, projections), empty(mechanism, B, D, x)
    out = torch.stack([step(x[t], state, t + 1) for t in range(T)])
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE[dtype])
    whole, next_token = written(mechanism, heads(k(x)), heads(v(x)), rows(T, x)), rows(T + 1).narrow(T, T + 1)
    reads = [mechanism.read(each, heads(q(x[:1])), next_token) for each in (state, whole)]
    torch.testing.assert_close(*reads, rtol=0, atol=10 * TOLERANCE[dtype])
    if (name, options) in VARIANTS:  # a cache has spare columns, a window's have no order
        assert_same_states(state, whole, 10 * TOLERANCE[dtype])


@covering(possible, label, variant=[*VARIANTS, *CROSS_ONLY], dtype=list(TOLERANCE), shared=[1, 3], way=WAYS)
@torch.no_grad()
def test_steps_of_cross_attention_equal_attend(variant, dtype, shared, way, monkeypatch):
    take(way, monkeypatch)
    name, options = variant
    mechanism, (q, o, k, v) = block(name, options, dtype)
    source, x = torch.randn(11, 2, C, dtype=dtype), torch.randn(4, 2 * shared, C, dtype=dtype)
    state = written(mechanism, heads(k(source)), heads(v(source)), rows(11, source).of_length(torch.tensor([11])))
    copies, before = state.reorder(torch.arange(2).repeat_interleave(shared)), state.fork()
    expected = o(joined(mechanism.read(copies, heads(q(x)), rows(4))))
    step = step_of(mechanism, Projections(q, o))
    out = torch.stack([step(x[t], state, t + 1) for t in range(4)])
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE[dtype])
    assert_same_states(state, before, 0)  # reading changes nothing


@dtypes
@pytest.mark.parametrize("overrun", ["saturate", "extrapolate"])
@torch.no_grad()
def test_every_sequence_has_its_own_length(dtype, overrun, language):
    """In self- and cross-attention; the shortest is overrun."""
    mechanism, projections = block("cosformer", {"cosformer_overrun": overrun}, dtype)
    q, o, k, v = projections
    x, source = torch.randn(T, B, C, dtype=dtype), torch.randn(11, B, C, dtype=dtype)
    lengths = torch.tensor([4.0, 9.0, 30.5], dtype=torch.float64)
    known = rows(T).of_length(lengths)
    step, state = step_of(mechanism, projections), empty(mechanism, B, D, x)
    out = torch.stack([step(x[t], state, t + 1, lengths) for t in range(T)])
    where = {"query": known, "key": known, "mask": CAUSAL}
    expected = o(joined(mechanism(heads(q(x)), heads(k(x)), heads(v(x)), execution="reference", **where)))
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE[dtype] * (1 if overrun == "saturate" else 1e3))

    state = written(mechanism, heads(k(source)), heads(v(source)), TokenInfo.whole(11))
    step = step_of(mechanism, Projections(q, o))
    out = torch.stack([step(x[t], state, t + 1, lengths) for t in range(T)])
    expected = o(joined(mechanism.read(state, heads(q(x)), known)))
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE[dtype] * (1 if overrun == "saturate" else 1e3))
    other = torch.stack([step(x[t], state, t + 1, lengths + 5) for t in range(T)])
    assert not torch.allclose(other, expected, atol=1e-4), "lengths matter"


@each(VARIANTS)
@torch.no_grad()
def test_a_dead_row_gives_zero(name, options, language):
    """No key, no similarity: the floor, not NaN."""
    mechanism, (q, o, _, _) = block(name, options, torch.float32, bias=False)
    state = empty(mechanism, B, D, torch.zeros(1))
    out = step_of(mechanism, Projections(q, o))(torch.randn(B, C), state, 1)
    assert torch.equal(out, torch.zeros(B, H * D))


@torch.no_grad()
def test_opposite_proportions_still_average(language):
    """Proportions of exactly 1 and 0, as trained networks have: all similarities are almost zero, none is negative."""
    mechanism, (q, o, k, v) = block("leap", {}, torch.float32)
    with torch.no_grad():
        mechanism.query_proportion.biases[-1].fill_(200)
        mechanism.key_proportion.biases[-1].fill_(-200)
        v.weight.zero_()
        v.bias.fill_(1)
        o.weight.copy_(torch.eye(C))
        o.bias.zero_()
    x = 1e5 * torch.randn(T, B, C).abs()
    for side in q, k:
        side.weight.abs_()
    where = {"query": rows(T), "key": rows(T, x), "mask": CAUSAL}
    outputs = [
        joined(attend(mechanism, heads(q(x)), heads(k(x)), heads(v(x)), way=way, **where))
        for way in ("reference", "kept", "again")
    ]
    step, state = step_of(mechanism, Projections(q, o, k, v)), empty(mechanism, B, D, x)
    outputs.append(torch.stack([step(x[t], state, t + 1) for t in range(T)]))
    for out in outputs:
        torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-3)
    assert (mechanism.weights(heads(q(x)), heads(k(x)), **where) >= 0).all()


@torch.no_grad()
def test_half_precision_keeps_a_float32_state(language):
    mechanism, rounded = block("leap", {}, torch.bfloat16)
    x = torch.randn(T, B, C).bfloat16()
    step, state = step_of(mechanism, rounded), empty(mechanism, B, D, x)
    out = torch.stack([step(x[t], state, t + 1) for t in range(T)])
    assert out.dtype == torch.bfloat16 and state.kv.dtype == torch.float32
    exact, projections = block("leap", {}, torch.float32)
    exact.load_state_dict(mechanism.state_dict())
    for mine, theirs in zip(projections, rounded, strict=True):
        mine.load_state_dict(theirs.state_dict())
    q, o, k, v = projections
    x = x.float()
    expected = o(joined(exact(heads(q(x)), heads(k(x)), heads(v(x)), mask=CAUSAL)))
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", sorted(name for name, cls in MECHANISMS.items() if cls.capabilities.incremental))
def test_the_step_of_every_mechanism_is_tested(name):
    tested = {variant for variant, _ in [*VARIANTS, *OTHERS, *CROSS_ONLY]} | {"luna"}  # luna: test_luna_step.py
    assert name in tested, "name its step in VARIANTS, OTHERS or CROSS_ONLY"


@needs_compiler
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@each(VARIANTS)
@torch.no_grad()
def test_what_is_no_number_in_pytorch_is_none_in_c(name, options, number):
    """Of weights or tokens that are NaN a step must not make an output that looks like one."""
    mechanism, projections = block(name, options, torch.float32)
    x, found = torch.randn(4, B, C), []
    x[1, 0, 3] = number
    for way in WAYS:
        step, state = step_of(mechanism, projections), empty(mechanism, B, D, x)
        with nullcontext() if way == "C" else native.turned_off():
            found.append(torch.stack([step(x[t], state, t + 1) for t in range(4)]))
    assert not found[1][1, 0].isfinite().any()
    assert torch.equal(found[0].isfinite(), found[1].isfinite())
    torch.testing.assert_close(found[0][:, 1:], found[1][:, 1:])


@needs_compiler
@pytest.mark.parametrize(("name", "step"), [("leap", "step"), ("abc-mlp", "slot_step"), ("abc-random", "slot_step")])
@torch.no_grad()
def test_the_step_in_c_is_really_taken(monkeypatch, name, step):
    mechanism, projections = block(name, {}, torch.float32)
    calls, real = [], getattr(native, step)()
    monkeypatch.setattr(native, step, lambda: lambda *args: (calls.append(1), real(*args)))
    step_of(mechanism, projections)(torch.randn(B, C), empty(mechanism, B, D, torch.zeros(1)), 1)
    assert calls == [1]


PROMPTS = ["relu", "elu", "leap", "gated-relu", "gated-leap", "delta", "gated-delta", "kda", "gla", "retention"]
PROMPTS += [("leap", {"leap_per_head": True}), ("leap", {"leap_input": "raw"}), ("delta", {"output_gate": "sigmoid"})]


@needs_compiler
@pytest.mark.parametrize("variant", [(x, {}) if isinstance(x, str) else x for x in PROMPTS], ids=label)
@torch.no_grad()
def test_prompts_are_read_by_the_kernel_from_fused_projections(variant):
    name, options = variant
    attention = Attention(name, C, H, block="decoder-self", **options).eval()
    for parameter in attention.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.3)
    x = torch.randn(B, 80, C)
    memory, outputs = attention.new_memory(), []
    for start, stop in ((0, 17), (17, 18), (18, 80)):
        if stop - start > 1:
            assert memory.step.prompt(x[:, start:stop], memory.state, attention._heads) is not None
        outputs.append(attention.self_step(x[:, start:stop], None, memory, CAUSAL))
    torch.testing.assert_close(torch.cat(outputs, 1), attention(x), rtol=2e-4, atol=2e-5)


@torch.no_grad()
def test_prompts_that_the_kernel_does_not_know_are_read_without_it():
    for name in ("rope", "softmax", "abc-mlp", "hgrn2"):
        attention = Attention(name, C, H, block="decoder-self").eval()
        memory, x = attention.new_memory(), torch.randn(B, 12, C)
        assert memory.step.prompt(x, None, attention._heads) is None
        torch.testing.assert_close(attention.self_step(x, None, memory, CAUSAL), attention(x), rtol=1e-4, atol=1e-5)


PADDED = {"no padding": None, "right": [[1, 1, 1, 0], [1, 1, 1, 1]], "nothing": [[1, 1, 1, 1], [0, 0, 0, 0]]}


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_the_step_of_softmax_reads_a_source_as_the_mechanism_does(padded, beam):
    mechanism, projections = block("softmax", {}, torch.float64)
    keep = None if PADDED[padded] is None else torch.tensor(PADDED[padded]).bool()
    k, v = (torch.randn(2, H, 4, D).double() for _ in range(2))
    state = written(mechanism, k, v, TokenInfo.whole(4, keep))
    cross, x = projections._replace(k=None, v=None), torch.randn(2 * beam, C).double()
    step = step_of(mechanism, cross)
    assert type(step) is CachedStep
    torch.testing.assert_close(step(x, state, 1), Step(mechanism, cross)(x, state, 1))


@pytest.mark.parametrize("small", [True, False])
@torch.no_grad()
def test_the_step_of_softmax_follows_prompts_with_padding_and_the_beam(small, monkeypatch):
    monkeypatch.setattr(softmax, "_SMALL", 1 << 15 if small else 0)
    mechanism, projections = block("softmax", {}, torch.float64)
    left = torch.tensor([[0, 0, 1], [1, 1, 1]]).bool()
    k, v = (torch.randn(2, H, 3, D).double() for _ in range(2))
    states = [written(mechanism, k, v, TokenInfo.whole(3, left)) for _ in range(2)]
    for position, order in enumerate([[0, 1, 1], [2, 0, 0], [1, 1], [1, 0, 1]]):
        states = [state.reorder(torch.tensor(order)) for state in states]
        x = torch.randn(len(order), C).double()
        outputs = [
            step(x, state, position + 1)
            for step, state in zip((step_of(mechanism, projections), Step(mechanism, projections)), states, strict=True)
        ]
        torch.testing.assert_close(*outputs)
    assert_same_states(*states, 1e-12)
