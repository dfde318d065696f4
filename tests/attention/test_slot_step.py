"""What is particular about the decoding step over slots; that it is the same function is in test_step.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import Projections, Step, TokenInfo, build, step_of
from leapformer_fairseq.attention.bounded.sums import SlotSums
from leapformer_fairseq.attention.decoding import slots as slot_step
from leapformer_fairseq.attention.decoding.slots import SlotStep
from leapformer_fairseq.attention.ops import cpu as native
from leapformer_fairseq.support.errors import LeapformerError

from ..compiler import needs_compiler
from .cases import empty, scanned

B, H, D, E, C, N = 2, 3, 4, 6, 12, 5
POSITIONAL = [
    ("abc-linformer", {"abc_max_length": 40}),
    ("abc-random", {}),
    ("abc-global", {"abc_global_every": 4}),
    ("abc-pool", {"abc_pool_size": 8}),
]
VARIANTS = [("abc-mlp", {}), ("abc-mlp", {"abc_activation": "relu"}), *POSITIONAL]


class Block:
    """A mechanism with projections to values of a width of their own, and what `extend` makes of it."""

    def __init__(self, name, options, dtype=torch.float64, **more):
        torch.manual_seed(0)
        self.mechanism = build(name, D, H, input_dim=C, abc_slots=N, **options, **more).to(dtype)
        widths = ((C, H * D), (H * E, C), (C, H * D), (C, H * E))
        self.projections = Projections(*(nn.Linear(*width).to(dtype) for width in widths))
        self.step = step_of(self.mechanism, self.projections)

    def rows(self, x, seen):
        """TokenInfo that follow `seen` others, and q, k, v of x (T, B, C)."""
        inputs = x.transpose(0, 1)
        q, _, k, v = self.projections
        qkv = (side(inputs).unflatten(-1, (H, -1)).transpose(1, 2) for side in (q, k, v))
        return replace(TokenInfo.following(torch.tensor([seen]), len(x)), inputs=inputs), *qkv

    def extend(self, state, x, seen):
        """The general way: output (T, B, C) and state."""
        rows, *qkv = self.rows(x, seen)
        out, state = scanned(self.mechanism, state, *qkv, rows)
        return self.projections.out(out.permute(2, 0, 1, 3).flatten(2)), state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda x: x if isinstance(x, str) else "")
@torch.no_grad()
def test_steps_follow_a_prompt(name, options, dtype, language, monkeypatch):
    """In stretches of 7 positions; beams are reordered; and the general way takes over what the steps left."""
    monkeypatch.setattr(slot_step, "POSITIONS", 7)
    block, x = Block(name, options, dtype), torch.randn(40, B, C, dtype=dtype)
    _, state = block.extend(None, x[:10], 0)
    _, general = block.extend(None, x[:10], 0)
    for t in range(10, 39):
        out = block.step(x[t], state, t + 1)
        expected, general = block.extend(general, x[t : t + 1], t)
        torch.testing.assert_close(out, expected[0], rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-4)
        state, general = (held.reorder(torch.tensor([1, 0] if t % 3 else [1, 1])) for held in (state, general))
    out, _ = block.extend(state, x[39:], 39)
    expected, _ = block.extend(general, x[39:], 39)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-4)


@needs_compiler
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda x: x if isinstance(x, str) else "")
@torch.no_grad()
def test_c_serves_after_a_prompt(name, options, monkeypatch):
    block, x = Block(name, options, torch.float32), torch.randn(9, B, C)
    _, state = block.extend(None, x[:8], 0)
    monkeypatch.setattr(SlotSums, "write", lambda *_: pytest.fail("written by PyTorch"))
    block.step(x[8], state, 9)


@pytest.mark.parametrize(("name", "options"), POSITIONAL, ids=lambda x: x if isinstance(x, str) else "")
@torch.no_grad()
def test_positions_may_be_asked_for_in_any_order(name, options):
    block, x = Block(name, options), torch.randn(4, B, C, dtype=torch.float64)
    _, state = block.extend(None, x[:3], 0)
    outs = []
    for position in (33, 2, 40, 1):
        outs.append(block.step(x[3], state.fork(), position))
        expected, _ = block.extend(state.fork(), x[3:], position - 1)
        torch.testing.assert_close(outs[-1], expected[0], rtol=0, atol=1e-12)
    assert not all(torch.allclose(out, outs[0]) for out in outs), "the position matters"


@pytest.mark.parametrize("name", ["abc-linformer", "abc-pool"])
@torch.no_grad()
def test_the_last_position_is_served_and_the_next_one_refused(name):
    block, x = Block(name, dict(POSITIONAL)[name], torch.float32), torch.randn(B, C)
    assert block.mechanism.capabilities.max_target == 40  # which does not end a stretch
    state = empty(block.mechanism, B, E, x)
    assert block.step(x, state, 40).isfinite().all()
    with pytest.raises(LeapformerError, match="41"):
        block.step(x, state, 41)


@torch.no_grad()
def test_logits_of_the_control_are_bounded(language):
    block, x = Block("abc-mlp", {}, torch.float32), 300 * torch.randn(3, B, C)
    state, general = empty(block.mechanism, B, E, x), None
    for t in range(3):
        out = block.step(x[t], state, t + 1)
        expected, general = block.extend(general, x[t : t + 1], t)
        torch.testing.assert_close(out, expected[0], rtol=1e-3, atol=1e-2)
    assert float(state.mass.max()) > 1e13 and state.mass.isfinite().all()


@torch.no_grad()
def test_logits_of_the_control_are_float32_in_half_precision():
    block, x = Block("abc-mlp", {}, torch.bfloat16), 5 * torch.randn(6, B, C).bfloat16()
    state = empty(block.mechanism, B, E, x)
    for t in range(6):
        out = block.step(x[t], state, t + 1)
    expected, general = block.extend(None, x, 0)
    torch.testing.assert_close(state.mass, general.mass, rtol=1e-5, atol=0)  # bfloat16 is wrong by 1e-2
    torch.testing.assert_close(out, expected[5], rtol=0.05, atol=0.05)
    assert out.dtype == torch.bfloat16 and state.mass.dtype == torch.float32


@torch.no_grad()
def test_empty_slots_are_left_out_or_read_as_zeros(language):
    x = torch.randn(2, B, C)
    outs = {}
    for kind in ("mask", "literal"):
        block = Block("abc-global", {"abc_global_every": 4, "abc_empty_slots": kind}, torch.float32)
        outs[kind] = block.step(x[0], empty(block.mechanism, B, E, x), 1)
    _, out, _, v = block.projections
    torch.testing.assert_close(outs["mask"], out(v(x[0])))  # one slot of N holds something
    assert not torch.allclose(outs["mask"], outs["literal"], atol=1e-2)


@torch.no_grad()
def test_dropout_of_a_mechanism_in_training_is_that_of_the_general_way():
    block, x = Block("abc-mlp", {}, torch.float32, dropout=0.5), torch.randn(9, B, C)
    _, state = block.extend(None, x[:8], 0)
    outs = {}
    for training in (True, False):
        block.mechanism.train(training)
        torch.manual_seed(1)
        outs[training] = block.step(x[8], state.fork(), 9)
        torch.manual_seed(1)
        expected, _ = block.extend(state.fork(), x[8:], 8)
        torch.testing.assert_close(outs[training], expected[0], rtol=0, atol=1e-5)
    assert not torch.allclose(outs[True], outs[False], atol=1e-3)


@torch.no_grad()
def test_more_slots_than_c_has_room_for(monkeypatch):
    monkeypatch.setattr(native, "MAX_SLOTS", N - 1)
    monkeypatch.setattr(native, "slot_step", lambda: lambda *_: pytest.fail("C was called"))
    block, x = Block("abc-mlp", {}, torch.float32), torch.randn(1, B, C)
    expected, _ = block.extend(None, x, 0)
    out = block.step(x[0], empty(block.mechanism, B, E, x), 1)
    torch.testing.assert_close(out, expected[0], rtol=0, atol=1e-5)


class OfKeys(SlotSums):
    """A control that says nothing about how it comes about."""

    def control(self, k, rows):
        return k[..., : self.slots].exp()


@pytest.mark.parametrize(
    "mechanism",
    [
        build("abc-mlp", D, H, input_dim=C + 1),  # its inputs are not what the queries are projected from
        build("abc-pool", D, H),  # asks for the lengths of the sequences
        build("abc-cluster", D, H),
        OfKeys(D, H),
    ],
    ids=lambda x: type(x).__name__,
)
@torch.no_grad()
def test_self_attention_goes_without_the_kernel_where_it_does_not_know_the_control(mechanism):
    q, out, k, v = (nn.Linear(C, C) for _ in range(4))
    assert type(step_of(mechanism, Projections(q, out, k, v))) is Step
    assert type(step_of(mechanism, Projections(q, out))) is SlotStep  # which only reads
