"""Choose the plans that a targeted ablation trains and the one that it recommends: functions of plans and results."""

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
    """Layers that are replaced together: those of a block from `start` to before `stop`, counted from 0."""

    block: str
    start: int
    stop: int

    @property
    def layers(self) -> str:
        """The first and the last layer, counted from 1: "1–4", or "1" for a single layer."""
        return "–".join(dict.fromkeys((str(self.start + 1), str(self.stop))))


class Candidate(NamedTuple):
    """A mechanism in place of the baseline's in one slot."""

    slot: Slot
    mechanism: str


@dataclass(frozen=True)
class Result:
    """The result of a finished training.

    loss: the best validation loss, in `epoch` after `updates`.
    wps:  median words per second in training, None if the log has none.
    """

    loss: float
    wps: float | None
    epoch: int | None
    updates: int | None
    parameters: int
    signature: str


def plan_text(plan: Plan) -> str:
    """Return a plan in one line: the blocks' plans, in the grammar of the flags, separated by slashes."""
    return "/".join(layers_text(names) for names in plan.values())


def layers_text(names: Sequence[str]) -> str:
    """Return the shortest text that `expand_plan` turns into these names: "leap", or "softmax*2,leap"."""
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    if len(runs) == 1:
        return runs[0][0]
    return ",".join(name if count == 1 else f"{name}*{count}" for name, count in runs)


def slots(layers: Mapping[str, int], groups: int = 1) -> list[Slot]:
    """Cut every block of `layers`, {block: number of layers}, into `groups` runs of layers, as even as possible.

    Raises LeapformerError for fewer than one group, or more groups than layers.
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
    """Return the plan with the candidate's mechanism in its slot."""
    (block, start, stop), mechanism = candidate
    names = plan[block]
    return {**plan, block: (*names[:start], *[mechanism] * (stop - start), *names[stop:])}


def candidates(baseline: Plan, places: Iterable[Slot], mechanisms: Iterable[str]) -> list[Candidate]:
    """Return every mechanism in every slot, except where that is the baseline itself."""
    every = [Candidate(slot, mechanism) for slot in places for mechanism in dict.fromkeys(mechanisms)]
    return [candidate for candidate in every if replaced(baseline, candidate) != baseline]


def relative_difference(loss: float, baseline: float) -> float:
    """Return (loss - baseline) / |baseline|; below `LOSS_STEP` the divisor is `LOSS_STEP`."""
    return (loss - baseline) / max(abs(baseline), LOSS_STEP)


def is_within(loss: float, baseline: float, tolerance: float) -> bool:
    """Whether the relative difference is at most `tolerance`, up to rounding."""
    return relative_difference(loss, baseline) <= tolerance + 1e-9


def speed_ratio(result: Result, baseline: Result) -> float | None:
    """Return the training speed over the baseline's; None if either was not measured."""
    return result.wps / baseline.wps if result.wps and baseline.wps else None


def objective(result: Result, baseline: Result, speed_weight: float) -> float:
    """Return the relative difference of the loss minus `speed_weight` * log(speed ratio); less is better.

    Raises LeapformerError if speed counts but was not measured.
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
    results: Iterable[tuple[Candidate, Result]],
    tolerance: float,
    speed_weight: float = 0.0,
) -> Plan:
    """Return the modular plan: in each slot the best mechanism whose loss is within `tolerance` of the baseline's.

    `plan` is the baseline's, which stays in slots where nothing is within the tolerance. The best mechanism has the
    smallest `objective`; of equal ones, one that generates from a state of constant size comes first.
    """
    near: dict[Slot, list[tuple[float, bool, str]]] = {}
    for (slot, mechanism), result in results:
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


def without_the_worst(plan: Plan, baseline: Plan, results: Iterable[tuple[Candidate, Result]]) -> Plan:
    """Return the plan without its worst replacement, that with the largest loss on its own."""
    losses = [(result.loss, candidate.slot) for candidate, result in results if replaced(plan, candidate) == plan]
    _, (block, start, stop) = max(losses)
    return {**plan, block: (*plan[block][:start], *baseline[block][start:stop], *plan[block][stop:])}
