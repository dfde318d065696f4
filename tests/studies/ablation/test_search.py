"""What a targeted ablation trains and recommends, against independent computations."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leapformer_fairseq.modules import expand_plan
from leapformer_fairseq.studies.ablation.search import (
    Candidate,
    Result,
    Slot,
    candidates,
    is_within,
    layers_text,
    objective,
    plan_text,
    recommend,
    relative_difference,
    replaced,
    slots,
)
from leapformer_fairseq.support.errors import LeapformerError

ENCODER, DECODER = Slot("encoder-self", 0, 2), Slot("decoder-self", 0, 3)
SOFTMAX = {"encoder-self": ("softmax",) * 2, "decoder-self": ("softmax",) * 3}


def result(loss: float, wps: float | None = 100.0) -> Result:
    return Result(loss, wps, 1, 10, 1000, "signature")


@given(st.lists(st.sampled_from(["softmax", "leap", "relu"]), min_size=1, max_size=12))
def test_a_plan_in_words_is_read_back(names):
    assert expand_plan(layers_text(names), len(names)) == names


def test_a_plan_names_its_blocks_in_order():
    plan = replaced(SOFTMAX, Candidate(Slot("decoder-self", 1, 3), "leap"))
    assert plan_text(plan) == "softmax/softmax,leap*2"
    assert plan_text(SOFTMAX) == "softmax/softmax", "the old plan is as it was"


@pytest.mark.parametrize(("layers", "groups"), [(6, 1), (6, 2), (7, 3), (5, 5), (12, 5)])
def test_slots_cover_every_layer_once_and_evenly(layers, groups):
    found = slots({"encoder-self": layers, "decoder-self": layers}, groups)
    assert [slot.block for slot in found] == ["encoder-self"] * groups + ["decoder-self"] * groups
    covered = [layer for slot in found[:groups] for layer in range(slot.start, slot.stop)]
    assert covered == list(range(layers))
    sizes = [slot.stop - slot.start for slot in found]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("groups", [0, 3])
def test_groups_that_do_not_fit_are_refused(groups):
    with pytest.raises(LeapformerError, match=f"--layer-groups {groups}: decoder-self has 2 layers; give 1 to 2"):
        slots({"encoder-self": 4, "decoder-self": 2}, groups) if groups else slots({"decoder-self": 2}, groups)


def test_layers_of_a_slot_in_words():
    assert [slot.layers for slot in slots({"decoder-self": 3}, 2)] == ["1", "2–3"]


def test_every_mechanism_is_tried_in_every_slot_but_for_what_is_there():
    mixed = {**SOFTMAX, "encoder-self": ("leap", "leap")}
    found = candidates(mixed, [ENCODER, DECODER], ["leap", "relu", "leap"])
    assert found == [Candidate(ENCODER, "relu"), Candidate(DECODER, "leap"), Candidate(DECODER, "relu")]


def test_the_objective_weighs_speed_by_its_logarithm():
    baseline, other = result(5.0, 100), result(5.1, 150)
    assert relative_difference(5.1, 5.0) == pytest.approx(0.02)
    assert objective(other, baseline, 0) == pytest.approx(0.02)
    assert objective(other, baseline, 0.1) == pytest.approx(0.02 - 0.1 * math.log(1.5))
    assert objective(result(5.0, 50), baseline, 0.1) == pytest.approx(0.1 * math.log(2))


def test_speed_that_was_not_measured_cannot_count():
    baseline, other = result(5.0), result(5.1, None)
    assert objective(other, baseline, 0) == pytest.approx(0.02)
    with pytest.raises(LeapformerError, match="--speed-weight 0.5: .* give the training command a smaller"):
        objective(other, baseline, 0.5)


def test_a_loss_of_zero_is_no_division_by_zero():
    assert math.isfinite(relative_difference(0.002, 0.0)) and not is_within(0.002, 0.0, 0.01)


@pytest.mark.parametrize(("loss", "within"), [(5.05, True), (5.051, False), (4.0, True)])
def test_the_tolerance_is_inclusive(loss, within):
    assert is_within(loss, 5.0, 0.01) is within


def tried(losses: dict[tuple[Slot, str], float]) -> list[tuple[Candidate, Result]]:
    return [(Candidate(*key), result(loss)) for key, loss in losses.items()]


def test_the_plan_has_the_best_within_tolerance_and_else_the_baseline():
    found = tried(
        {
            (ENCODER, "leap"): 5.04,
            (ENCODER, "relu"): 5.02,  # worse than the baseline, but within tolerance: it replaces it
            (DECODER, "leap"): 5.06,
            (DECODER, "relu"): 5.90,
        }
    )
    assert plan_text(recommend(SOFTMAX, result(5.0), found, 0.01)) == "relu/softmax"
    assert plan_text(recommend(SOFTMAX, result(5.0), found, 0.02)) == "relu/leap"
    assert plan_text(recommend(SOFTMAX, result(5.0), found, 0.0)) == "softmax/softmax"
    assert plan_text(recommend(SOFTMAX, result(5.0), [], 0.01)) == "softmax/softmax", "all failed"


def test_a_tie_goes_to_the_constant_state_and_then_to_the_first():
    relu = {"encoder-self": ("relu",) * 2, "decoder-self": ("relu",) * 3}
    found = tried({(ENCODER, name): 5.0 for name in ("softmax", "leap", "rope")})
    assert plan_text(recommend(relu, result(5.0), found, 0.01)) == "leap/relu"
    better = tried({(ENCODER, "softmax"): 4.999, (ENCODER, "leap"): 5.0})
    assert plan_text(recommend(relu, result(5.0), better, 0.01)) == "softmax/relu", "no tie"


def test_speed_decides_where_it_is_given_weight():
    found = [
        (Candidate(ENCODER, "leap"), result(5.00, 100)),
        (Candidate(ENCODER, "relu"), result(5.02, 200)),
        (Candidate(ENCODER, "elu"), result(5.20, 900)),  # the tolerance holds for the fastest, too
    ]
    assert plan_text(recommend(SOFTMAX, result(5.0, 100), found, 0.01)) == "leap/softmax"
    assert plan_text(recommend(SOFTMAX, result(5.0, 100), found, 0.01, speed_weight=0.01)) == "relu/softmax"


@given(
    st.lists(st.integers(4900, 5200), min_size=6, max_size=6),
    st.lists(st.integers(50, 300), min_size=6, max_size=6),
    st.sampled_from([0.0, 0.005, 0.01, 0.03]),
    st.sampled_from([0.0, 0.02, 0.5]),
)
def test_no_other_plan_is_better(losses, speeds, tolerance, weight):
    """Over all combinations of what is within tolerance, as the definition has it, summing the objectives."""
    keys = list(itertools.product((ENCODER, DECODER), ("leap", "relu", "elu")))
    values = zip(losses, speeds, strict=True)
    found = {Candidate(*key): result(loss / 1000, wps) for key, (loss, wps) in zip(keys, values, strict=True)}
    chosen = recommend(SOFTMAX, result(5.0, 100), found.items(), tolerance, weight)

    def cost(slot: Slot, mechanism: str) -> float:
        one = found[Candidate(slot, mechanism)]
        return (one.loss - 5.0) / 5.0 - weight * math.log(one.wps / 100)

    for slot in (ENCODER, DECODER):
        (name,) = set(chosen[slot.block])
        near = [m for m in ("leap", "relu", "elu") if found[Candidate(slot, m)].loss <= 5.0 * (1 + tolerance) + 1e-6]
        assert (name in near) if near else name == "softmax"
        if near:
            assert cost(slot, name) == min(cost(slot, m) for m in near)
