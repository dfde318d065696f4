"""Tables of benchmark results, and missed aims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

Row = dict[str, Any]
Results = dict[str, list[Row]]


class Table(NamedTuple):
    """A table with a line per device and case: the baseline in its `unit`, and the `value` of every mechanism.

    It shows the rows in `section` of the results; if `forms` is not empty, only those whose form is in it.
    """

    title: str
    section: str
    value: str
    unit: str
    baseline: str
    forms: tuple[str, ...] = ()


def summary(results: Results, tables: Sequence[Table], style: str = "simple") -> list[tuple[str, str]]:
    """Titles and tables of the results, for sections that were measured."""
    return [(table.title, by_case(rows, table, style)) for table in tables if (rows := results.get(table.section))]


def markdown(results: Results, tables: Sequence[Table], title: str, method: str, signature: str) -> str:
    """The whole report: the tables, and every row of every section."""
    parts = [f"# {title}", "", method.strip(), ""]
    for heading, table in summary(results, tables, "github"):
        parts += [f"## {heading}", "", table, ""]
    for section, rows in results.items():
        if rows:
            parts += [f"## All rows: {section}", "", tabulate(rows, "keys", tablefmt="github", floatfmt=".2f"), ""]
    return "\n".join([*parts, f"Signature: `{signature}`", ""])


def missed(results: Results) -> list[str]:
    """A line for each aim that was missed."""
    lines = []
    for row in (row for rows in results.values() for row in rows):
        what = "memory" if "peak_mib" in row else "cost" if row.get("at_most") else "speed"
        if row.get("aim") is not None and (row["ratio"] < row["aim"] if what == "speed" else row["ratio"] > row["aim"]):
            bound = "at least" if what == "speed" else "at most"
            lines.append(f"{row['mechanism']}, {row['case']}, {what}: {row['ratio']:.2f}, aim {bound} {row['aim']:g}")
    return lines


def by_case(rows: list[Row], table: Table, style: str) -> str:
    """The table as text, with a column of aims for each mechanism that has any."""
    rows = [row for row in rows if not table.forms or row["form"] in table.forms]
    names = list(dict.fromkeys(row["mechanism"] for row in rows if row["mechanism"] != table.baseline))
    lines: dict[tuple[str, str], Row] = {}
    aimed: set[str] = set()
    for row in rows:
        line = lines.setdefault((row["device"], row["case"]), {})
        line[row["mechanism"]] = row[table.unit] if row["mechanism"] == table.baseline else row[table.value]
        if table.value == "ratio" and row.get("aim") is not None:
            line[f"aim ({row['mechanism']})"] = row["aim"]
            aimed.add(row["mechanism"])
    aims = [f"aim ({name})" for name in names if name in aimed]
    headers = ["device", "case", f"{table.baseline} {table.unit.rpartition('_')[2]}", *names, *aims]
    cells = [
        [*key, line.get(table.baseline), *(line.get(name) for name in (*names, *aims))] for key, line in lines.items()
    ]
    return tabulate(cells, headers, tablefmt=style, floatfmt=".2f", missingval="-")
