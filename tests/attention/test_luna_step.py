"""The decoding step of Luna is the same function as its parallel way, in PyTorch and in C."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import CAUSAL, Carry, Projections, TokenInfo, build, step_of
from leapformer_fairseq.attention.ops import cpu as native
from leapformer_fairseq.support.errors import LeapformerError

from ..compiler import needs_compiler
from .cases import DIM, HEADS, attend, empty, heads, joined, scanned, written

B, H, D, C, L, T = 3, HEADS, DIM, HEADS * DIM, 5, 9
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
each_projections = pytest.mark.parametrize("projections", ["tied", "raw", "untied", "standard"])
each_source = pytest.mark.parametrize("packed", ["encoder", "learned"])


def luna(where, dtype, **options):
    """A mechanism whose numbers all matter, in a block with projections, and these."""
    torch.manual_seed(0)
    mechanism = build("luna", D, H, block=where, luna_length=L, **options).to(dtype)
    stock = Projections(*(nn.Linear(C, H * D).to(dtype) for _ in range(4)))
    for parameter in mechanism.parameters():
        nn.init.normal_(parameter, std=0.4)
    mechanism.receive(stock)
    return mechanism, stock


def projected(mechanism, stock, x):
    """q, k, v as the block makes them."""
    v = heads(stock.v(x))
    return heads(stock.q(x)), v if mechanism.capabilities.keys_are_values else heads(stock.k(x)), v


def rows(x, packed):
    """TokenInfo from x (T, B, C), and the packed sequence of an encoder; that of the second sentence is shorter."""
    given = Carry(torch.randn(B, L, C).to(x), torch.arange(L) < torch.tensor([[L], [2], [L]]))
    return replace(TokenInfo.whole(len(x)), inputs=x.transpose(0, 1), carry=given if packed == "encoder" else None)


def assert_same_states(state, other, tolerance):
    for name, tensor in state.tensors().items():
        torch.testing.assert_close(tensor, other.tensors()[name], rtol=0, atol=tolerance)


@dtypes
@each_projections
@each_source
@pytest.mark.parametrize("activation", ["elu1", "softplus2"])
@torch.no_grad()
def test_steps_of_self_attention_equal_the_parallel_form(projections, packed, activation, dtype, language):
    """After a prompt of one row; hypotheses are reordered on the way, and the general way takes over at the end."""
    options = {"luna_projections": projections, "luna_packed": packed, "luna_activation": activation}
    mechanism, stock = luna("decoder-self", dtype, **options)
    x = torch.randn(T, B, C, dtype=dtype)
    key = rows(x, packed)
    q, k, v = projected(mechanism, stock, x)
    expected = stock.out(joined(attend(mechanism, q, k, v, key=key, mask=CAUSAL, way="reference")))
    step, order = step_of(mechanism, stock), torch.tensor([2, 0, 1])
    _, state = scanned(mechanism, None, q[:, :, :1], k[:, :, :1], v[:, :, :1], key.narrow(0, 1))
    out = [step(x[t], state, t + 1) for t in range(1, 5)]
    torch.testing.assert_close(torch.stack(out), expected[1:5], rtol=0, atol=TOLERANCE[dtype])
    state = state.reorder(order)
    out = [step(x[t, order], state, t + 1) for t in range(5, T - 1)]
    torch.testing.assert_close(torch.stack(out), expected[5 : T - 1, order], rtol=0, atol=TOLERANCE[dtype])
    last = (side[order, :, T - 1 :] for side in (q, k, v))
    here = key.narrow(T - 1, T)
    here = replace(here, inputs=here.inputs[order], carry=None)
    final, state = scanned(mechanism, state, *last, here)
    torch.testing.assert_close(stock.out(joined(final))[0], expected[T - 1, order], rtol=0, atol=TOLERANCE[dtype])
    _, whole = scanned(mechanism, None, q, k, v, key)
    assert_same_states(state, whole.reorder(order), 10 * TOLERANCE[dtype])


@dtypes
@torch.no_grad()
def test_learned_rows_need_no_first_row(dtype, language):
    mechanism, stock = luna("decoder-self", dtype, luna_packed="learned")
    x = torch.randn(T, B, C, dtype=dtype)
    q, k, v = projected(mechanism, stock, x)
    where = {"key": rows(x, "learned"), "mask": CAUSAL, "execution": "reference"}
    expected = stock.out(joined(mechanism(q, k, v, **where)))
    step, state = step_of(mechanism, stock), empty(mechanism, B, D, x)
    out = torch.stack([step(x[t], state, t + 1) for t in range(T)])
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE[dtype])
    with pytest.raises(LeapformerError, match="given no packed sequence"):
        empty(luna("decoder-self", dtype)[0], B, D, x)


@torch.no_grad()
def test_as_a_library_the_keys_write(language):
    mechanism = build("luna", D, H, luna_length=L)
    stock = Projections(*(nn.Linear(C, H * D) for _ in range(4)))
    x = torch.randn(T, B, C)
    q, k, v = (heads(side(x)) for side in (stock.q, stock.k, stock.v))
    expected = stock.out(joined(attend(mechanism, q, k, v, mask=CAUSAL, way="reference")))
    step, state = step_of(mechanism, stock), empty(mechanism, B, D, x)
    out = torch.stack([step(x[t], state, t + 1) for t in range(T)])
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-5)


@dtypes
@each_projections
@pytest.mark.parametrize("shared", [1, 3])
@torch.no_grad()
def test_steps_of_cross_attention_equal_attend(projections, shared, dtype, language):
    mechanism, stock = luna("decoder-cross", dtype, luna_projections=projections)
    source, x = torch.randn(11, B, C, dtype=dtype), torch.randn(4, B * shared, C, dtype=dtype)
    keep = torch.arange(11) < torch.tensor([[11], [3], [7]])  # three tokens are packed into three rows
    _, k, v = projected(mechanism, stock, source)
    state = written(mechanism, k, v, replace(rows(source, "encoder"), keep=keep))
    copies, before = state.reorder(torch.arange(B).repeat_interleave(shared)), state.fork()
    expected = stock.out(joined(mechanism.read(copies, heads(stock.q(x)), TokenInfo.whole(4))))
    step = step_of(mechanism, Projections(stock.q, stock.out))
    out = torch.stack([step(x[t], state, t + 1) for t in range(4)])
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE[dtype])
    assert_same_states(state, before, 0)  # reading changes nothing


@needs_compiler
@each_projections
@torch.no_grad()
def test_c_is_really_taken(projections, monkeypatch):
    mechanism, stock = luna("decoder-self", torch.float32, luna_projections=projections, luna_packed="learned")
    cross, _ = luna("decoder-cross", torch.float32, luna_projections=projections)
    x = torch.randn(T, B, C)
    state = written(cross, *projected(cross, stock, x)[1:], rows(x, "encoder"))
    calls, real = [], native.slot_step()
    monkeypatch.setattr(native, "slot_step", lambda: lambda *args: (calls.append(1), real(*args)))
    step_of(mechanism, stock)(x[0], empty(mechanism, B, D, x), 1)
    step_of(cross, Projections(stock.q, stock.out))(x[0], state, 1)
    assert calls == [1, 1]


@torch.no_grad()
def test_dropout_of_a_mechanism_in_training_is_that_of_the_general_way():
    mechanism, stock = luna("decoder-self", torch.float32, luna_packed="learned", dropout=0.5)
    x, outs = torch.randn(T, B, C), {}
    q, k, v = projected(mechanism, stock, x)
    key = rows(x, "learned")
    for training in (True, False):
        _, state = scanned(mechanism.eval(), None, *(side[:, :, : T - 1] for side in (q, k, v)), key.narrow(0, T - 1))
        mechanism.train(training)
        torch.manual_seed(1)
        outs[training] = step_of(mechanism, stock)(x[T - 1], state.fork(), T)
        torch.manual_seed(1)
        expected, _ = scanned(mechanism, state, *(side[:, :, T - 1 :] for side in (q, k, v)), key.narrow(T - 1, T))
        torch.testing.assert_close(outs[training], stock.out(joined(expected))[0], rtol=0, atol=2e-5)
    assert not torch.allclose(outs[True], outs[False], atol=1e-3)


@each_projections
@torch.no_grad()
def test_half_precision_keeps_a_float32_state(projections):
    options = {"luna_projections": projections, "luna_packed": "learned"}
    mechanism, rounded = luna("decoder-self", torch.bfloat16, **options)
    exact, stock = luna("decoder-self", torch.float32, **options)
    exact.load_state_dict(mechanism.state_dict())
    for mine, theirs in zip(stock, rounded, strict=True):
        mine.load_state_dict(theirs.state_dict())
    x = torch.randn(T, B, C).bfloat16()
    step, state = step_of(mechanism, rounded), empty(mechanism, B, D, x)
    out = torch.stack([step(x[t], state, t + 1) for t in range(T)])
    assert out.dtype == torch.bfloat16 and state.keys.dtype == torch.float32
    q, k, v = projected(exact, stock, x.float())
    expected = stock.out(joined(exact(q, k, v, key=rows(x.float(), "learned"), mask=CAUSAL)))
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
