"""The results of a grid of policies: a table as text and as data, a plot, and all its commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...runtime.formats.runlog import PARTS
from ...runtime.formats.talks import QUEUED
from ...scoring.comparison import COLUMNS, FORMS
from ...scoring.latency import HIGH_MS, LOW_MS
from ...scoring.pictures.latency import BELOW, curve_figure, is_below
from ...scoring.table import Column, Record, Table, bullets, page, signed, spread
from ...simul.talks import LOGS, course, read_usage
from ...support.files import read_json, write_json, write_text
from ...support.signature import signature
from .curve import SCORES, Curve, Run, check_timed

DATA, TABLE, PICTURE, COMMANDS = "curve.json", "table.md", "curve.svg", "commands.sh"
LATENCIES = ("AL", "LAAL", "AP", "DAL", "ATD")
_DIGITS = {
    **FORMS,
    **dict.fromkeys(("StreamLAAL", "StreamLAAL_CA"), ".2f"),
    "erasure": ".3f",
    "memory_growth_mib": ".1f",
    "compute_growth": "+.1%",
}  # all others are milliseconds
_TALK_COLUMNS = {
    "BLEU": "BLEU",
    "chrF": "chrF",
    "LongYAAL ms": "LongYAAL",
    "LongYAAL_CA ms": "LongYAAL_CA",
    "StreamLAAL s": "StreamLAAL",
    "StreamLAAL_CA s": "StreamLAAL_CA",
    "erasure": "erasure",
    "compute s/s": "compute",
    "memory growth MiB": "memory_growth_mib",
    "time growth": "compute_growth",
}
_UTTERANCE_NOTES = (
    "AL, LAAL, DAL, ATD are milliseconds; AP is a ratio, above 1 where hypotheses are longer than references; the "
    "ratio counts encoder states of 40 ms a step."
)
_MEASURED = (
    "`_CA` adds the time of computation, `compute` is its seconds per second of audio, `without pre-net` the same "
    "without the convolutions: each utterance alone, the mean over the repeats (least–greatest)."
)
_BELOW_NOTE = (
    f"`{BELOW}`: below the latency without computation, because with computation fewer units are written before the "
    "end of the source, and only those count."
)
_TALK_NOTES = (
    f"Latency is low up to a LongYAAL of {LOW_MS:.0f} ms and high up to {HIGH_MS:.0f} ms, without computation. `_CA`: "
    "with computation, a chunk of audio waiting until the one before it is done; `compute`: its seconds per second of "
    "audio; both measured once. Growth: over the longest talk, from 5 minutes on, the most memory above that after a "
    "minute, and CPU time per second of audio in its last quarter against its first."
)

Row = dict[str, Any]


def write_reports(curve: Curve) -> None:
    """Write curve.json, table.md, curve.svg and commands.sh to the folder of the curve, replacing whole files.

    Raises LeapformerError for runs whose scores are damaged.
    """
    results, environment = rows(curve), signature(threads=curve.runs[0].args.num_threads)
    content = {
        "checkpoints": curve.checkpoints,
        "rows": results,
        "refused": [{**_about(run), "reason": run.reason} for run in curve.runs if run.reason],
        "waiting": [_about(run) for run in curve.waiting],
        "repeats": curve.repeats,
        "signature": environment,
    }
    write_json(curve.out / DATA, content)
    alt = f"BLEU against {'LongYAAL' if curve.of_talks else 'average lagging'}"
    picture = curve_figure(results).save(curve.out / PICTURE, alt)
    write_text(curve.out / TABLE, _markdown(curve, results, picture, environment))
    write_text(curve.out / COMMANDS, commands(curve))


def rows(curve: Curve) -> list[Row]:
    """A row for every run that translated the whole test set, by checkpoint and policy as in the grid, then by AL.

    A score in `_CA` and the seconds of `compute` per second of audio are {"mean", "min", "max"} over the repeats, None
    if not measured; a latency is None if nothing was written. Rows of talks have LongYAAL (ms) and StreamLAAL (s), with
    `_CA` including queueing of chunks, measured once, and are sorted by LongYAAL.
    """
    row_of, latency = (_talk_row, "LongYAAL") if curve.of_talks else (_row, "AL")
    order = list(dict.fromkeys(_line(run) for run in curve.runs))
    placed = [(order.index(_line(run)), row_of(run)) for run in curve.runs if run.translated]
    return [row for _, row in sorted(placed, key=lambda x: (x[0], x[1][latency] or 0.0))]


def _line(run: Run) -> tuple[Any, ...]:
    """Return what all runs of a line in the picture share."""
    return run.setting.checkpoint, run.setting.policy, run.setting.segment


def _about(run: Run) -> Row:
    setting = run.setting
    return {
        "run": setting.name,
        "checkpoint": setting.checkpoint,
        "policy": setting.policy,
        "numbers": setting.varied,
        "pre_decision_ratio": setting.ratio,
        "segment_ms": setting.segment_ms,
        **({"segment": setting.segment[-1]} if setting.segment else {}),
    }


def _row(run: Run) -> Row:
    scored = read_json(run.folder / SCORES)
    repeats = [_measured(folder) for folder in run.measured]
    return {
        **_about(run),
        "sentences": scored["n_instances"],
        "empty": scored["n_empty"],
        **{name: scored["scores"].get(name) for name in ("BLEU", "chrF", *LATENCIES)},
        **{f"{name}_CA": spread([repeat["scores"].get(f"{name}_CA") for repeat in repeats]) for name in LATENCIES},
        "compute": _compute([repeat["compute"] for repeat in repeats]),
        "without_prenet": spread([repeat["compute"].get("without_prenet") for repeat in repeats]),
        "repeats": len(repeats),
        "signatures": scored["signatures"],
        "signature": scored["model"]["signature"],
    }


def _measured(folder: Path) -> dict[str, Any]:
    """Return the scores of a repeat. Raises LeapformerError like `check_timed`."""
    scored = read_json(folder / SCORES)
    check_timed(folder, scored)
    return scored


def _talk_row(run: Run) -> Row:
    scored = read_json(run.folder / SCORES)
    scores, usage, lagging = scored["scores"], scored["usage"], scored["StreamLAAL_s"]
    parts = {part: spread([seconds]) for part, seconds in usage["parts"].items()}
    return {
        **_about(run),
        "talks": scored["n_recordings"],
        "segments": scored["n_instances"],
        "empty": scored["n_empty"],
        **{name: scores.get(name) for name in ("BLEU", "chrF", "LongYAAL")},
        "StreamLAAL": lagging.get("source heard"),
        "LongYAAL_CA": spread([scores.get(f"LongYAAL_{QUEUED}")]),
        "StreamLAAL_CA": spread([lagging.get(QUEUED)]),
        "regime": scored["regime"],
        "erasure": scored["erasure"],
        "compute": {**parts, "total": spread([scored["compute"]["seconds_per_second"]])},
        "memory_growth_mib": usage["memory_growth_mib"],
        "compute_growth": usage["compute_growth"],
        "course": course(read_usage(run.folder / LOGS / f"{usage['longest_talk']}.jsonl")),
        "signatures": scored["signatures"],
        "signature": scored["model"]["signature"],
    }


def _compute(repeats: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float] | None] | None:
    """Return seconds per second of audio: of features, encoder, decoder, and the total."""
    if not repeats:
        return None
    parts = {part: spread([seconds[f"{part}_s"] / seconds["audio_s"] for seconds in repeats]) for part in PARTS}
    return {**parts, "total": spread([seconds["seconds_per_second"] for seconds in repeats])}


def table(results: Sequence[Row]) -> str:
    """One line per row, in Markdown. Measured values are means, with minimum and maximum in brackets."""
    of_talks = any("segment" in row for row in results)
    columns = [
        Column("checkpoint"),
        Column("policy"),
        Column("number", of=lambda row: " ".join(f"{name}={number}" for name, number in row["numbers"].items())),
        *([Column("segment")] if of_talks else []),
        Column("ratio", of=lambda row: "trained" if row["pre_decision_ratio"] is None else row["pre_decision_ratio"]),
        Column("segment_ms", "segment ms"),
    ]
    titles = _TALK_COLUMNS if of_talks else _columns(results)
    columns += [Column(name, title, _DIGITS.get(name, ".0f"), _shown(name)) for title, name in titles.items()]
    return Table(results, columns).markdown()


def _columns(results: Sequence[Row]) -> dict[str, str]:
    """Return titles and names of the scores of utterances, with computation if it was measured."""
    measured = any(row["repeats"] for row in results)
    timed = {"AL_CA", "compute"} if measured else set()
    timed |= {"without_prenet"} if any(row["without_prenet"] for row in results) else set()
    titles = {title: name for title, name in COLUMNS.items() if name in {"BLEU", "chrF", *LATENCIES, *timed}}
    return {**titles, "LAAL_CA ms": "LAAL_CA"} if measured else titles


def _shown(name: str) -> Callable[[Record], Any]:
    """Return what gets the value of a score: the total of a computation by parts, a latency with its mark."""

    def value(row: Record) -> Any:
        score = row[name]
        if isinstance(score, dict):
            score = {**score.get("total", score), "mark": BELOW * is_below(row, name)}
        return score

    return value


def refusals(curve: Curve) -> list[str]:
    """A sentence for each unsupported combination of checkpoint and policy."""
    pairs = {(run.setting.checkpoint, run.setting.policy): run.reason for run in curve.runs if run.reason}
    return [f"Refused: {name}, {policy}: {reason}." for (name, policy), reason in pairs.items()]


def commands(curve: Curve) -> str:
    """A shell script of all simulations, one after the other, each as it was or will be run."""
    parts = ["#!/usr/bin/env bash", "# Every simulation of this curve.", "set -e", shlex.join(["cd", str(Path.cwd())])]
    parts += [f"leapformer {shlex.join(run.command)}" for run in curve.runs if not run.reason]
    return "\n".join(parts) + "\n"


def _markdown(curve: Curve, results: Sequence[Row], picture: str, environment: str) -> str:
    scores = dict.fromkeys(line for row in results for line in signed(row["signatures"]))
    return page(
        f"# Simultaneous translation{' of talks' if curve.of_talks else ''}: quality against latency",
        table(results),
        *refusals(curve),
        *(f"Still to do: {run.setting.name}." for run in curve.waiting),
        picture,
        _TALK_NOTES if curve.of_talks else _UTTERANCE_NOTES,
        _MEASURED if any(row.get("repeats") for row in results) else "",
        _BELOW_NOTE if any(is_below(row, name) for row in results for name in row) else "",
        bullets([*scores, f"leapformer_fairseq: `{environment}`"]),
    )
