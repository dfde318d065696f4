"""Reports of a sweep: fronts, tables and files.

A front holds the points of a method that none of its other points beats in both sparsity and the other measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ...scoring.table import NOTHING, Column, Record, Table
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
    records = [
        {
            name: dict(zip(("mean", "min", "max"), cell, strict=True)) if isinstance(cell, list) else cell
            for name, cell in row.items()
        }
        for row in table
    ]
    columns = [Column("mechanism", "recall from a sparsity of"), Column("seeds")]
    recalls = [Column(f"{sparsity}", None, ".3f", _get(f"{sparsity}"), NOTHING) for sparsity in SPARSITIES]
    return Table(records, [*columns, *recalls]).markdown()


def _get(name: str) -> Callable[[Record], Any]:
    return lambda record: record[name]


def full_markdown(gold: Row) -> str:
    """Return the score of full entmax in one line."""
    long = f" ({gold['long']:.3f} of the {gold['long_count']} long sentences)" if gold["long_count"] else ""
    sparsity = f"a sparsity of {gold['sparsity']:.3f}"
    return f"full entmax: {gold['name']} {gold['quality']:.3f}{long}, {sparsity}, {gold['seconds']:.1f} s"


def quality_markdown(rows: Sequence[Row], name: str) -> str:
    """Return the scored points as Markdown, sorted by mechanism and sparsity."""
    mechanism = Column("mechanism", of=lambda row: row["mechanism"] + ("" if row["incremental"] else " (non-causal)"))
    columns = [mechanism, OPTIONS, Column("window"), Column("seed"), *_numbers("sparsity", "recall")]
    columns += [Column("quality", name, ".3f"), Column("long", "long sentences", ".3f", optional=True)]
    ranked = sorted(rows, key=lambda row: (row["mechanism"], row["sparsity"]))
    return Table(ranked, [*columns, Column("seconds", form=".1f")]).markdown()


def blocks_markdown(rows: Sequence[Row], full: Row) -> str:
    """Return seconds and quality of full entmax and of each pattern of blocks as Markdown."""
    columns = [Column("mechanism"), OPTIONS, Column("quality", full["name"], ".3f"), Column("seconds", form=".2f")]
    return Table([{**full, "mechanism": "entmax, all pairs", "options": {}}, *rows], columns).markdown()


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write all rows with the columns of the measures, and those of quality if any row was scored."""
    scored = any("quality" in row for row in rows)
    names = [*COLUMNS, *(("quality", "long", "long_count", "seconds", "incremental") if scored else ())]
    columns = [OPTIONS if name == "options" else Column(name) for name in names]
    write_text(path, Table(rows, columns).csv(), "--out")


def _numbers(*names: str) -> list[Column]:
    return [Column(name, form=".3f") for name in names]


def options_text(options: dict[str, Any]) -> str:
    """Return options as text, e.g. `threshold=1.0`."""
    return " ".join(f"{name.partition('_')[2]}={value}" for name, value in options.items())


OPTIONS = Column("options", of=lambda row: options_text(row["options"]))
