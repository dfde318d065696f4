"""The grids of `leapformer sparsefinder fit`, `pareto` and `blocks` as studies for the engine.

OUT/points holds a file for each point and seed of a sweep, OUT/scores one for each score of a model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from ...support.files import locked_folder, write_json
from .. import engine
from ..engine import Call, Cell, State
from . import report
from .experiments import write_blocks, write_curves
from .extraction import Graphs, Sentence
from .fitting import Settings, check_fitted, fit
from .grids import Point
from .measures import Measures
from .quality import Scored, check, score
from .report import Row
from .sweep import (
    Sweep,
    check_windows,
    digest,
    evaluated,
    gold_sparsity,
    measure_point,
    model_options,
    name_of,
    pattern_options,
    rounded,
    rows_of,
)  # fmt: skip

FULL = {"seed": 1, "window": 0}


@dataclass(frozen=True)
class Fit(engine.Study):
    """A fit for each seed, in the files seed1.pt, ... of `out`."""

    commands: ClassVar[str] = ""

    graphs: Graphs
    settings: Settings
    seeds: Sequence[int]
    out: Path

    def check(self) -> None:
        """Raise LeapformerError for a setting out of range."""
        self.settings.check()

    def reserve(self) -> None:
        """Raise LeapformerError for a finished file with other settings or of other graphs."""
        for cell in self.cells(State()):
            if cell.is_done(self.out):
                check_fitted(cell.path(self.out), self.graphs, self.settings)

    def cells(self, state: State) -> list[Cell]:
        """A call for each seed."""
        names = dict.fromkeys(f"seed{seed}" for seed in self.seeds)
        return [Cell(name, (self._fitting(name),), f"{name}.pt", vital=True) for name in names]

    def _fitting(self, name: str) -> Call:
        return Call(fit, (self.graphs, self.settings, int(name.removeprefix("seed")), self.out / f"{name}.pt"))


@dataclass
class _Scoring(engine.Study):
    """Scores of a model with patterns in place of full entmax, one at a time, since they have the model's seconds.

    about: what the file of the results begins with: signature, environment, options.
    text:  the tables, once all is done.
    """

    commands: ClassVar[str] = ""

    out: Path
    sweep: Sweep
    test: Scored | None
    about: Mapping[str, Any]
    text: str = field(default="", init=False)

    @property
    @abstractmethod
    def identity(self) -> Sequence[str]:
        """What tells the models and the files that were fitted to them from others."""

    @abstractmethod
    def write(self, state: State) -> str:
        """Write all results, and return the tables."""

    def check_work(self) -> None:
        """Raise LeapformerError for missing data or references, before minutes are spent on scores."""
        if self.test is not None:
            check(self.test)

    def reserve(self) -> None:
        """Raise LeapformerError for a folder with scores of other models or data."""
        if self.test is None:
            return
        about = {**asdict(self.test), "of": list(self.identity), "data": str(Path(self.test.data).resolve())}
        about.pop("checkpoint")
        if self.test.references is not None:
            about["references"] = str(Path(self.test.references).resolve())
        locked_folder(self.out, "scores.json", about, "set of scores", among_others=True)

    def scores(self, rows: Sequence[Row]) -> list[Cell]:
        """The scores of full entmax and of the points of some rows."""
        points = [Point(row["mechanism"], row["options"]) for row in rows]
        options = [
            model_options(point, row["window"], self.sweep, row["seed"] - 1)
            for point, row in zip(points, rows, strict=True)
        ]
        full = Point("entmax", {}), FULL, dict[str, Any]()
        return [self._score(*about) for about in [full, *zip(points, rows, options, strict=True)]]

    def _score(self, point: Point, row: Row, options: Mapping[str, Any]) -> Cell:
        name = f"scores/{point.file_name}-window{row['window']}-seed{row['seed']}"
        scoring = Call(_scored, (self.test, point.mechanism, options, row), inline=True)
        return Cell(name, (scoring,), f"{name}.json", fields=("quality",), alone=True, vital=True)

    def report(self, state: State) -> None:
        """Write tables and pictures once all is done."""
        if all(cell.name in state.results for cell in self.cells(state)):
            self.text = self.write(state)


@dataclass
class Pareto(_Scoring):
    """Sparsity and recall of all points and, with a test, the quality of at most `count` points along each front.

    limit: at most so many sentences.
    note:  a line above the tables.
    """

    graphs: Graphs
    limit: int | None = None
    count: int = 0
    note: str | None = None
    _known: dict[str, list[Row]] = field(default_factory=dict, init=False)  # rows of points, fronts of mechanisms

    @property
    def identity(self) -> Sequence[str]:
        fingerprints: list[str] = self.graphs.about["fingerprints"]
        return fingerprints

    @cached_property
    def sentences(self) -> list[Sentence]:
        _read.cache_clear()  # files of these names may have been fitted again
        return _read(str(self.graphs.folder), tuple(self.sweep.files), self.limit)[1]

    @cached_property
    def gold_sparsity(self) -> float:
        return gold_sparsity(self.graphs, self.sentences)

    def check(self) -> None:
        """Raise LeapformerError for unsuitable sentences, windows and points."""
        check_windows(self.sweep.windows, self.sentences)
        for point, seed in self.sweep.units():
            pattern_options(point, self.sweep.ends, self.sweep.files, seed)

    def reserve(self) -> None:
        """Raise LeapformerError for a folder with points or scores of something else."""
        super().reserve()
        about = {
            "graphs": str(self.graphs.folder.resolve()),
            "sentences": [sentence.index for sentence in self.sentences],
            "windows": list(self.sweep.windows),
            "global": self.sweep.ends,
            "files": [digest(path) for path in self.sweep.files],
        }
        locked_folder(self.out, "sweep.json", about, "sweep", among_others=True)

    def cells(self, state: State) -> list[Cell]:
        """All points, and the scores along the fronts of the mechanisms whose points are there."""
        cells, common = list[Cell](), (str(self.graphs.folder), self.limit, replace(self.sweep, points=()))
        for point, seed in self.sweep.units():
            name = name_of(point, seed)
            measuring = Call(_measured, (*common, point, seed))
            cells.append(Cell(name, (measuring,), f"{name}.json", fields=Measures._fields, vital=True))
        return cells if self.test is None or not self.count else [*cells, *self.scores(self._fronts(state))]

    def _rows_of(self, units: Iterable[tuple[Point, int]], state: State) -> list[Row]:
        """The rows of points that are done."""
        rows = list[Row]()
        for point, seed in units:
            name = name_of(point, seed)
            if name not in self._known:
                self._known[name] = rows_of(point, seed, self.sweep.windows, state.results[name])
            rows += self._known[name]
        return rows

    def _fronts(self, state: State) -> list[Row]:
        """Points along the fronts of recall, of the first seed, and the fronts' best from the gold sparsity on."""
        wanted = list[Row]()
        for mechanism in dict.fromkeys(point.mechanism for point in self.sweep.points):
            units = [(point, 0) for point in self.sweep.points if point.mechanism == mechanism]
            if mechanism not in self._known and all(name_of(*unit) in state.results for unit in units):
                front = report.front(self._rows_of(units, state), "recall")
                points = report.thinned(front, self.count)
                self._known[mechanism] = report.with_gold(points, front, self.gold_sparsity)
            wanted += self._known.get(mechanism, [])
        return wanted

    def write(self, state: State) -> str:
        """Write curves.csv, curves.json, curves.md and pictures, with scores also quality.csv."""
        units, block = self.sweep.units(), self.graphs.about["block"]
        full, *scored = [state.results[cell.name] for cell in self.cells(state)[len(units) :]] or [{}]
        gold, rows = {"sparsity": self.gold_sparsity, "recall": 1.0, **full}, self._rows_of(units, state)
        text = write_curves(self.out, block, self.sweep, rows, scored, gold, state.results, self.note)
        content = {"gold": gold, "recall_at_sparsity": report.recall_table(rows), "quality": scored}
        sentences = {"sentences": len(self.sentences)}
        write_json(self.out / "curves.json", {**self.about, **content, **sentences}, "--out")
        return text


