"""Quality against latency: a grid of policies over several checkpoints, each point in a separate simulation.

A run is OUT/runs/NAME, as written by `leapformer simulate`. OUT/runs/NAME/repeat1, repeat2, ... are the same utterances
again, one at a time and alone in this process, to measure how much computation time varies. Talks are timed while they
are translated.
"""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from ..runtime.formats.runlog import PARTS, PARTS_S
from ..runtime.formats.talks import QUEUED
from ..runtime.simul.policy import OPTIONS, PolicyOptions, find
from ..scoring.comparison import COLUMNS, FORMS, p_columns, with_interval
from ..scoring.latency import HIGH_MS, LOW_MS
from ..scoring.pictures.latency import BELOW, curve_figure, is_below
from ..scoring.report import score_run
from ..scoring.systems import Place, p_values
from ..scoring.table import Column, Record, Table, bullets, page, signed, spread
from ..simul.live import open_system
from ..simul.simulate import Simulation, Utterance, build_simulation, log_outcome, logged
from ..simul.talks import LOGS, course, read_usage
from ..support import user_dir
from ..support.declared import Option
from ..support.errors import LeapformerError
from ..support.files import locked_folder, read_json, write_json, write_text
from ..support.signature import signature
from .engine import Call, Cell, Command, State, Study

SCORES = "scores.json"


Numbers = tuple[tuple[str, Any], ...]  # options of a policy and their values


def _words(option: Option, value: Any) -> list[str]:
    """The words by which a command line gives an option this value."""
    if isinstance(value, bool):
        return [option.flag] if value else [option.flag.replace("--", "--no-", 1)] if option.default else []
    return [option.flag, str(value)]


@dataclass(frozen=True)
class Grid:
    """The values to combine. `numbers`: for the options of policies. `ratios`: None for the trained one.

    `segments`: the options of `leapformer simulate` that define the end of a segment of a talk; empty for utterances.
    """

    checkpoints: Mapping[str, str]
    policies: Sequence[str]
    numbers: Mapping[str, Sequence[Any]]
    ratios: Sequence[int | None]
    segment_sizes: Sequence[int]
    segments: Sequence[tuple[str, ...]] = ((),)

    def __post_init__(self) -> None:
        axes = {"--pre-decision-ratios": self.ratios, "--segment-sizes": self.segment_sizes}
        for option, values in axes.items():
            for value in values:
                if value is not None and value < 1:
                    raise LeapformerError(f"{option} {value}: it must be at least 1")
        for policy in self.policies:
            for numbers in self._numbers(policy):
                PolicyOptions(policy, **dict(numbers))  # refuses unknown policies and impossible numbers

    def settings(self) -> list[Setting]:
        """All points of the grid, each once."""
        points = [
            Setting(*point)
            for name, policy in product(self.checkpoints, self.policies)
            for point in product(
                [name], [policy], self._numbers(policy), self.ratios, self.segment_sizes, self.segments
            )
        ]
        return list(dict.fromkeys(points))

    def _numbers(self, policy: str) -> Iterator[Numbers]:
        """All combinations of the policy's options, of which the first, and those with other values, are varied."""
        axes = list[list[tuple[str, Any]]]()
        for rank, option in enumerate(find(policy).options):
            values = self.numbers.get(option.name, [option.default])
            if rank == 0 or list(values) != [option.default]:
                axes.append([(option.name, value) for value in values])
        for point in product(*axes):
            yield tuple((name, value) for name, value in point if value is not None)


@dataclass(frozen=True)
class Setting:
    """A point of the grid. `numbers`: values of the policy's options. `ratio`: None for the trained one.

    `segment`: as in `Grid.segments`.
    """

    checkpoint: str
    policy: str
    numbers: Numbers
    ratio: int | None
    segment_ms: int
    segment: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        parts = [
            self.checkpoint,
            self.policy,
            *(re.sub(r"[^\w.+-]", "_", f"{option}{number}") for option, number in self.numbers),
        ]
        parts += [] if self.ratio is None else [f"ratio{self.ratio}"]
        return "-".join([*parts, f"{self.segment_ms}ms", *self.segment[1:]])

    @property
    def but_checkpoint(self) -> Setting:
        """What it has in common with those of other checkpoints."""
        return replace(self, checkpoint="")

    @property
    def flags(self) -> list[str]:
        """The options of `leapformer simulate` for it, except the checkpoint."""
        flags = ["--policy", self.policy, "--source-segment-size", str(self.segment_ms), *self.segment]
        flags += [word for name, number in self.numbers for word in _words(OPTIONS[name], number)]
        return flags + ([] if self.ratio is None else ["--pre-decision-ratio", str(self.ratio)])


