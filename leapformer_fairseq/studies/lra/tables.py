"""Tables of accuracies over tasks and seeds, beside what the papers print.

A row at chance is marked: always choosing the most frequent class of the test set could have its accuracy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import binomtest

from ...scoring.table import NOTHING, Column, Record, Table, deviation, page
from ...support.errors import LeapformerError
from .protocols import Protocol

TITLES = {"listops": "ListOps", "text": "Text", "retrieval": "Retrieval", "pathfinder": "Pathfinder", "image": "Image"}
# the benchmark's test sets: share of the most frequent class in per cent, number of examples
PUBLISHED = {
    "listops": (17.0, 2_000), "text": (50.0, 25_000), "retrieval": (50.0, 17_437), "pathfinder": (50.0, 20_000),
    "image": (10.0, 10_000),
}  # fmt: skip
AVERAGES = {  # name in published.json -> title, tasks that are left out
    "average": ("average", ()),
    "without_retrieval": ("without Retrieval", ("retrieval",)),
    "texts": ("ListOps, Text, Retrieval", ("image", "pathfinder")),
}
SIGNIFICANCE = 0.01  # of the test against chance
AT_CHANCE = "†"
NOTE = f"{AT_CHANCE}: at chance (binomial test, p ≥ {SIGNIFICANCE}): it did not learn the task."


@dataclass(frozen=True)
class Cell:
    """Test accuracies of a row in a task, one per seed, and the share of the most frequent class, in per cent."""

    accuracies: tuple[float, ...]
    chance: float
    examples: int

    @property
    def mean(self) -> float:
        return fmean(self.accuracies)

    @property
    def value(self) -> Record:
        """Mean and standard deviation, as `Table` writes them, with a mark if at chance."""
        return {**deviation(self.accuracies), "mark": "" if self.learned else f" {AT_CHANCE}"}

    @property
    def learned(self) -> bool:
        """Whether the accuracy is above chance, by a binomial test over the test set."""
        # One sample for all seeds, since they are tested on the same examples.
        right = round(self.mean / 100 * self.examples)
        return bool(binomtest(right, self.examples, self.chance / 100, "greater").pvalue < SIGNIFICANCE)


def cells(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Cell]]:
    """Group results by row and task. Raises LeapformerError for results of several protocols or quirks."""
    for name in ("protocol", "quirks"):
        values = sorted({json.dumps(result[name]) for result in results})
        if len(values) > 1:
            raise LeapformerError(f"results of more than one {name} ({', '.join(values)}); give folders of one")
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in sorted(results, key=lambda result: result["seed"]):
        groups.setdefault((result["row"], result["task"]), []).append(result)
    table: dict[str, dict[str, Cell]] = {}
    for (row, task), group in groups.items():
        accuracies = tuple(result["accuracy"] for result in group)
        table.setdefault(row, {})[task] = Cell(accuracies, 100 * group[0]["chance"], group[0]["examples"])
    return table


def averages(row: Mapping[str, Cell], tasks: Sequence[str]) -> float | None:
    """The mean over tasks; None if one is missing, or if there are none."""
    return fmean(row[task].mean for task in tasks) if tasks and all(task in row for task in tasks) else None


def accuracy_table(table: Mapping[str, Mapping[str, Cell]], protocol: Protocol, published: bool = True) -> str:
    """A table in Markdown: mean and standard deviation, averages, chance; and one with the paper's values."""
    tasks = [task for task in protocol.tasks if any(task in row for row in table.values())]
    averaged = {
        title: [task for task in tasks if task not in without]
        for title, without in _kinds(protocol.name).values()
        if not without or set(without) & set(tasks)
    }
    records: list[Record] = []
    for name in sorted(table, key=list(protocol.rows).index if set(table) <= set(protocol.rows) else str):
        row = table[name]
        seeds = "–".join(map(str, sorted({len(cell.accuracies) for cell in row.values()})))
        means = {title: averages(row, some) for title, some in averaged.items()}
        title = protocol.rows[name].title if name in protocol.rows else name
        records.append({"row": title, "seeds": seeds, **{task: cell.value for task, cell in row.items()}, **means})
    chance = {task: cell.chance for row in table.values() for task, cell in row.items()}
    records.append({"row": "always the most frequent class", **dict.fromkeys(["seeds", *averaged], ""), **chance})
    columns = [Column("row", ""), Column("seeds"), *_accuracies(tasks), *(_number(title) for title in averaged)]
    parts = [Table(records, columns).markdown()]
    if published and protocol.name in papers():
        parts += [f"Published ({papers()[protocol.name]['source']}):", published_table(protocol.name)]
    return page(*parts, NOTE)


def _accuracies(tasks: Sequence[str]) -> list[Column]:
    return [_number(task, TITLES[task]) for task in tasks]


def _number(key: str, title: str | None = None) -> Column:
    return Column(key, title, ".2f", of=lambda record: record.get(key), missing=NOTHING)


def _kinds(protocol: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The averages that the paper of a protocol prints; for other protocols, those with and without Retrieval."""
    rows = papers().get(protocol, papers()["luna"])["rows"].values()
    printed = {kind: at for kind, at in AVERAGES.items() if any(kind in row for row in rows)}
    if protocol not in papers():
        printed.pop("texts")
    return printed


def published_table(paper: str) -> str:
    """A table in Markdown: a paper's accuracies and averages, both recomputed and as printed, since some are wrong."""
    about, kinds = papers()[paper], _kinds(paper)
    records = []
    for row in about["rows"].values():
        cells = dict(zip(about["tasks"], row["accuracy"], strict=True))
        of_row: dict[str, Any] = {
            task: x if x is None else Cell((x,), *PUBLISHED[task]).value for task, x in cells.items()
        }
        of_row |= {kind: average(about["tasks"], row["accuracy"], without) for kind, (_, without) in kinds.items()}
        records.append({"row": row["title"], **of_row, **{f"printed {kind}": row.get(kind) for kind in kinds}})
    columns = [Column("row", ""), *_accuracies(about["tasks"])]
    for kind, (title, _) in kinds.items():
        columns += [_number(kind, title), _number(f"printed {kind}", "as printed")]
    return Table(records, columns).markdown()


def average(tasks: Sequence[str], accuracies: Sequence[float | None], without: Sequence[str] = ()) -> float | None:
    """The mean over all tasks except those in `without`; None if one is missing."""
    chosen = [accuracy for task, accuracy in zip(tasks, accuracies, strict=True) if task not in without]
    numbers = [accuracy for accuracy in chosen if accuracy is not None]
    return fmean(numbers) if len(numbers) == len(chosen) else None


def as_rows(table: Mapping[str, Mapping[str, Cell]]) -> list[dict[str, Any]]:
    """The content of the table for JSON: a dictionary for each row and task."""
    return [
        {
            "row": row,
            "task": task,
            "mean": round(cell.mean, 4),
            "std": None if cell.value["std"] is None else round(cell.value["std"], 4),
            "seeds": len(cell.accuracies),
            "accuracies": list(cell.accuracies),
            "chance": round(cell.chance, 4),
            "examples": cell.examples,
            "learned": cell.learned,
        }
        for row, tasks in table.items()
        for task, cell in tasks.items()
    ]


@cache
def papers() -> dict[str, Any]:
    """The papers' printed tables, by the name of the protocol."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
