"""An ablation as a list of runs: plans to train, their results, and the plan that is recommended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...attention import find
from ...support.errors import LeapformerError
from ..training_command import Training, plan_everywhere
from .search import Candidate, Plan, Result, candidates, plan_text, replaced, slots

TO_DO, TRAINED, FAILED, REFUSED = "to do", "trained", "failed", "refused"
BASELINE, REPLACEMENT, COMBINATION = "baseline", "replacement", "combination"


@dataclass
class Run:
    """A plan to train.

    role:   the baseline, a replacement in one slot (`candidate`), or a combination of several.
    status: "to do", "trained" (with a `result`), "failed" or "refused" (with a `reason`).
    """

    plan: Plan
    role: str
    candidate: Candidate | None = None
    status: str = TO_DO
    result: Result | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The name of its folder, in the form of the recipes' runs."""
        return plan_text(self.plan).translate(str.maketrans("/,*", "+__"))


@dataclass(frozen=True)
class Settings:
    """The replacements to try, and the criterion for accepting them.

    blocks:       None for all blocks of the model.
    tolerance:    the largest accepted relative difference of the loss to the baseline's.
    speed_weight: weight of the logarithm of the speed ratio against the relative difference.
    jobs:         trainings in parallel, each with one thread if there are several.
    """

    baseline: str = "softmax"
    mechanisms: tuple[str, ...] = ("leap", "relu", "cosformer")
    blocks: tuple[str, ...] | None = None
    layer_groups: int = 1
    tolerance: float = 0.01
    speed_weight: float = 0.0
    jobs: int = 1


@dataclass
class Study:
    """An ablation: the command that is varied, the runs (the baseline first), and the outcome.

    recommended: the modular plan, None until all replacements have been tried.
    """

    out: Path
    training: Training
    settings: Settings
    runs: list[Run]
    recommended: Plan | None = None

    def folder(self, run: Run) -> Path:
        return self.out / "runs" / run.name

    def command(self, run: Run) -> list[str]:
        return self.training.command(run.plan, self.folder(run))

    def run_of(self, plan: Plan | None) -> Run | None:
        """Return the run with this plan, or None."""
        return next((run for run in self.runs if run.plan == plan), None)


def plan_study(out: Path, training: Training, settings: Settings) -> Study:
    """Plan all runs except combinations, and mark what the model refuses.

    Raises LeapformerError for unknown mechanisms, blocks that the model lacks, and numbers out of range, and if the
    baseline or none of the replacements can be built.
    """
    _check(settings)
    layers = training.layers(settings.baseline)
    for block in settings.blocks or ():
        if block not in layers:
            raise LeapformerError(f"--blocks {block}: this model has {', '.join(layers)}")
    chosen = {block: count for block, count in layers.items() if block in (settings.blocks or layers)}
    baseline = plan_everywhere(settings.baseline, layers)
    study = Study(out, training, settings, [Run(baseline, BASELINE)])
    refusals: dict[tuple[str, str], str | None] = {}
    for candidate in candidates(baseline, slots(chosen, settings.layer_groups), settings.mechanisms):
        run = Run(replaced(baseline, candidate), REPLACEMENT, candidate)
        key = candidate.slot.block, candidate.mechanism  # a refusal holds for all layers of a block
        if key not in refusals:
            refusals[key] = training.refusal(run.plan)
        if reason := refusals[key]:
            run.status, run.reason = REFUSED, reason
        study.runs.append(run)
    if refusals and all(refusals.values()):
        ((block, mechanism), reason), *others = refusals.items()
        raise LeapformerError(f"nothing can be tried; of {len(others) + 1}, {mechanism} in {block}: {reason}")
    return study


def _check(settings: Settings) -> None:
    for mechanism in settings.mechanisms:
        find(mechanism)
    if not settings.tolerance >= 0:
        raise LeapformerError(f"--tolerance {settings.tolerance}: give 0 or more, e.g. 0.01 for one per cent")
    if not settings.speed_weight >= 0:
        raise LeapformerError(f"--speed-weight {settings.speed_weight}: give 0 or more; 0 is quality alone")
    if settings.jobs < 1:
        raise LeapformerError(f"--jobs {settings.jobs}: give at least 1")
    if settings.jobs > 1 and settings.speed_weight:
        raise LeapformerError(
            f"--jobs {settings.jobs} with --speed-weight {settings.speed_weight}: parallel trainings slow each other "
            "down; use --jobs 1 to let speed count"
        )
