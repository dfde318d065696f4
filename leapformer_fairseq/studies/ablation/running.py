"""The ablation as a study for the engine.

OUT/runs/PLAN/train.log holds the output of all attempts of a training, OUT/runs/PLAN/done the result of a finished one.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...support.signature import signature
from .. import engine, trainings
from ..engine import Cell, Command, State
from ..training_command import best_model
from .report import write_reports
from .search import Result, is_within, objective, plan_text, recommend, without_the_worst
from .study import BASELINE, COMBINATION, FAILED, REFUSED, REPLACEMENT, TO_DO, TRAINED, Run, Study

LOG, DONE, NOUN = "train.log", "done", "ablation"
FIELDS = tuple(field.name for field in fields(Result))


class Ablation(engine.Study):
    """Trains the baseline, every replacement, and what is recommended, unless that is one of the runs.

    The costs of replacements may add up: while a combination is beyond the tolerance, its worst replacement is undone
    and the rest trained again. The baseline and combinations, on which the next step depends, are trained alone.
    """

    commands: ClassVar[str] = ""  # the report writes all, in the order of the runs

    def __init__(self, plan: Study) -> None:
        self.plan, self.out = plan, plan.out

    def reserve(self) -> None:
        """Raise LeapformerError if the folder holds the ablation of another training command."""
        trainings.reserve(self.out, self.plan.training.identity, NOUN)

    def seen(self, state: State) -> Study:
        """The runs, combinations included, with what is known about them, and the plan that is recommended.

        Raises LeapformerError if speed counts but was not measured.
        """
        settings = self.plan.settings
        study = replace(self.plan, runs=[_seen(run, state) for run in self.plan.runs])
        baseline, *others = study.runs
        if baseline.result is None or any(run.status == TO_DO for run in others):
            return study
        results = [(run.candidate, run.result) for run in others if run.candidate and run.result]
        study.recommended = recommend(
            baseline.plan, baseline.result, results, settings.tolerance, settings.speed_weight
        )
        while study.run_of(study.recommended) is None:
            run = _seen(Run(study.recommended, COMBINATION), state)
            study.runs.append(run)
            if run.result and not is_within(run.result.loss, baseline.result.loss, settings.tolerance):
                study.recommended = without_the_worst(run.plan, baseline.plan, results)
        return study

    def cells(self, state: State) -> list[Cell]:
        """A training for each run that the model does not refuse."""
        study = self.seen(state)
        return [self._cell(run, study) for run in study.runs if run.status != REFUSED]

    def _cell(self, run: Run, study: Study) -> Cell:
        is_baseline = run.role == BASELINE
        return Cell(
            run.name,
            (Command(tuple(study.command(run)[len(trainings.PROGRAM) :]), LOG, tell=self._tell),),
            f"runs/{run.name}/{DONE}",
            collect=partial(collect, threads=None if study.settings.jobs == 1 else 1),
            fields=FIELDS,
            needs=() if is_baseline else (study.runs[0].name,),
            alone=run.role != REPLACEMENT,
            vital=is_baseline,
            title=f"the baseline {plan_text(run.plan)}" if is_baseline else plan_text(run.plan),
        )

    def _tell(self, entry: dict[str, Any]) -> str:
        training = self.plan.training
        return f"valid {training.metric} {entry[training.measure]}" if training.measure in entry else ""

    def report(self, state: State) -> None:
        """Write table.md, table.json, commands.sh and ablation.svg.

        Raises LeapformerError if speed counts but the baseline's was not measured.
        """
        study = self.seen(state)
        if baseline := study.runs[0].result:
            objective(baseline, baseline, study.settings.speed_weight)
        write_reports(study)


def _seen(run: Run, state: State) -> Run:
    """The run with its result or the reason why it failed, if there is one."""
    if run.name in state.results:
        values = state.results[run.name]
        return replace(run, status=TRAINED, result=Result(**{name: values[name] for name in FIELDS}))
    if run.name in state.failed:
        return replace(run, status=FAILED, reason=state.failed[run.name])
    return run


def collect(folder: Path, threads: int | None) -> dict[str, Any]:
    """The fields of the result of a training in `folder` that has ended. `threads` are those that it was given.

    Raises LeapformerError if it left no validation loss.
    """
    best = best_model(folder, LOG)
    return {
        "loss": best["valid_loss"],
        "wps": trainings.speed(folder / LOG, "wps"),
        "epoch": best["epoch"],
        "updates": best["updates"],
        "parameters": best["parameters"],
        "signature": signature(**({} if threads is None else {"threads": threads})),
    }
