"""Tables of benchmark results, and missed aims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...scoring.table import Column, Table, page

Row = dict[str, Any]
Results = dict[str, list[Row]]


class Shown(NamedTuple):
    """A table with a line per device and case: the baseline in its `unit`, and the `value` of every mechanism.

    It shows the rows in `section` of the results; if `forms` is not empty, only those whose form is in it.
    """

    title: str
    section: str
    value: str
    unit: str
    baseline: str
    forms: tuple[str, ...] = ()


def summary(results: Results, tables: Sequence[Shown]) -> list[tuple[str, Table]]:
    """Titles and tables of the results, for sections that were measured."""
    return [(table.title, by_case(rows, table)) for table in tables if (rows := results.get(table.section))]


def markdown(results: Results, tables: Sequence[Shown], title: str, method: str, signature: str) -> str:
    """The whole report: the tables, and every row of every section."""
    shown = summary(results, tables)
    shown += [(f"All rows: {name}", Table.of(rows, _digits)) for name, rows in results.items() if rows]
    parts = [part for heading, table in shown for part in (f"## {heading}", table.markdown())]
    return page(f"# {title}", method.strip(), *parts, f"Signature: `{signature}`")


def _digits(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def missed(results: Results) -> list[str]:
    """A line for each aim that was missed."""
    lines = []
    for row in (row for rows in results.values() for row in rows):
        what = "memory" if "peak_mib" in row else "cost" if row.get("at_most") else "speed"
        if row.get("aim") is not None and (row["ratio"] < row["aim"] if what == "speed" else row["ratio"] > row["aim"]):
            bound = "at least" if what == "speed" else "at most"
            lines.append(f"{row['mechanism']}, {row['case']}, {what}: {row['ratio']:.2f}, aim {bound} {row['aim']:g}")
    return lines


def by_case(rows: list[Row], table: Shown) -> Table:
    """The table, with a column of aims for each mechanism that has any."""
    rows = [row for row in rows if not table.forms or row["form"] in table.forms]
    names = [name for name in dict.fromkeys(row["mechanism"] for row in rows) if name != table.baseline]
    lines: dict[tuple[str, str], Row] = {}
    for row in rows:
        line = lines.setdefault((row["device"], row["case"]), {"device": row["device"], "case": row["case"]})
        line[row["mechanism"]] = row[table.unit if row["mechanism"] == table.baseline else table.value]
        if table.value == "ratio":
            line[f"aim ({row['mechanism']})"] = row.get("aim")
    baseline = _column(table.baseline, f"{table.baseline} {table.unit.rpartition('_')[2]}")
    columns = [Column("device"), Column("case"), baseline, *map(_column, names)]
    return Table(list(lines.values()), [*columns, *(_column(f"aim ({name})", optional=True) for name in names)])


def _column(name: str, title: str | None = None, optional: bool = False) -> Column:
    return Column(name, title, _digits, lambda line: line.get(name), "-", optional)
