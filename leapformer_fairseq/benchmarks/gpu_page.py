"""The page of `gpu`: what failed, what was fastest, every row, and what was left out. Needs no other library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .gpu_bounds import crossings
from .gpu_cases import Row
from .gpu_times import SDPA

CHECKS = ("agreement", "decoding", "synchronisation", "memory")
TITLE = "A GPU: checks and times"


def page(content: dict[str, Any]) -> str:
    """The whole page; the layout is that of the other results."""
    parts = [f"# {TITLE}", "", content["method"].strip(), ""]
    total = sum(len(content.get(section, [])) for section in CHECKS)
    other = total - content["passed"] - content["failed"]
    parts += [
        f"{content['passed']} checks passed, {content['failed']} failed, {other} could not be made here; "
        f"{content['seconds']:.0f} seconds; {len(content['left_out'])} cases left out.",
        "",
    ]
    for title, rows in summary(content):
        if rows:
            parts += [f"## {title}", "", table(rows), ""]
    if content["left_out"]:
        parts += ["## Left out, as the time was up", "", *(f"* {case}" for case in content["left_out"]), ""]
    for section, rows in content.items():
        if rows and isinstance(rows, list) and section != "left_out":
            parts += [f"## All rows: {section}", "", table(rows), ""]
    bounds = content["environment"].get("bounds", {})
    parts += ["Bounds: `" + "|".join(f"{name}:{value}" for name, value in bounds.items()) + "`", ""]
    return "\n".join([*parts, f"Signature: `{content['signature']}`", ""])


def summary(content: dict[str, Any]) -> list[tuple[str, list[Row]]]:
    """Titles and rows of what matters first."""
    checks = [(section, row) for section in CHECKS for row in content.get(section, [])]
    failed = [{"check": section, **row} for section, row in checks if is_wrong(row)]
    attention, training = content.get("attention", []), content.get("training", [])
    steps, bounds = content.get("decoding step", []), content.get("bounds", [])
    errors = [
        {"section": section, **row}
        for section, rows in content.items()
        if isinstance(rows, list) and section not in (*CHECKS, "left_out")
        for row in rows
        if "failure" in row
    ]
    return [
        ("Checks that failed", failed),
        ("Checks", _verdicts(checks)),
        ("Largest errors, over what is allowed", _errors(content.get("agreement", []))),
        ("Forward and backward: times as fast as SDPA", _pivot(attention, "ratio", "forward_backward_ms", SDPA)),
        ("Forward: times as fast as SDPA", _pivot(attention, "ratio_forward", "forward_ms", SDPA)),
        ("A training step: times as fast as softmax", _pivot(training, "ratio", "ms", "softmax")),
        ("A training step: peak MiB", _pivot(training, "peak_mib", "peak_mib", "softmax")),
        ("A decoding step: times as fast as SDPA over a KV cache", _pivot(_by_form(steps), "ratio", "us", SDPA)),
        ("A decoding step: tokens per second", _pivot(_by_form(steps), "tokens_per_second", "tokens_per_second", SDPA)),
        ("Bounds: what was fastest", _fastest(bounds)),
        ("Bounds: where all pairs stop to win", crossings(bounds)),
        ("What could not be measured", errors),
    ]


def is_wrong(row: Row) -> bool:
    """Whether a check failed, or could not be made for an error."""
    return row.get("ok") is False or "failure" in row


def table(rows: Sequence[Row]) -> str:
    """A table in Markdown with a column for every key there is."""
    headers = list(dict.fromkeys(key for row in rows for key in row))
    lines = [headers, ["---"] * len(headers), *([_cell(row.get(key)) for key in headers] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.01 else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.2f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _verdicts(checks: Iterable[tuple[str, Row]]) -> list[Row]:
    """One line per kind of check and mechanism."""
    found: dict[tuple[str, str], Row] = {}
    for section, row in checks:
        name = row.get("mechanism") or row.get("case", "")
        line = found.setdefault((section, name), {"check": section, "mechanism": name, "passed": 0, "failed": 0})
        line["passed"] += row.get("ok") is True
        line["failed"] += is_wrong(row)
    return [line for line in found.values() if line["passed"] or line["failed"]]


def _errors(rows: Iterable[Row]) -> list[Row]:
    """The largest share of the allowed error by mechanism and mask, a column per precision."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.get("allowed"):
            line = found.setdefault(
                (row["mechanism"], row["mask"]), {"mechanism": row["mechanism"], "mask": row["mask"]}
            )
            line[row["dtype"]] = max(line.get(row["dtype"], 0.0), row["error"] / row["allowed"])
    return list(found.values())


def _by_form(rows: Iterable[Row]) -> list[Row]:
    return [{**row, "case": f"{row['case']}, {row['form']}"} for row in rows if "form" in row]


def _pivot(rows: Iterable[Row], value: str, unit: str, baseline: str) -> list[Row]:
    """One line per device and case: the baseline in its unit, and the value of every mechanism."""
    lines: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.get(unit) is None or "mechanism" not in row:
            continue
        line = lines.setdefault((row["device"], row["case"]), {"device": row["device"], "case": row["case"]})
        if row["mechanism"] == baseline:
            line[baseline if value == unit else f"{baseline} {unit.rpartition('_')[2]}"] = row[unit]
        else:
            line[row["mechanism"]] = row.get(value)

    def order(key: str) -> tuple[bool, bool]:
        return key not in ("device", "case"), not key.startswith(baseline)

    return [{key: line[key] for key in sorted(line, key=order)} for line in lines.values()]


def _fastest(rows: Iterable[Row]) -> list[Row]:
    """One line per bound and case: the fastest value, and the times of all."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if "forward_backward_ms" not in row:
            continue
        labels = {name: row[name] for name in ("device", "bound", "case", "now")}
        line = found.setdefault((row["device"], row["bound"], row["case"]), {**labels, "fastest": "", "all, ms": ""})
        if row["fastest"]:
            line["fastest"] = row["value"]
        line["all, ms"] += f"{'; ' if line['all, ms'] else ''}{row['value']}: {row['forward_backward_ms']:.2f}"
    return list(found.values())
