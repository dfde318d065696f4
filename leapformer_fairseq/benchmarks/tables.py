"""Results of the attention benchmark as tables."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from .attention import AIMS_MECHANISM, SDPA

Row = dict[str, Any]
Found = dict[str, list[Row]]


def summary(found: Found, style: str = "simple") -> list[tuple[str, str]]:
    """Titles and tables of what matters first: the form that each mechanism chooses itself, against its aims."""
    times = [row for row in found["times"] if row["form"] in ("auto", SDPA)]
    return [
        ("Forward and backward: times as fast as SDPA", _by_case(times, "ratio", "forward_backward_ms", SDPA, style)),
        ("Forward: times as fast as SDPA", _by_case(times, "ratio_forward", "forward_ms", SDPA, style)),
        (
            "One step of generation: times as fast as a KV cache",
            _by_case(found["steps"], "ratio", "us", "softmax", style),
        ),
        (
            "Peak memory, forward and backward: times that of SDPA",
            _by_case(found["memory"], "ratio", "peak_mib", SDPA, style),
        ),
    ]


def markdown(found: Found, method: str, signature: str) -> str:
    """The whole report."""
    parts = ["# Attention: speed and memory", "", method.strip(), ""]
    for title, table in (*summary(found, "github"), ("Every form", _every_form(found["times"], "github"))):
        parts += [f"## {title}", "", table, ""]
    return "\n".join([*parts, f"Signature: `{signature}`", ""])


def missed(found: Found) -> list[str]:
    """The aims that were not reached, one line each."""
    lines = []
    for row in (*found["times"], *found["memory"]):
        is_memory = "peak_mib" in row
        if row.get("aim") is not None and (row["ratio"] > row["aim"] if is_memory else row["ratio"] < row["aim"]):
            what, bound = ("memory", "at most") if is_memory else ("speed", "at least")
            lines.append(f"{row['mechanism']}, {row['case']}, {what}: {row['ratio']:.2f}, aim {bound} {row['aim']:g}")
    return lines


def _by_case(rows: list[Row], value: str, unit: str, baseline: str, style: str) -> str:
    """One line per device and case: the baseline in its unit, every mechanism's ratio, and the aim."""
    names = list(dict.fromkeys(row["mechanism"] for row in rows if row["mechanism"] != baseline))
    lines: dict[tuple[str, str], Row] = {}
    for row in rows:
        line = lines.setdefault((row["device"], row["case"]), {})
        line[row["mechanism"]] = row[unit] if row["mechanism"] == baseline else row[value]
        if value == "ratio" and row.get("aim") is not None:
            line["aim"] = row["aim"]
    headers = ["device", "case", f"{baseline} {unit.rpartition('_')[2]}", *names]
    cells = [[*key, line[baseline], *(line.get(name) for name in names)] for key, line in lines.items()]
    if any("aim" in line for line in lines.values()):
        headers.append(f"aim ({AIMS_MECHANISM})")
        cells = [[*cell, line.get("aim")] for cell, line in zip(cells, lines.values(), strict=True)]
    return tabulate(cells, headers, tablefmt=style, floatfmt=".2f", missingval="-")


def _every_form(rows: list[Row], style: str) -> str:
    keys = (
        "device",
        "case",
        "batch",
        "mechanism",
        "form",
        "forward_ms",
        "forward_backward_ms",
        "ratio_forward",
        "ratio",
    )
    return tabulate([[row[key] for key in keys] for row in rows], keys, tablefmt=style, floatfmt=".2f")
