from __future__ import annotations

import pytest

from leapformer_fairseq.modules import expand_plan
from leapformer_fairseq.support.errors import LeapformerError


@pytest.mark.parametrize(
    ("plan", "layers", "names"),
    [
        ("leap", 3, ["leap"] * 3),
        ("leap", 1, ["leap"]),
        ("leap*3", 3, ["leap"] * 3),
        ("softmax,leap*2,relu", 4, ["softmax", "leap", "leap", "relu"]),
        (" softmax , leap * 2 ", 3, ["softmax", "leap", "leap"]),
    ],
)
def test_plans_expand(plan, layers, names):
    assert expand_plan(plan, layers) == names


@pytest.mark.parametrize(
    ("plan", "layers", "message"),
    [
        ("leep", 2, "unknown attention mechanism 'leep'; did you mean leap"),
        ("", 2, "unknown attention mechanism ''"),
        ("leap,relu", 3, "names 2 layers but the stack has 3"),
        ("leap*1", 3, "names 1 layers but the stack has 3"),
        ("leap*0", 3, "positive number after"),
        ("leap*x", 3, "positive number after"),
        ("leap*", 3, "positive number after"),
    ],
)
def test_bad_plans_are_refused(plan, layers, message):
    with pytest.raises(LeapformerError, match=message):
        expand_plan(plan, layers)
