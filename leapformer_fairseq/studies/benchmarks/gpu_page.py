"""The report of the GPU benchmark as a page: verdict, checks, failures, speed-ups and thresholds, without single rows.

It needs torch and no other library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ...scoring.table import Table, bullets, significant
from ...scoring.table import page as joined
from .gpu_cases import FAST, FULL, NAMES, SOFTMAX, Row
from .gpu_times import SDPA

CHECKS = ("agreement", "decoding", "synchronisation", "memory")
CROSSED = ("pairs", "pairs_per_token")  # thresholds that are varied with the length
TITLE = "A GPU: checks and times"
PICTURE = "gpu.svg"
SHOWN = 8  # cases that a line of failures names

T = TypeVar("T")
Columns = dict[str, dict[str, float | None]]  # title -> mechanism -> value


def page(content: dict[str, Any], picture: str = "") -> str:
    """The report as Markdown; `picture`: the line that shows gpu.svg, if it is beside it."""
    sections = {name: rows for name, rows in content.items() if isinstance(rows, list) and name != "left_out"}
    checks = [(name, row) for name in CHECKS for row in sections.get(name, [])]
    times = [(name, row) for name, rows in sections.items() if name not in CHECKS for row in rows]
    left_out = [f"Left out, as the time was up: {'; '.join(content['left_out'])}"] if content["left_out"] else []
    notes = [f"{name}: {row['note'].removeprefix('not measured: ')}" for name, row in times if "note" in row]
    by_mask = _grouped(_timed(sections, "attention"), lambda row: _mask(row)[0])
    parts = [f"# {TITLE}", _what(content), _verdict(content, len(checks)), picture]
    for title, text in (
        ("What failed", bullets(failures([*checks, *times]))),
        ("Checks", _checks(checks)),
        ("Not measured", bullets(dict.fromkeys([*left_out, *notes]))),
        *((f"Attention, {mask}: times as fast as SDPA", _attention(rows)) for mask, rows in by_mask.items()),
        ("A training step: times as fast as softmax", _training(_timed(sections, "training"))),
        ("A decoding step: times as fast as SDPA over a KV cache", _decoding(_timed(sections, "decoding step"))),
        ("A training step of whole language models", table(_timed(sections, "fairseq", "seconds"))),
        ("Thresholds: what was fastest", _thresholds(sections.get("bounds", []))),
    ):
        if text:
            parts += [f"## {title}", text]
    bounds = "|".join(f"{name}:{value}" for name, value in content["environment"].get("bounds", {}).items())
    _, *method = (paragraph.replace("\n", " ").strip() for paragraph in content["method"].split("\n\n"))
    parts += [f"Thresholds in force: `{bounds}`", "## Method", *method]
    return joined(*parts, f"Signature: `{content['signature']}`")


def _what(content: dict[str, Any]) -> str:
    about, sizes = content["environment"], FAST if content["options"].get("fast") else FULL
    gpu = f"{about['gpu']} ({about['memory_gib']} GiB, CUDA {about['cuda']})" if "gpu" in about else "no GPU"
    return (
        f"`bash scripts/gpu.sh` on {gpu} with torch {about.get('torch')}, in {content['seconds']:.0f} seconds: "
        f"{sizes.heads} heads of dimension {sizes.dim}, {sizes.batch_tokens:,} tokens in a batch. Ratios are speed-ups "
        "over PyTorch's softmax attention on the same device: 2 is twice as fast, 0.5 half as fast. Times of attention "
        "and training are those of forward and backward pass; decoding steps are named by batch × tokens before them. "
        "Tables begin with what is fastest in the longest case. Every measurement, also of the forward pass alone, is "
        "in [gpu.json](gpu.json); the method is described [below](#method)."
    )


def _verdict(content: dict[str, Any], checks: int) -> str:
    passed, failed = content["passed"], content["failed"]
    words = [f"**{passed:,} checks passed, {failed:,} failed**"]
    if other := checks - passed - failed:
        words.append(f"{other:,} could not be made here")
    if left_out := len(content["left_out"]):
        words.append(f"{left_out:,} cases were left out")
    return "; ".join(words) + "."


# -------------------------------------------------------------------------------------------------- checks and failures
def is_wrong(row: Row) -> bool:
    """Whether a check failed, or could not be run because of an error."""
    return row.get("ok") is False or "failure" in row


def _checks(checks: Sequence[tuple[str, Row]]) -> str:
    """A line per mechanism: passed checks by kind, and the largest error of each precision over what is allowed."""
    judged = [(name, row) for name, row in checks if row.get("ok") is not None or is_wrong(row)]
    dtypes = dict.fromkeys(row["dtype"] for _, row in checks if "dtype" in row)
    lines = []
    for mechanism, rows in sorted(_grouped(judged, lambda check: _mechanism(check[1])).items()):
        line: Row = {"mechanism": mechanism}
        for check in CHECKS:
            passed = [not is_wrong(row) for name, row in rows if name == check]
            line[check] = f"{sum(passed)} of {len(passed)}" if not all(passed) else str(len(passed) or "")
        for dtype in dtypes:
            shares = [_share(row) for _, row in rows if row.get("dtype") == dtype and "error" in row]
            line[f"{dtype}: error / allowed"] = max(shares, default=None)
        lines.append(line)
    return table(lines)


def _share(row: Row) -> float:
    """The error of a check over what is allowed; NaN is beyond any limit."""
    error = float(row["error"])
    return error / row["allowed"] if error == error else math.inf


def failures(rows: Iterable[tuple[str, Row]]) -> list[str]:
    """A line for each section, mechanism and kind of failure, with its first reason and the cases."""
    wrong = _grouped(
        ((name, row) for name, row in rows if is_wrong(row)),
        lambda x: (x[0], _mechanism(x[1]), x[1].get("failure", "").partition(":")[0]),
    )
    lines = []
    for (section, mechanism, _), group in wrong.items():
        cases = dict.fromkeys(_case(row) for _, row in group)
        reason = _reason(group[0][1]).replace("\n", " ")
        lines.append(f"{section}, {mechanism}: {reason} ({_joined(cases)})".replace(" ()", ""))
    return lines


def _reason(row: Row) -> str:
    """Why a check or a timing failed: the first sentence of its error, or the limit that it exceeds."""
    if "failure" in row:
        return str(row["failure"]).partition(". ")[0]
    if "error" in row:
        return f"error {significant(row['error'])} of {row.get('of')}, allowed {significant(row['allowed'])}"
    return ", ".join(f"{key} {significant(value)}" for key, value in row.items() if isinstance(value, float))


def _case(row: Row) -> str:
    case = row.get("case", "") if "mechanism" in row else ""  # else it is the mechanism's name
    keys = "mask", "dtype", "execution", "what", "value"
    return ", ".join(filter(None, (case, *(str(row.get(key, "")) for key in keys), _precision(row))))


def _joined(cases: Iterable[str]) -> str:
    named = list(cases)
    more = [f"{len(named) - SHOWN} more"] if len(named) > SHOWN else []
    return "; ".join([*named[:SHOWN], *more])


def _mechanism(row: Row) -> str:
    return str(row.get("mechanism") or row.get("case", "").partition(", ")[0])


# ---------------------------------------------------------------------------------------------------------------- times
def _timed(sections: Mapping[str, list[Row]], name: str, unit: str = "ms") -> list[Row]:
    return [row for row in sections.get(name, []) if row.get(unit) is not None]


def _attention(rows: Iterable[Row]) -> str:
    """Speed-ups with one mask: a column per precision and length."""
    by_size = _grouped(rows, lambda row: (_precision(row), _mask(row)[1]))
    order = list(dict.fromkeys(precision for precision, _ in by_size))
    columns, base = Columns(), dict[str, float | None]()
    for (precision, length), group in sorted(by_size.items(), key=lambda x: (order.index(x[0][0]), x[0][1])):
        title = f"{precision} {length:,}"
        columns[title], base[title] = _values(group, "ratio", SDPA), _values(group, "ms").get(SDPA)
    longest = {title.partition(" ")[0]: title for title in columns}
    return _by_mechanism("SDPA", "ms", base, columns, list(longest.values()))


def _training(rows: Iterable[Row]) -> str:
    """Speed-ups by length, then peak memory by length if it was measured."""
    by_length = sorted(_grouped(rows, lambda row: _integer(row["case"].partition(" ")[0])).items())
    columns, base = Columns(), dict[str, float | None]()
    for length, group in by_length:
        title = f"{length:,}"
        columns[title], base[title] = _values(group, "ratio", SOFTMAX), _values(group, "ms").get(SOFTMAX)
    longest = list(columns)[-1:]
    for length, group in by_length:
        gib: dict[str, float | None] = {
            name: mib / 1024 for name, mib in _values(group, "peak_mib").items() if mib is not None
        }
        if gib:
            title = f"GiB {length:,}"
            base[title], columns[title] = gib.pop(SOFTMAX, None), gib
    return _by_mechanism(SOFTMAX, "ms and GiB", base, columns, longest)


def _decoding(rows: Iterable[Row]) -> str:
    """Speed-ups by batch and number of tokens before the step: eager ones, then those of a CUDA graph."""
    columns, base = Columns(), dict[str, float | None]()
    by_form = _grouped(rows, lambda row: row["case"].rpartition(", ")[::2])
    for case, form in sorted(by_form, key=lambda x: x[1]):
        batch, context = re.findall(r"[\d,]*\d", case)
        title, group = f"{form} {batch} × {context}", by_form[case, form]
        columns[title], base[title] = _values(group, "ratio", SDPA), _values(group, "ms").get(SDPA)
    longest = {title.partition(" ")[0]: title for title in columns}
    return _by_mechanism("SDPA", "ms", base, columns, list(longest.values()))


def _values(rows: Iterable[Row], key: str, without: str = "") -> dict[str, float | None]:
    return {row["mechanism"]: row.get(key) for row in rows if row["mechanism"] != without}


def _by_mechanism(
    base: str, unit: str, first: Mapping[str, float | None], columns: Columns, longest: Sequence[str]
) -> str:
    """How many mechanisms are faster than the baseline in the columns `longest`, and a table with a line for each.

    The first line is the baseline's, in its unit; the others are in the order of the first column of `longest`.
    """
    if not columns:
        return ""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    names.sort(key=lambda name: -(columns[longest[0]].get(name) or 0))
    lines: list[Row] = [{"mechanism": f"{base}, {unit}", **first}]
    lines += [{"mechanism": name, **{title: column.get(name) for title, column in columns.items()}} for name in names]
    counts = []
    for title in longest:
        ratios = [ratio for name, ratio in columns[title].items() if name in NAMES and ratio is not None]
        counts.append(f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)} mechanisms ({title})")
    return f"Faster than {base}: {', '.join(counts)}.\n\n{table(lines)}"


def _precision(row: Row) -> str:
    """The precision of a device as `Place` writes it: "cuda bfloat16", or "cuda" for float32."""
    return (row["device"].partition(" ")[2] or "float32") if "device" in row else ""


def _mask(row: Row) -> tuple[str, int]:
    """The mask and the length of a case such as "causal 2,048"."""
    mask, _, length = row["case"].rpartition(" ")
    return mask, _integer(length)


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


# ----------------------------------------------------------------------------------------------------------- thresholds
def _thresholds(rows: Sequence[Row]) -> str:
    """The fastest value of each threshold, and the length from which states are faster than all pairs."""
    tables = table(_fastest(row for row in rows if row.get("bound") not in CROSSED)), table(crossings(rows))
    return "\n\n".join(filter(None, tables))


def _fastest(rows: Iterable[Row]) -> list[Row]:
    """A line per threshold and case: the value in force, the fastest one, and the times of all."""
    lines = []
    keys = "bound", "case", "now"
    for values, group in _grouped((row for row in rows if "ms" in row), lambda row: [row[key] for key in keys]).items():
        line = dict(zip(("threshold", "case", "in force"), values, strict=True))
        times = {row["value"].replace(",", ""): row["ms"] for row in group}
        best, now = min(times, key=lambda value: times[value]), times.get(line["in force"])
        line |= {"fastest": best, "times as fast": None if now is None else now / times[best]}
        lines.append({**line, "ms": "; ".join(f"{value}: {significant(ms)}" for value, ms in times.items())})
    return lines


def crossings(rows: Iterable[Row]) -> list[Row]:
    """Suggest values of `pairs` and `pairs_per_token` from the longest length at which all pairs are fastest.

    Causal attention computes all pairs of N tokens up to N^2 = pairs * features; bidirectional attention up to N = 2 *
    pairs_per_token * features.
    """
    lines = []
    crossed = [row for row in rows if row.get("bound") in CROSSED and "fastest" in row]
    keys = "bound", "mechanism", "features", "now"
    for (bound, mechanism, features, now), group in _grouped(crossed, lambda row: [row[key] for key in keys]).items():
        n = max((row["length"] for row in group if row["value"] == "all pairs" and row["fastest"]), default=0)
        line = {"threshold": bound, "mechanism": mechanism, "in force": now, "all pairs win up to": n}
        line["suggested"] = (n * n if bound == "pairs" else n / 2) / features
        by_length = _grouped((row for row in group if "ms" in row), lambda row: row["length"])
        times = {length: {row["value"]: row["ms"] for row in both} for length, both in by_length.items()}
        line["all pairs: times as fast as states"] = "; ".join(
            f"{length:,}: {significant(ms['states'] / ms['all pairs'])}" for length, ms in times.items() if len(ms) == 2
        )
        lines.append(line)
    return lines


# --------------------------------------------------------------------------------------------------------------- tables
def table(rows: Sequence[Row]) -> str:
    """A Markdown table with a column per key; empty without rows."""
    return Table.of(rows, significant, "-").markdown() if rows else ""


def _grouped(rows: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Rows by their keys, in the order of their first row; a key that is a list is made a tuple."""
    groups: dict[Any, list[T]] = {}
    for row in rows:
        value = key(row)
        groups.setdefault(tuple(value) if isinstance(value, list) else value, []).append(row)
    return groups