@dataclass(eq=False)
class Run:
    """A point and its simulation: `args` are those of `command`, `leapformer simulate ...`; `reason`: of rejection."""

    setting: Setting
    command: list[str]
    args: Namespace
    reason: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.args.out)

    @property
    def translated(self) -> bool:
        """Whether the test set is completely translated."""
        return (self.folder / SCORES).is_file()

    @property
    def measured(self) -> list[Path]:
        """The finished repeats."""
        return sorted(path.parent for path in self.folder.glob(f"repeat*/{SCORES}"))


@dataclass
class Curve(Study):
    """All runs of a grid, which may grow, in the folder `out`.

    repeats:     how often their computation is measured.
    utterances:  of the test set, for that.
    record:      what must stay the same in the folder: options and checkpoints by name.
    checkpoints: their descriptions.
    """

    commands: ClassVar[str] = ""  # the report writes all, in the order of the grid

    out: Path
    runs: list[Run]
    repeats: int
    utterances: Sequence[Utterance]
    record: Mapping[str, Any]
    checkpoints: Mapping[str, Any]

    @property
    def of_talks(self) -> bool:
        """Whether the runs are on talks, not on utterances."""
        return any(run.setting.segment for run in self.runs)

    @property
    def waiting(self) -> list[Run]:
        """The runs that are neither unsupported nor finished."""
        return [run for run in self.runs if not (run.reason or (run.translated and len(run.measured) >= self.repeats))]

    def reserve(self) -> None:
        """Raise LeapformerError if the folder holds a curve with other options or checkpoints of these names."""
        locked_folder(self.out, "options.json", self.record, "curve", grows=True)

    def cells(self, state: State) -> list[Cell]:
        """A simulation for each run that is supported, and its measurements."""
        cells = list[Cell]()
        for run in self.runs:
            if run.reason:
                continue
            name, simulating = run.setting.name, Command(tuple(run.command), inline=True)
            cells.append(Cell(name, (simulating,), f"runs/{name}/{SCORES}", vital=True))
            for number in range(1, self.repeats + 1):
                repeat, measuring = f"{name}/repeat{number}", Call(self.measure, (name, number), inline=True)
                path = f"runs/{repeat}/{SCORES}"
                cells.append(Cell(repeat, (measuring,), path, needs=(name,), alone=True, vital=True))
        return cells

    def report(self, state: State) -> None:
        """Write curve.json, table.md, curve.svg and commands.sh."""
        write_reports(self)

    def measure(self, name: str, number: int) -> dict[str, Any]:
        """Time the computation of a run in its folder repeat1, repeat2, ...; return the scores.

        Finished utterances are not repeated. Raises LeapformerError like `Simulation.translate` and `check_timed`.
        """
        run = next(run for run in self.runs if run.setting.name == name)
        folder, simulation = run.folder / f"repeat{number}", _warmed_up(run, self.utterances[0])
        done = logged(folder, simulation.unit)
        for utterance in self.utterances:
            if utterance.index not in done:
                log_outcome(folder, *simulation.translate([utterance]))
        scores = score_run(folder, run.args.tokenize, simulation.unit)
        check_timed(folder, scores)
        return scores


