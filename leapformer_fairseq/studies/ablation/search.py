"""Which plans a targeted ablation trains and which one it recommends, as functions of plans and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ...attention import find
from ...support.errors import LeapformerError

Plan = dict[str, tuple[str, ...]]  # block -> the mechanism of each layer
LOSS_STEP = 1e-3  # fairseq rounds losses to three digits


class Slot(NamedTuple):
    """What is replaced at once: the layers from `start` to before `stop` of a block."""

    block: str
    start: int
    stop: int

    @property
    def layers(self) -> str:
        """The first and the last of its layers, "1–4", or "1" where there is one."""
        return "–".join(dict.fromkeys((str(self.start + 1), str(self.stop))))


class Candidate(NamedTuple):
    """A mechanism in place of the baseline's in one slot."""

    slot: Slot
    mechanism: str


@dataclass(frozen=True)
class Result:
    """What a finished training left.

    loss: the best validation loss, of `epoch` after `updates`
    wps: median words per second in training, None when the log has none
    """

    loss: float
    wps: float | None
    epoch: int | None
    updates: int | None
    parameters: int
    signature: str


def plan_text(plan: Plan) -> str:
    """A plan in one line: the blocks' plans, in the grammar of the flags, between slashes."""
    return "/".join(layers_text(names) for names in plan.values())


def layers_text(names: Sequence[str]) -> str:
    """The inverse of `expand_plan`, as short as it can be: "leap", or "softmax*2,leap"."""
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    if len(runs) == 1:
        return runs[0][0]
    return ",".join(name if count == 1 else f"{name}*{count}" for name, count in runs)


def slots(layers: Mapping[str, int], groups: int = 1) -> list[Slot]:
    """Every block of `layers` (its number of layers) cut into `groups` runs of layers, as even as can be.

    Raises LeapformerError for more groups than layers.
    """
    for block, count in layers.items():
        if not 1 <= groups <= count:
            raise LeapformerError(f"--layer-groups {groups}: {block} has {count} layers; give 1 to {count}")
    return [
        Slot(block, i * count // groups, (i + 1) * count // groups)
        for block, count in layers.items()
        for i in range(groups)
    ]


def replaced(plan: Plan, candidate: Candidate) -> Plan:
    """The plan with the candidate's mechanism in its slot."""
    (block, start, stop), mechanism = candidate
    names = plan[block]
    return {**plan, block: (*names[:start], *[mechanism] * (stop - start), *names[stop:])}


def candidates(baseline: Plan, places: Iterable[Slot], mechanisms: Iterable[str]) -> list[Candidate]:
    """Every mechanism in every slot, but for what the baseline has there."""
    every = [Candidate(slot, mechanism) for slot in places for mechanism in dict.fromkeys(mechanisms)]
    return [candidate for candidate in every if replaced(baseline, candidate) != baseline]


def relative_difference(loss: float, baseline: float) -> float:
    """How much larger a loss is than the baseline's, as a part of it."""
    return (loss - baseline) / max(abs(baseline), LOSS_STEP)


def is_within(loss: float, baseline: float, tolerance: float) -> bool:
    """Whether the relative difference is at most `tolerance`, but for rounding."""
    return relative_difference(loss, baseline) <= tolerance + 1e-9


def speed_ratio(result: Result, baseline: Result) -> float | None:
    """How many times as fast as the baseline it trained; None where it was not measured."""
    return result.wps / baseline.wps if result.wps and baseline.wps else None


def objective(result: Result, baseline: Result, speed_weight: float) -> float:
    """The relative difference of the loss minus `speed_weight` times the logarithm of the speed ratio: less is better.

    Raises LeapformerError when speed counts and was not measured.
    """
    difference, ratio = relative_difference(result.loss, baseline.loss), speed_ratio(result, baseline)
    if not speed_weight:
        return difference
    if ratio is None:
        raise LeapformerError(
            f"--speed-weight {speed_weight}: a run was too short for its speed to be logged; "
            "give the training command a smaller --log-interval, or the weight 0"
        )
    return difference - speed_weight * math.log(ratio)


def recommend(
    plan: Plan,
    baseline: Result,
    found: Iterable[tuple[Candidate, Result]],
    tolerance: float,
    speed_weight: float = 0.0,
) -> Plan:
    """The modular plan: in each slot the best mechanism of those whose loss is within `tolerance` of the baseline.

    `plan` is the baseline's, which stays where nothing is within tolerance. The best has the least `objective`; of
    several the first is taken that generates from a state of constant size.
    """
    near: dict[Slot, list[tuple[float, bool, str]]] = {}
    for (slot, mechanism), result in found:
        if is_within(result.loss, baseline.loss, tolerance):
            rank = (
                objective(result, baseline, speed_weight),
                not find(mechanism).capabilities.constant_state,
                mechanism,
            )
            near.setdefault(slot, []).append(rank)
    for slot, ranks in near.items():
        *_, best = min(ranks, key=lambda rank: rank[:2])
        plan = replaced(plan, Candidate(slot, best))
    return plan


def without_the_worst(plan: Plan, baseline: Plan, found: Iterable[tuple[Candidate, Result]]) -> Plan:
    """The plan with the baseline's mechanism again where its replacement, alone, had the largest loss."""
    there = [(result.loss, candidate.slot) for candidate, result in found if replaced(plan, candidate) == plan]
    _, (block, start, stop) = max(there)
    return {**plan, block: (*plan[block][:start], *baseline[block][start:stop], *plan[block][stop:])}
