"""What is particular about the step of recurrent mechanisms; that it is the same function is in test_step.py."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import Projections, TokenInfo, step_of
from leapformer_fairseq.attention.ops import cpu as native

from ..compiler import needs_compiler
from .cases import OURS, RECURRENT, build, empty, scanned, written
from .cases import VARIANTS as CONVOLVED

B, H, D, C, PROMPT, T = 2, 3, 8, 24, 7, 40
VARIANTS = [
    ("gated-relu", {}),
    ("gated-leap", {"leap_per_head": True}),
    ("gated-leap", {"leap_input": "raw"}),
    ("retention", {"output_gate": "sigmoid"}),
    ("simple-gla", {"gate_init": "published"}),
    ("gla", {"gate_init": "published"}),
    ("hgrn2", {}),
    ("hgrn2", {"hgrn_floor": 0.3, "output_gate": "swish"}),
    ("delta", {}),
    ("delta", {"delta_negative": True, "output_gate": "swish"}),
    ("gated-delta", {}),
    ("gated-delta", {"gate_init": "published", "output_gate": "none"}),
    ("kda", {"gate_init": "published"}),
    ("simple-gla-conv", {}),
    ("delta-conv", {"delta_negative": True, "output_gate": "swish"}),
    ("kda-conv", {"gate_init": "published"}),
]
each = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=["-".join(map(str, (name, *options.values()))) for name, options in VARIANTS]
)
each_source = pytest.mark.parametrize(("name", "options"), [x for x in VARIANTS if x[0] not in CONVOLVED])
TORCH_ONLY = {"rfa-gate"}


class Block:
    """A mechanism, whose gates differ from token to token, with its projections, in float32 and in float64."""

    def __init__(self, name, options, values=D, inputs=C):
        """`inputs`: the width of what keys and values are projected from."""
        torch.manual_seed(0)
        self.mechanism = build(name, D, H, input_dim=inputs, **options)
        self.convolved = getattr(self.mechanism, "convolution", None) is not None
        with torch.no_grad():
            for parameter in self.mechanism.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        widths = ((C, H * D), (H * values, C), (inputs, H * D), (inputs, H * values))
        self.projections = Projections(*(nn.Linear(*width) for width in widths))

    def double(self):
        exact = deepcopy(self)
        exact.mechanism.double()
        for projection in exact.projections:
            projection.double()
        return exact

    def step(self, cross=False):
        return step_of(self.mechanism, self.projections._replace(k=None, v=None) if cross else self.projections)

    def side(self, projection, x):
        return projection(x).unflatten(-1, (H, -1)).permute(1, 2, 0, 3)

    def extend(self, state, x, seen):
        """The general way: output (T, B, C) and state of tokens x (T, B, C) that follow `seen` others."""
        tokens = replace(TokenInfo.following(torch.tensor([seen]), len(x)), inputs=x.transpose(0, 1))
        q, out, k, v = self.projections
        heads, state = scanned(self.mechanism, state, *(self.side(one, x) for one in (q, k, v)), tokens)
        return out(heads.permute(2, 0, 1, 3).flatten(2)), state

    def source(self, x):
        """The state of a source x (S, B, C)."""
        _, _, k, v = self.projections
        tokens = replace(TokenInfo.whole(len(x)), inputs=x.transpose(0, 1))
        return written(self.mechanism, self.side(k, x), self.side(v, x), tokens)


@each
@torch.no_grad()
def test_steps_follow_a_prompt_and_the_beam(name, options):
    """In C 1e-5, in PyTorch 1e-10 from one pass in float64; and the general way takes over what the steps left."""
    block = Block(name, options)
    exact, x = block.double(), torch.randn(T, B, C)
    ways = [("C", block, 1e-5), ("torch", block, 1e-5), ("torch", exact, 1e-10)]
    steps = [one.step() for _, one, _ in ways]
    states = [one.extend(None, x[:PROMPT].to(step.weight), 0)[1] for (_, one, _), step in zip(ways, steps, strict=True)]
    history = x[:PROMPT]
    for t in range(PROMPT, T - 1):
        history = torch.cat([history, x[t : t + 1]])
        expected = exact.extend(None, history.double(), 0)[0][-1]
        order = torch.tensor([1, 0] if t % 3 else [1, 1])
        for i, ((way, _, tolerance), step) in enumerate(zip(ways, steps, strict=True)):
            with native.turned_off() if way == "torch" else nullcontext():
                out = step(x[t].to(step.weight), states[i], t + 1)
            torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)
            states[i] = states[i].reorder(order)
        history = history[:, order]
    expected, last = exact.extend(None, torch.cat([history, x[-1:]]).double(), 0)
    for (_, one, tolerance), state in zip(ways, states, strict=True):
        out, state = one.extend(state, x[-1:].to(state.kv), T - 1)
        torch.testing.assert_close(out[-1].double(), expected[-1], rtol=0, atol=tolerance)
        for part, tensor in last.tensors().items():
            torch.testing.assert_close(getattr(state, part).double(), tensor, rtol=0, atol=10 * tolerance)


@each_source
@torch.no_grad()
def test_hypotheses_share_the_state_of_their_source(name, options, language):
    block, n = Block(name, options, inputs=C + 5), 3
    block = block.double() if language == "torch" else block
    dtype = block.projections.q.weight.dtype
    source, x = torch.randn(11, B, C + 5, dtype=dtype), torch.randn(B * n, C, dtype=dtype)
    state = block.source(source)
    before, copies = state.fork(), state.reorder(torch.arange(B).repeat_interleave(n))
    tokens = replace(TokenInfo.following(torch.tensor([0]), 1), inputs=x.unsqueeze(1))
    heads = block.mechanism.read(copies, block.side(block.projections.q, x.unsqueeze(0)), tokens)
    out = block.step(cross=True)(x, state, 1)
    torch.testing.assert_close(
        out, block.projections.out(heads.flatten(1)), rtol=0, atol=1e-5 if language == "C" else 1e-10
    )
    assert torch.equal(state.kv, before.kv), "reading changes nothing"


@needs_compiler
@each
@torch.no_grad()
def test_c_serves_after_a_prompt_and_over_a_source(name, options, monkeypatch):
    block, x = Block(name, options), torch.randn(9, B, C)
    _, state = block.extend(None, x[:8], 0)
    source = None if block.convolved else block.source(x)
    for used in ("write", "read", "scan"):
        monkeypatch.setattr(type(block.mechanism), used, lambda *_: pytest.fail("PyTorch was used"))
    held = state.tensors()
    block.step()(x[8], state, 9)
    assert all(state.tensors()[part] is tensor for part, tensor in held.items()), "in place"
    if source is not None:
        block.step(cross=True)(x[8], source, 9)


def test_all_recurrent_mechanisms_but_these_are_served():
    assert {name for name, _ in VARIANTS} == OURS.intersection(RECURRENT) - TORCH_ONLY


@torch.no_grad()
def test_values_may_be_wider_than_heads(language):
    block, x = Block("gated-delta", {"output_gate": "none"}, values=13), torch.randn(4, B, C)
    step, state, general = block.step(), empty(block.mechanism, B, 13, x), None
    for t in range(len(x)):
        out = step(x[t], state, t + 1)
        expected, general = block.extend(general, x[t : t + 1], t)
        torch.testing.assert_close(out, expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("why", ["no compiler", "half precision", "wide heads", "strides"])
@pytest.mark.parametrize("name", ["gated-delta", "gated-leap", "delta-conv"])
@torch.no_grad()
def test_where_c_does_not_serve_pytorch_does(name, why, monkeypatch, tmp_path):
    block, x = Block(name, {}), torch.randn(3, B, C)
    tolerance = 0.1 if why == "half precision" else 1e-5
    expected, _ = block.extend(None, x, 0)
    if why == "no compiler":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv("CC", "no-such-compiler")
        native._loaded.cache_clear()
    else:
        for kernel in ("step", "recurrent_step"):
            monkeypatch.setattr(native, kernel, lambda: lambda *_: pytest.fail("C was called"))
        if why == "wide heads":
            monkeypatch.setattr(native, "MAX_DIM", D - 1)
        elif why == "half precision":
            block.mechanism.bfloat16()
            for projection in block.projections:
                projection.bfloat16()
    try:
        step, state = block.step(), empty(block.mechanism, B, D, x)
        state.kv = state.kv.mT.contiguous().mT if why == "strides" else state.kv
        out = torch.stack([step(x[t].to(step.weight), state, t + 1) for t in range(3)])
    finally:
        native._loaded.cache_clear()
    assert state.kv.dtype == torch.float32
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["gated-delta", "hgrn2", "simple-gla"])
@torch.no_grad()
def test_gates_that_close_or_open_for_good(name, language):
    """The state is that of the last token, or keeps all; nothing overflows."""
    block, x = Block(name, {"output_gate": "none"}), torch.randn(6, B, C)
    for begin in (-1e4, -1e2, 1e4):
        block.mechanism.gate.begin.fill_(begin)
        step, state = block.step(), empty(block.mechanism, B, D, x)
        out = torch.stack([step(x[t], state, t + 1) for t in range(len(x))])
        expected, _ = block.extend(None, x, 0)
        assert expected.isfinite().all()
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