@dataclass
class Blocks(_Scoring):
    """Seconds and quality of patterns of blocks."""

    @property
    def identity(self) -> Sequence[str]:
        assert self.test is not None
        return [digest(path) for path in (self.test.checkpoint, *self.sweep.files)]

    def cells(self, state: State) -> list[Cell]:
        """A score for each point."""
        return self.scores([
            {
                "mechanism": point.mechanism, "options": point.options, **FULL,
                "attended": point.options["sparsefinder_blocks"],
            }
            for point in self.sweep.points
        ])  # fmt: skip

    def write(self, state: State) -> str:
        """Write blocks.json, blocks.md and pictures."""
        full, *rows = (state.results[cell.name] for cell in self.cells(state))
        write_json(self.out / "blocks.json", {**self.about, "full": full, "rows": rows}, "--out")
        return write_blocks(self.out, rows, full)


@lru_cache(maxsize=1)
def _read(folder: str, files: tuple[str, ...], limit: int | None) -> tuple[Graphs, list[Sentence]]:
    graphs = Graphs(folder)
    return graphs, evaluated(graphs, files, limit)


def _measured(folder: str, limit: int | None, sweep: Sweep, point: Point, seed: int) -> dict[str, Any]:
    measures = measure_point(*_read(folder, tuple(sweep.files), limit), point, sweep, seed)
    return {name: rounded(x) for name, x in measures._asdict().items()}


def _scored(test: Scored, mechanism: str, options: Mapping[str, Any], row: Row) -> dict[str, Any]:
    return {**row, **score(test, mechanism, options)._asdict()}
