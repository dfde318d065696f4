"""Reports of an ablation: its runs ranked, as table.md and table.json, and all its commands."""

from __future__ import annotations

import shlex
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ...scoring.pictures.scores import ablation_figure
from ...scoring.table import Column, Table, page
from ...support import user_dir
from ...support.files import write_json, write_text
from ...support.signature import signature
from ..training_command import plan_flags
from .search import Result, plan_text, relative_difference, replaced, speed_ratio
from .study import BASELINE, COMBINATION, FAILED, REFUSED, TO_DO, TRAINED, Run, Study

SPEED_NOTE = (
    "wps is the median of the words per second in a training's log. Speed was measured while training: it means "
    "something only if every run had the machine to itself."
)
TABLE, DATA, COMMANDS, PICTURE = "table.md", "table.json", "commands.sh", "ablation.svg"
_RANKS = (TRAINED, TO_DO, FAILED, REFUSED)

Row = dict[str, Any]


def write_reports(study: Study) -> None:
    """Write table.md, table.json, commands.sh and ablation.svg to the ablation's folder, each atomically."""
    content = {
        "arch": study.training.args.arch,
        "metric": study.training.metric,
        "settings": asdict(study.settings),
        "training": study.training.identity,
        "recommended": plan_text(study.recommended) if study.recommended else None,
        "outcome": outcome(study),
        "note": SPEED_NOTE,
        "rows": rows(study),
        "signature": signature(**({} if study.settings.jobs == 1 else {"threads": 1})),
    }
    write_json(study.out / DATA, content)
    alt = f"best validation {study.training.metric} by block and mechanism"
    picture = ablation_figure(content).save(study.out / PICTURE, alt)
    write_text(study.out / TABLE, _markdown(study, picture, str(content["signature"])))
    write_text(study.out / COMMANDS, commands(study))


def rows(study: Study) -> list[Row]:
    """Return a row for each run, the best validation loss first.

    "difference" is the loss minus the baseline's, "relative" that difference as a fraction of the baseline's loss.
    """
    ranked = sorted(study.runs, key=lambda run: (_RANKS.index(run.status), run.result.loss if run.result else 0.0))
    return [_row(study, run) for run in ranked]


def _row(study: Study, run: Run) -> Row:
    slot, mechanism = run.candidate or (None, None)
    result = asdict(run.result) if run.result else dict.fromkeys(field.name for field in fields(Result))
    row = {
        "plan": plan_text(run.plan),
        "role": run.role,
        "block": slot.block if slot else None,
        "layers": slot.layers if slot else None,
        "mechanism": mechanism,
        "status": run.status,
        "reason": run.reason or None,
        "recommended": run.plan == study.recommended,
        "taken": _taken(study, run),
        **result,
        **dict.fromkeys(("difference", "relative", "speed_ratio")),
        "command": shlex.join([*study.command(run), *user_dir.option()]),
    }
    baseline = study.runs[0].result
    if run.result and baseline and run.role != BASELINE:
        row["difference"] = run.result.loss - baseline.loss
        row["relative"] = relative_difference(run.result.loss, baseline.loss)
        row["speed_ratio"] = speed_ratio(run.result, baseline)
    return row


def _taken(study: Study, run: Run) -> bool:
    """Whether the recommended plan has the mechanism of this replacement in its place."""
    plan, candidate = study.recommended, run.candidate
    return plan is not None and candidate is not None and replaced(plan, candidate) == plan


def table(study: Study) -> Table:
    """Return a table with a line per run."""
    columns = [
        Column("block", of=lambda row: row["block"] or row["role"]),
        *([Column("layers")] if study.settings.layer_groups > 1 else []),
        *(Column("mechanism"), Column("plan"), Column("loss", f"valid {study.training.metric}", ".3f")),
        *(Column("relative", "to baseline", "+.2%"), Column("wps", form=",.0f")),
        Column("speed_ratio", "speed ratio", ".2f"),
        Column("status", of=lambda row: row["status"] + ", recommended" * row["recommended"]),
    ]
    return Table(rows(study), columns)


def outcome(study: Study) -> list[str]:
    """Return sentences: the recommended plan, combinations that were given up, and runs that were refused or failed."""
    chosen = study.run_of(study.recommended)
    too_much = [
        f"Given up: {plan_text(run.plan)}: {_loss(study, run.result)}; what its replacements cost adds up."
        for run in study.runs
        if run.role == COMBINATION and run.result and run is not chosen
    ]
    refused = dict.fromkeys(f"Refused: {run.reason}." for run in study.runs if run.status == REFUSED)
    failed = [f"Failed: {plan_text(run.plan)}: {run.reason}." for run in study.runs if run.status == FAILED]
    return [*([_recommendation(study, chosen)] if chosen else []), *too_much, *refused, *failed]


def _recommendation(study: Study, chosen: Run) -> str:
    recommendation = f"Recommended: {' '.join(plan_flags(chosen.plan))}"
    if chosen.role == BASELINE:
        return f"{recommendation}, the baseline: no replacement is within the tolerance."
    if chosen.result is None:
        return f"{recommendation}, put together from runs and not trained itself."
    trained = "trained to verify it" if chosen.role == COMBINATION else "a single replacement"
    within = f"within the tolerance of {study.settings.tolerance:.1%}"
    return f"{recommendation} ({trained}): {_loss(study, chosen.result)}, {within}."


def _loss(study: Study, result: Result) -> str:
    loss, baseline = f"{study.training.metric} {result.loss:.3f}", study.runs[0].result
    return f"{loss}, {relative_difference(result.loss, baseline.loss):+.2%} to the baseline" if baseline else loss


def commands(study: Study) -> str:
    """Return a shell script of all trainings in sequence, each exactly as it was or will be started."""
    parts = ["#!/usr/bin/env bash", "# Every training of this ablation.", "set -e", shlex.join(["cd", str(Path.cwd())])]
    for run in study.runs:
        if run.status != REFUSED:
            parts += ["", f"# {plan_text(run.plan)}: {run.role}, {run.status}"]
            parts.append(shlex.join([*study.command(run), *user_dir.option()]))
    return "\n".join(parts) + "\n"


def _markdown(study: Study, picture: str, environment: str) -> str:
    settings, metric = study.settings, study.training.metric
    objective = f"the relative difference of the {metric}"
    if settings.speed_weight:
        objective += f" minus {settings.speed_weight} times the logarithm of the speed ratio"
    return page(
        f"# Targeted ablation of {study.training.args.arch}",
        table(study).markdown(),
        *outcome(study),
        picture,
        f"Plans name the mechanisms of {' / '.join(study.runs[0].plan)}. All runs have the same budget and seed; valid "
        f"{metric} is the best of a run. The recommended plan has in each place what is best, by {objective}, among "
        f"what is at most {settings.tolerance:.1%} above the baseline; while they cost more together, the "
        "replacement that costs most alone is taken back.",
        SPEED_NOTE,
        f"Training: `leapformer train {study.training.identity}`",
        f"Signature: `{environment}`",
    )
