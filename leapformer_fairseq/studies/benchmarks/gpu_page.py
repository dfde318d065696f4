"""The report of the GPU benchmark: failures, fastest mechanisms, all rows, and cases that were left out.

It needs torch and no other library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .gpu_cases import SOFTMAX, Row
from .gpu_times import SDPA

CHECKS = ("agreement", "decoding", "synchronisation", "memory")
TITLE = "A GPU: checks and times"
# title, section, value of the mechanisms, value of the baseline, baseline
TABLES = (
    ("Forward and backward: times as fast as SDPA", "attention", "ratio", "ms", SDPA),
    ("Forward: times as fast as SDPA", "attention", "forward_ratio", "forward_ms", SDPA),
    ("A training step: times as fast as softmax", "training", "ratio", "ms", SOFTMAX),
    ("A training step: peak MiB", "training", "peak_mib", "peak_mib", SOFTMAX),
    ("A decoding step: times as fast as SDPA over a KV cache", "decoding step", "ratio", "ms", SDPA),
    ("A decoding step: tokens per second", "decoding step", "tokens_per_second", "tokens_per_second", SDPA),
)


def page(content: dict[str, Any]) -> str:
    """The report as Markdown, in the layout of the other result pages."""
    sections = {name: rows for name, rows in content.items() if isinstance(rows, list) and name != "left_out"}
    left_out, bounds = content["left_out"], content["environment"].get("bounds", {})
    other = sum(len(sections.get(name, [])) for name in CHECKS) - content["passed"] - content["failed"]
    parts = [f"# {TITLE}", "", content["method"].strip(), ""]
    parts += [
        f"{content['passed']} checks passed, {content['failed']} failed, {other} could not be made here; "
        f"{content['seconds']:.0f} seconds; {len(left_out)} cases left out.",
        "",
    ]
    for title, rows in (*summary(sections), *((f"All rows: {name}", rows) for name, rows in sections.items())):
        if rows:
            parts += [f"## {title}", "", table(rows), ""]
        if title == "What could not be measured" and left_out:
            parts += ["## Left out, as the time was up", "", *(f"* {case}" for case in left_out), ""]
    parts += ["Bounds: `" + "|".join(f"{name}:{value}" for name, value in bounds.items()) + "`", ""]
    return "\n".join([*parts, f"Signature: `{content['signature']}`", ""])


def summary(sections: dict[str, list[Row]]) -> list[tuple[str, list[Row]]]:
    """Titles and rows of the tables with the most important results."""
    rows = [(name, row) for name, rows in sections.items() for row in rows]
    checks = [(name, row) for name, row in rows if name in CHECKS]
    bounds = sections.get("bounds", [])
    return [
        ("Checks that failed", [{"check": name, **row} for name, row in checks if is_wrong(row)]),
        ("Checks", _verdicts(checks)),
        ("Largest errors, over what is allowed", _errors(sections.get("agreement", []))),
        *((title, _pivot(sections.get(name, []), *columns)) for title, name, *columns in TABLES),
        ("Bounds: what was fastest", _fastest(bounds)),
        ("Bounds: where all pairs stop to win", crossings(bounds)),
        (
            "What could not be measured",
            [{"section": name, **row} for name, row in rows if name not in CHECKS and "failure" in row],
        ),
    ]


def is_wrong(row: Row) -> bool:
    """Whether a check failed, or could not be run because of an error."""
    return row.get("ok") is False or "failure" in row


def table(rows: Sequence[Row]) -> str:
    """A Markdown table with a column per key."""
    headers = list(dict.fromkeys(key for row in rows for key in row))
    lines = [headers, ["---"] * len(headers), *([_cell(row.get(key)) for key in headers] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if 0 < abs(value) < 0.01:
            return f"{value:.1e}"
        return f"{value:.3f}" if 0 < abs(value) < 0.1 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _grouped(rows: Iterable[Row], *keys: str) -> list[tuple[Row, list[Row]]]:
    """Group rows by the values of `keys`: pairs of {key: value} and rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [(dict(zip(keys, values, strict=True)), group) for values, group in groups.items()]


def _verdicts(checks: Iterable[tuple[str, Row]]) -> list[Row]:
    """Passed and failed checks: a line per kind of check and mechanism."""
    judged = [{"check": name, "mechanism": row.get("case"), **row} for name, row in checks]
    judged = [row for row in judged if row.get("ok") is not None or is_wrong(row)]
    return [
        {**labels, "passed": sum(not is_wrong(row) for row in group), "failed": sum(map(is_wrong, group))}
        for labels, group in _grouped(judged, "check", "mechanism")
    ]


def _errors(rows: Iterable[Row]) -> list[Row]:
    """The largest share of the allowed error: a line per mechanism and mask, a column per precision."""
    lines = []
    for labels, group in _grouped((row for row in rows if row.get("allowed")), "mechanism", "mask"):
        shares = {x["dtype"]: [row["error"] / row["allowed"] for row in some] for x, some in _grouped(group, "dtype")}
        lines.append({**labels, **{dtype: max(some) for dtype, some in shares.items()}})
    return lines


def _pivot(rows: Iterable[Row], value: str, unit: str, baseline: str) -> list[Row]:
    """A line per device and case: the baseline in its unit, and the value of every mechanism."""
    base = baseline if value == unit else f"{baseline} {unit.rpartition('_')[2]}"
    lines = []
    for labels, group in _grouped((row for row in rows if row.get(unit) is not None), "device", "case"):
        by_name = {row["mechanism"]: row for row in group}
        line = {base: by_name[baseline][unit] if baseline in by_name else None}
        lines.append({**labels, **line, **{name: row[value] for name, row in by_name.items() if name != baseline}})
    return lines


def _fastest(rows: Iterable[Row]) -> list[Row]:
    """A line per threshold and case: the fastest value, and the times of all values."""
    return [
        {
            **labels,
            "fastest": next(row["value"] for row in group if row["fastest"]),
            "all, ms": "; ".join(f"{row['value']}: {row['ms']:.2f}" for row in group),
        }
        for labels, group in _grouped((row for row in rows if "ms" in row), "device", "bound", "case", "now")
    ]


def crossings(rows: Iterable[Row]) -> list[Row]:
    """Suggest values of `pairs` and `pairs_per_token` from the longest length at which all pairs are fastest.

    Causal attention computes all pairs of N tokens up to N^2 = pairs * features; bidirectional attention up to N = 2 *
    pairs_per_token * features.
    """
    lines = []
    crossed = [row for row in rows if row["bound"] in ("pairs", "pairs_per_token") and row.get("fastest")]
    for labels, group in _grouped(crossed, "device", "bound", "mechanism", "features", "now"):
        n = max((row["length"] for row in group if row["value"] == "all pairs"), default=0)
        suggested = (n * n if labels["bound"] == "pairs" else n / 2) / labels.pop("features")
        lines.append({**labels, "all pairs win up to": n, "suggested": suggested})
    return lines
