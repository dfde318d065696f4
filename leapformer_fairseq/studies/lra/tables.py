"""Tables of accuracies over tasks and seeds, beside what the papers print.

A row at chance is marked: always choosing the most frequent class of the test set could have its accuracy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import binomtest
from tabulate import tabulate

from ...support.errors import LeapformerError
from .protocols import Protocol

TITLES = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
    "image": "Image",
}
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
    def std(self) -> float | None:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None

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
    headers = ["", "seeds", *(TITLES[task] for task in tasks), *averaged]
    lines = []
    for name in sorted(table, key=list(protocol.rows).index if set(table) <= set(protocol.rows) else str):
        row = table[name]
        seeds = sorted({len(cell.accuracies) for cell in row.values()})
        line = [protocol.rows[name].title if name in protocol.rows else name, "–".join(map(str, seeds))]
        line += [written(row[task]) if task in row else "–" for task in tasks]
        lines.append(line + [_number(averages(row, some)) for some in averaged.values()])
    chance = {task: cell.chance for row in table.values() for task, cell in row.items()}
    lines.append(["always the most frequent class", "", *(f"{chance[task]:.2f}" for task in tasks)])
    text = tabulate(lines, headers, tablefmt="github", disable_numparse=True)
    if published and protocol.name in papers():
        text += f"\n\nPublished ({papers()[protocol.name]['source']}):\n\n{published_table(protocol.name)}"
    return f"{text}\n\n{NOTE}\n"


def _kinds(protocol: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The averages that the paper of a protocol prints; for other protocols, those with and without Retrieval."""
    rows = papers().get(protocol, papers()["luna"])["rows"].values()
    printed = {kind: at for kind, at in AVERAGES.items() if any(kind in row for row in rows)}
    if protocol not in papers():
        printed.pop("texts")
    return printed


def published_table(paper: str) -> str:
    """A table in Markdown: a paper's accuracies and averages, both recomputed and as printed, since some are wrong."""
    about = papers()[paper]
    kinds = _kinds(paper)
    lines = []
    for row in about["rows"].values():
        line = [row["title"]]
        for task, accuracy in zip(about["tasks"], row["accuracy"], strict=True):
            line.append("–" if accuracy is None else written(Cell((accuracy,), *PUBLISHED[task])))
        for kind, (_, without) in kinds.items():
            line += [_number(average(about["tasks"], row["accuracy"], without)), _number(row.get(kind))]
        lines.append(line)
    headers = ["", *(TITLES[task] for task in about["tasks"])]
    for title, _ in kinds.values():
        headers += [title, "as printed"]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


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
            "std": None if cell.std is None else round(cell.std, 4),
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


def written(cell: Cell) -> str:
    """Format mean and standard deviation over seeds, with a mark if at chance."""
    spread = "" if cell.std is None else f" ± {cell.std:.2f}"
    return f"{cell.mean:.2f}{spread}{'' if cell.learned else ' ' + AT_CHANCE}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