def name_checkpoints(paths: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """{name: path}; without `names`, the file names are used.

    Raises LeapformerError for names that do not match the paths in number, are repeated, or cannot be part of a file
    name.
    """
    if names and len(names) != len(paths):
        raise LeapformerError(f"--names has {len(names)} names for {len(paths)} --checkpoints; give one for each")
    named = list(names) or [Path(path).stem for path in paths]
    for name, count in Counter(named).items():
        if count > 1:
            raise LeapformerError(f"{count} --checkpoints are called {name}; tell them apart with --names")
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise LeapformerError(f"--names {name!r}: a folder is called so; give letters, digits and . _ + -")
    return dict(zip(named, paths, strict=True))


def refuse(runs: Iterable[Run]) -> None:
    """Record the unsupported reason in all runs whose checkpoint does not support the policy.

    Raises LeapformerError if no run is supported.
    """
    reasons: dict[tuple[str, str], str] = {}
    for run in runs:
        key = run.setting.checkpoint, run.setting.policy  # support does not depend on its number
        if key not in reasons:
            reasons[key] = _refusal(run.args)
        run.reason = reasons[key]
    if all(reasons.values()):
        raise LeapformerError(f"there is nothing to simulate: {next(iter(reasons.values()))}")


def _refusal(args: Namespace) -> str:
    try:
        open_system(args)
    except LeapformerError as error:
        return str(error)
    return ""


@lru_cache(maxsize=1)  # for all repeats of a run
def _warmed_up(run: Run, utterance: Utterance) -> Simulation:
    """A simulation for timing, which has compiled, made its tables and first allocations."""
    simulation = replace(build_simulation(run.args), alone=True)
    simulation.translate([utterance])
    return simulation


def check_timed(folder: Path, scores: Mapping[str, Any]) -> None:
    """Raise LeapformerError for a repeat with output if a part of its computation took no time, so was not timed."""
    untimed = [part for part in PARTS_S if not (scores["compute"] or {}).get(part)]
    if untimed and scores["n_empty"] < scores["n_instances"]:
        raise LeapformerError(
            f"{folder} has no time of the {untimed[0].removesuffix('_s')}: earlier versions decoded it in batches, "
            "which are not timed; delete it, and the same command measures again"
        )


# ---------------------------------------------------------------------------------------------------------- the report
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
    first, *_ = curve.checkpoints
    of_first = {run.setting.but_checkpoint: run for run in curve.runs if run.setting.checkpoint == first}
    placed = [
        (order.index(_line(run)), row_of(run) | _tested(of_first.get(run.setting.but_checkpoint), run))
        for run in curve.runs
        if run.translated
    ]
    return [row for _, row in sorted(placed, key=lambda x: (x[0], x[1][latency] or 0.0))]


def _tested(baseline: Run | None, run: Run) -> Row:
    """p of the differences to the run of the first checkpoint with the same policy and numbers; none for talks."""
    if baseline is None or baseline is run or not baseline.translated or run.setting.segment:
        return {}
    return {"p": p_values(*(Place.of(each.folder, read_json(each.folder / SCORES)) for each in (baseline, run)))}


def _line(run: Run) -> tuple[Any, ...]:
    """Return what all runs of a line in the picture share."""
    return run.setting.checkpoint, run.setting.policy, run.setting.numbers[1:], run.setting.segment


def _about(run: Run) -> Row:
    setting = run.setting
    return {
        "run": setting.name,
        "checkpoint": setting.checkpoint,
        "policy": setting.policy,
        "numbers": dict(setting.numbers),
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
        "intervals": scored.get("intervals", {}),
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
        "intervals": _talk_intervals(scored.get("intervals", {})),
        "regime": scored["regime"],
        "erasure": scored["erasure"],
        "compute": {**parts, "total": spread([scored["compute"]["seconds_per_second"]])},
        "memory_growth_mib": usage["memory_growth_mib"],
        "compute_growth": usage["compute_growth"],
        "course": course(read_usage(run.folder / LOGS / f"{usage['longest_talk']}.jsonl")),
        "signatures": scored["signatures"],
        "signature": scored["model"]["signature"],
    }


def _talk_intervals(intervals: Mapping[str, float]) -> dict[str, float]:
    """Of the scores in a row of talks, StreamLAAL in seconds."""
    seconds = {"StreamLAAL": intervals["LongLAAL"] / 1000} if "LongLAAL" in intervals else {}
    return {name: half for name, half in intervals.items() if name in ("BLEU", "chrF", "LongYAAL")} | seconds


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
    return Table(results, [*columns, *p_columns()]).markdown()


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
        score = with_interval(name)(row)
        if isinstance(score, dict) and "interval" not in score:
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
    parts += [shlex.join(user_dir.typed("leapformer", run.command)) for run in curve.runs if not run.reason]
    return "\n".join(parts) + "\n"


def _intervals_note(curve: Curve, results: Sequence[Row]) -> str:
    note = "±, and the bars of the picture: half of the 95 % interval by resampling of the sentences."
    if any(row.get("p") for row in results):
        note += f" p: of a difference to {next(iter(curve.checkpoints))} this large, in either direction."
    return note if any(row["intervals"] for row in results) else ""


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
        _intervals_note(curve, results),
        _BELOW_NOTE if any(is_below(row, name) for row in results for name in row) else "",
        bullets([*scores, f"leapformer_fairseq: `{environment}`"]),
    )
