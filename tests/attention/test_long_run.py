"""200,000 decoding steps in float32 beside float64, the same numbers in both: do sums stagnate, or errors grow?

One mechanism of each family with a state of constant size. Marked `full`; `pytest --all tests/attention`
runs it, with `-s` to see the errors. A state in bfloat16 is the control: it stagnates, and the same check notices.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import CAUSAL, Projections, step_of
from leapformer_fairseq.attention.linear.base import LinearState

from .cases import (
    DIM,
    HEADS,
    build,
)

STEPS, EVERY, BATCH, WIDTH = 200_000, 1000, 2, HEADS * DIM
# name, options, what inputs are multiplied by, the largest error allowed, relative to the outputs of 1000 steps
CASES = [
    ("leap", {}, 1, 1e-4),
    ("rope", {}, 1, 1e-4),
    ("abc-mlp", {"abc_slots": 8}, 4, 1e-3),  # grows with the steps: what is small beside the sum is lost
    ("abc-window", {"abc_slots": 8}, 1, 1e-5),
    ("luna", {"luna_length": 8, "luna_packed": "learned", "block": "decoder-self"}, 1, 1e-4),
]


def blocks(name, options):
    """The step and the empty state of a mechanism in float32 and in float64, with the same weights."""
    torch.manual_seed(0)
    found = []
    mechanism = build(name, DIM, HEADS, **options)
    stock = Projections(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    for dtype in (torch.float32, torch.float64):
        one, projections = copy.deepcopy(mechanism).to(dtype), [copy.deepcopy(x).to(dtype) for x in stock]
        one.receive(Projections(*projections))
        state = one.init_state(BATCH, DIM, torch.zeros(1, dtype=dtype), mask=CAUSAL)
        found.append([step_of(one, Projections(*projections)), state, dtype])
    return found


def errors(name, options, factor, steps=STEPS, spoil=None) -> list[float]:
    """The largest error of every 1000 steps, relative to the largest output of these."""
    both, found = blocks(name, options), []
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for start in range(0, steps, EVERY):
            xs = factor * (torch.randn(EVERY, BATCH, WIDTH, generator=numbers) + 0.3)
            outputs = []
            for block in both:
                step, state, dtype = block
                outs = []
                for i, x in enumerate(xs.to(dtype)):
                    out = step(x, state, start + i + 1)
                    if spoil is not None and dtype == torch.float32:
                        state = spoil(state)
                    outs.append(out)
                block[1] = state
                outputs.append(torch.stack(outs).double())
            mine, exact = outputs
            assert torch.isfinite(mine).all()
            found.append(float((mine - exact).abs().max() / exact.abs().max()))
    return found


@pytest.mark.full
@pytest.mark.parametrize(("name", "options", "factor", "allowed"), CASES, ids=[case[0] for case in CASES])
def test_errors_stay_small(name, options, factor, allowed):
    found = errors(name, options, factor)
    marks = {step: f"{found[step // EVERY - 1]:.1e}" for step in (1000, 10_000, 50_000, 100_000, 200_000)}
    print(f"\n{name}: largest {max(found):.1e}, by steps {marks}")
    assert max(found) < allowed


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_first_steps(case):
    """The same for 1,000 steps, in every run."""
    name, options, factor, allowed = case
    assert max(errors(name, options, factor, steps=1000)) < allowed


def test_a_state_that_stagnates_is_noticed():
    found = errors("leap", {}, 1, steps=2000, spoil=lambda state: LinearState(state.kv.bfloat16().float()))
    assert max(found) > 1e-2
