"""What a sweep found: fronts, tables and files.

A front holds the points of a method that no other point of it beats in both sparsity and the other measure.
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
    """The rows that no other beats in both sparsity and `measure`, from the least sparse on."""
    sign = 1 if larger else -1
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["sparsity"], -sign * row[measure])):
        if not found or sign * row[measure] > sign * found[-1][measure]:
            found.append(row)
    return found[::-1]


def best_at(rows: Iterable[Row], sparsity: float, measure: str = "recall") -> float | None:
    """The highest `measure` of all rows of at least this sparsity; None where there are none."""
    return max((row[measure] for row in rows if row["sparsity"] >= sparsity), default=None)


def thinned(rows: Sequence[Row], count: int) -> list[Row]:
    """At most `count` of a front, spread evenly, its ends among them."""
    if len(rows) <= count:
        return list(rows)
    places = sorted({round(i * (len(rows) - 1) / (count - 1)) for i in range(count)}) if count > 1 else [0]
    return [rows[i] for i in places]


def with_gold(points: Sequence[Row], front: Sequence[Row], sparsity: float) -> list[Row]:
    """The points and, if it is none of them, that of their front with the best recall from the gold sparsity on."""
    found = next((row for row in front if row["sparsity"] >= sparsity), None)
    return [*points, *([found] if points and found is not None and found not in points else [])]


def by_seed(rows: Iterable[Row], mechanism: str) -> dict[int, list[Row]]:
    """The rows of a mechanism, by seed."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row["mechanism"] == mechanism:
            found.setdefault(row["seed"], []).append(row)
    return found


def recall_table(rows: Sequence[Row]) -> list[Row]:
    """The best recall of each mechanism from each sparsity on: mean, least and largest over seeds."""
    table = []
    for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
        line: Row = {"mechanism": mechanism, "seeds": len(by_seed(rows, mechanism))}
        for sparsity in SPARSITIES:
            found = [best_at(of_seed, sparsity) for of_seed in by_seed(rows, mechanism).values()]
            known = [x for x in found if x is not None]
            line[f"{sparsity}"] = None if not known else [sum(known) / len(known), min(known), max(known)]
        table.append(line)
    return sorted(table, key=lambda line: -(line["0.8"] or [0])[0])


def as_markdown(table: Sequence[Row]) -> str:
    """`recall_table` for reading."""
    lines = []
    for row in table:
        cells = [row[f"{sparsity}"] for sparsity in SPARSITIES]
        lines.append([row["mechanism"], row["seeds"], *(_range(cell) for cell in cells)])
    headers = ["recall from a sparsity of", "seeds", *(f"{sparsity}" for sparsity in SPARSITIES)]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def full_markdown(gold: Row) -> str:
    """What full entmax scores, in a line."""
    long = f" ({gold['long']:.3f} of the {gold['long_count']} long sentences)" if gold["long_count"] else ""
    sparsity = f"a sparsity of {gold['sparsity']:.3f}"
    return f"full entmax: {gold['name']} {gold['quality']:.3f}{long}, {sparsity}, {gold['seconds']:.1f} s"


def quality_markdown(rows: Sequence[Row], name: str) -> str:
    """The scored points, by mechanism and sparsity."""
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
    """Seconds and quality of each pattern of blocks, and of full entmax."""
    lines = [["entmax, all pairs", "", f"{full['quality']:.3f}", f"{full['seconds']:.2f}"]]
    lines += [
        [row["mechanism"], options_text(row["options"]), f"{row['quality']:.3f}", f"{row['seconds']:.2f}"]
        for row in rows
    ]
    return tabulate(lines, ["mechanism", "options", full["name"], "seconds"], tablefmt="github", disable_numparse=True)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """All rows with the columns of the measures, and of quality where some were scored."""
    scored = any("quality" in row for row in rows)
    columns = [*COLUMNS, *(("quality", "long", "long_count", "seconds", "incremental") if scored else ())]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n", restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "options": options_text(row["options"]), "origins": " ".join(row["origins"])})
    write_text(path, text.getvalue(), "--out")


def options_text(options: dict[str, Any]) -> str:
    """As in `threshold=1.0`."""
    return " ".join(f"{name.partition('_')[2]}={value}" for name, value in options.items())


def _range(cell: list[float] | None) -> str:
    if cell is None:
        return "–"
    mean, least, largest = cell
    return f"{mean:.3f}" if least == largest else f"{mean:.3f} ({least:.3f} to {largest:.3f})"
