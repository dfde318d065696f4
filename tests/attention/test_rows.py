"""The step of a graph for LeaPformer's self-attention, and the angles of a graph."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import CAUSAL, TokenInfo
from leapformer_fairseq.attention.decoding.rows import RowsStep
from leapformer_fairseq.attention.kernels import Projections
from leapformer_fairseq.attention.layers import ProportionNetwork
from leapformer_fairseq.attention.linear.reweighting import angle
from leapformer_fairseq.attention.registry import build

HEADS, DIM = 3, 4
OPTIONS = [
    {"leap_factor": factor, "leap_per_head": per_head, "leap_input": given}
    for factor, per_head, given in product((2, 4), (False, True), ("features", "raw"))
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize(("name", "bias"), [("leap", True), ("gated-leap", False)])
def test_step_of_rows_equals_the_mechanism(name, options, bias):
    """Several tokens one after the other, in float64, with other widths of hidden layers, or none."""
    width = HEADS * DIM
    mechanism = build(name, DIM, HEADS, dropout=0.0, block="decoder-self", input_dim=width, **options).double()
    q, k, v, out = (nn.Linear(width, width, bias).double() for _ in range(4))
    for parameter in mechanism.parameters():
        nn.init.normal_(parameter)
    step = RowsStep.of(mechanism, Projections(q, out, k, v))
    states = [mechanism.loop_state(5, DIM, torch.zeros(5, width).double()) for _ in range(2)]
    for position in range(1, 4):
        x = torch.randn(5, width, dtype=torch.float64)
        heads = [side(x).view(5, HEADS, 1, DIM) for side in (q, k, v)]
        tokens = TokenInfo(torch.full((1, 1), position), inputs=x.unsqueeze(1))
        expected, states[0] = mechanism.loop(states[0], *heads, tokens, tokens, CAUSAL)
        found, states[1] = step(x, states[1])
        assert float((found - expected).abs().max()) < 1e-12
        for one, other in zip(*(state.tensors().values() for state in states), strict=True):
            assert float((one - other).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["relu", "softmax", "gated-delta"])
def test_other_mechanisms_have_no_step_of_rows(name):
    mechanism = build(name, DIM, HEADS, dropout=0.0, block="decoder-self", input_dim=HEADS * DIM)
    projection = nn.Linear(HEADS * DIM, HEADS * DIM)
    assert RowsStep.of(mechanism, Projections(*[projection] * 4)) is None


def test_cross_attention_has_no_step_of_rows():
    mechanism = build("leap", DIM, HEADS, dropout=0.0, block="decoder-cross", input_dim=HEADS * DIM)
    assert RowsStep.of(mechanism, Projections(*[nn.Linear(HEADS * DIM, HEADS * DIM)] * 2)) is None


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("heads", [None, HEADS])
@pytest.mark.parametrize("factor", [1, 2, DIM])
def test_cosines_and_sines_of_a_graph(factor, heads, count):
    network = ProportionNetwork(DIM, factor, heads).double()
    x = torch.randn(2, HEADS, count, DIM, dtype=torch.float64)
    at = angle(network(x))
    assert float((network.halves(x) - torch.cat([at.cos(), at.sin()], -1)).abs().max()) < 1e-12
