"""Quality against latency: a grid of policies over several checkpoints, each point in a separate simulation.

A run is OUT/runs/NAME, as written by `leapformer simulate`. OUT/runs/NAME/repeat1, repeat2, ... are the same utterances
again, one at a time and alone in this process, to measure how much computation time varies. Talks are timed while they
are translated.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from ...runtime.formats.runlog import PARTS_S
from ...runtime.simul.policy import POLICIES, PolicyOptions
from ...scoring.report import score_run
from ...simul.live import open_system
from ...simul.simulate import Simulation, Utterance, build_simulation, log_outcome, logged
from ...support.errors import LeapformerError
from ...support.files import locked_folder, write_text
from ..engine import Call, Cell, Command, State, Study

SCORES = "scores.json"
# policy -> what its grid varies: the field of PolicyOptions, and the option of `leapformer simulate`
VARIED = {
    "wait-k": ("k", "--waitk-lagging"),
    "hold-n": ("hold", "--hold"),
    "local-agreement": ("agree", "--agree"),
    "alignatt": ("align_frames", "--align-frames"),
}


@dataclass(frozen=True)
class Grid:
    """The values to combine. `numbers`: for the fields of `VARIED`. `ratios`: None for the trained one.

    `segments`: the options of `leapformer simulate` that define the end of a segment of a talk; empty for utterances.
    """

    checkpoints: Mapping[str, str]
    policies: Sequence[str]
    numbers: Mapping[str, Sequence[int]]
    ratios: Sequence[int | None]
    segment_sizes: Sequence[int]
    segments: Sequence[tuple[str, ...]] = ((),)

    def __post_init__(self) -> None:
        for policy in self.policies:
            if policy not in POLICIES:
                raise LeapformerError(f"--policies {policy}: choose from {', '.join(POLICIES)}")
        axes = {"--k": self.numbers["k"], "--pre-decision-ratios": self.ratios, "--segment-sizes": self.segment_sizes}
        for option, values in axes.items():
            for value in values:
                if value is not None and value < 1:
                    raise LeapformerError(f"{option} {value}: it must be at least 1")
        for policy, (field, _) in VARIED.items():
            for number in self.numbers[field]:
                PolicyOptions(policy, **{field: number})  # refuses impossible numbers

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

    def _numbers(self, policy: str) -> Sequence[int | None]:
        return self.numbers[VARIED[policy][0]] if policy in VARIED else [None]


@dataclass(frozen=True)
class Setting:
    """A point of the grid. `number`: the policy's parameter, None if it has none. `ratio`: None for the trained one.

    `segment`: as in `Grid.segments`.
    """

    checkpoint: str
    policy: str
    number: int | None
    ratio: int | None
    segment_ms: int
    segment: tuple[str, ...] = ()

    @property
    def varied(self) -> dict[str, int]:
        """The policy's parameter under its name; empty if it has none."""
        return {} if self.number is None else {VARIED[self.policy][0]: self.number}

    @property
    def name(self) -> str:
        """The name of its folder."""
        parts = [self.checkpoint, self.policy, *(f"{field}{number}" for field, number in self.varied.items())]
        parts += [] if self.ratio is None else [f"ratio{self.ratio}"]
        return "-".join([*parts, f"{self.segment_ms}ms", *self.segment[1:]])

    @property
    def flags(self) -> list[str]:
        """The options of `leapformer simulate` for it, except the checkpoint."""
        flags = ["--policy", self.policy, "--source-segment-size", str(self.segment_ms), *self.segment]
        flags += [] if self.number is None else [VARIED[self.policy][1], str(self.number)]
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
    lists:       files to write before any run, {path: text}.
    """

    commands: ClassVar[str] = ""  # the report writes all, in the order of the grid

    out: Path
    runs: list[Run]
    repeats: int
    utterances: Sequence[Utterance]
    record: Mapping[str, Any]
    checkpoints: Mapping[str, Any]
    lists: Mapping[str, str]

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
        for path, text in self.lists.items():
            write_text(path, text)

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
        from .curve_report import write_reports

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
