"""Reports of a sweep: fronts, tables and files.

A front holds the points of a method that none of its other points beats in both sparsity and the other measure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ...support.files import write_text

Row = dict[str, Any]
SPARSITIES = (0.6, 0.7, 0.8, 0.9)
COLUMNS = ("mechanism", "options", "window", "seed", "origins", "sparsity", "recall", "precision", "exact")


def front(rows: Iterable[Row], measure: str, larger: bool = True) -> list[Row]:
    """Return the rows that no other beats in both sparsity and `measure`, the least sparse first."""
    sign = 1 if larger else -1
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["sparsity"], -sign * row[measure])):
        if not best or sign * row[measure] > sign * best[-1][measure]:
            best.append(row)
    return best[::-1]


def best_at(rows: Iterable[Row], sparsity: float, measure: str = "recall") -> float | None:
    """Return the highest `measure` of the rows with at least this sparsity; None without any."""
    return max((row[measure] for row in rows if row["sparsity"] >= sparsity), default=None)


def thinned(rows: Sequence[Row], count: int) -> list[Row]:
    """Return at most `count` rows of a front, spread evenly and with both ends (for a `count` of 1, the first)."""
    if len(rows) <= count:
        return list(rows)
    places = sorted({round(i * (len(rows) - 1) / (count - 1)) for i in range(count)}) if count > 1 else [0]
    return [rows[i] for i in places]


def with_gold(points: Sequence[Row], front: Sequence[Row], sparsity: float) -> list[Row]:
    """Return the points and, unless it is one of them, the front's point with the best recall from `sparsity` on."""
    best = next((row for row in front if row["sparsity"] >= sparsity), None)
    return [*points, *([best] if points and best is not None and best not in points else [])]


def by_seed(rows: Iterable[Row], mechanism: str) -> dict[int, list[Row]]:
    """Return the rows of a mechanism, {seed: rows}."""
    seeds: dict[int, list[Row]] = {}
    for row in rows:
        if row["mechanism"] == mechanism:
            seeds.setdefault(row["seed"], []).append(row)
    return seeds


def recall_table(rows: Sequence[Row]) -> list[Row]:
    """Return each mechanism's best recall from each sparsity on: mean, least and largest over seeds."""
    table = []
    for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
        line: Row = {"mechanism": mechanism, "seeds": len(by_seed(rows, mechanism))}
        for sparsity in SPARSITIES:
            best = [best_at(of_seed, sparsity) for of_seed in by_seed(rows, mechanism).values()]
            recalls = [recall for recall in best if recall is not None]
            line[f"{sparsity}"] = [sum(recalls) / len(recalls), min(recalls), max(recalls)] if recalls else None
        table.append(line)
    return sorted(table, key=lambda line: -(line["0.8"] or [0])[0])


def as_markdown(table: Sequence[Row]) -> str:
    """Return the rows of `recall_table` as Markdown."""
    lines = []
    for row in table:
        cells = [row[f"{sparsity}"] for sparsity in SPARSITIES]
        lines.append([row["mechanism"], row["seeds"], *(_range(cell) for cell in cells)])
    headers = ["recall from a sparsity of", "seeds", *(f"{sparsity}" for sparsity in SPARSITIES)]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def full_markdown(gold: Row) -> str:
    """Return the score of full entmax in one line."""
    long = f" ({gold['long']:.3f} of the {gold['long_count']} long sentences)" if gold["long_count"] else ""
    sparsity = f"a sparsity of {gold['sparsity']:.3f}"
    return f"full entmax: {gold['name']} {gold['quality']:.3f}{long}, {sparsity}, {gold['seconds']:.1f} s"


def quality_markdown(rows: Sequence[Row], name: str) -> str:
    """Return the scored points as Markdown, sorted by mechanism and sparsity."""
    long = any(row["long_count"] for row in rows)
    lines = [
        [
            row["mechanism"] + ("" if row["incremental"] else " (non-causal)"),
            options_text(row["options"]),
            row["window"],
            row["seed"],
            f"{row['sparsity']:.3f}",
            f"{row['recall']:.3f}",
            f"{row['quality']:.3f}",
            *([f"{row['long']:.3f}"] if long else []),
            f"{row['seconds']:.1f}",
        ]
        for row in sorted(rows, key=lambda row: (row["mechanism"], row["sparsity"]))
    ]
    headers = [
        "mechanism",
        "options",
        "window",
        "seed",
        "sparsity",
        "recall",
        name,
        *(["long sentences"] if long else []),
        "seconds",
    ]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def blocks_markdown(rows: Sequence[Row], full: Row) -> str:
    """Return seconds and quality of full entmax and of each pattern of blocks as Markdown."""
    lines = [["entmax, all pairs", "", f"{full['quality']:.3f}", f"{full['seconds']:.2f}"]]
    lines += [
        [row["mechanism"], options_text(row["options"]), f"{row['quality']:.3f}", f"{row['seconds']:.2f}"]
        for row in rows
    ]
    return tabulate(lines, ["mechanism", "options", full["name"], "seconds"], tablefmt="github", disable_numparse=True)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write all rows with the columns of the measures, and those of quality if any row was scored."""
    scored = any("quality" in row for row in rows)
    columns = [*COLUMNS, *(("quality", "long", "long_count", "seconds", "incremental") if scored else ())]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n", restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "options": options_text(row["options"]), "origins": " ".join(row["origins"])})
    write_text(path, text.getvalue(), "--out")


def options_text(options: dict[str, Any]) -> str:
    """Return options as text, e.g. `threshold=1.0`."""
    return " ".join(f"{name.partition('_')[2]}={value}" for name, value in options.items())


def _range(cell: list[float] | None) -> str:
    if cell is None:
        return "–"
    mean, least, largest = cell
    return f"{mean:.3f}" if least == largest else f"{mean:.3f} ({least:.3f} to {largest:.3f})"
