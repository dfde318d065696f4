"""The scores of whole talks as `leapformer score` and `leapformer simulate` print them."""

from __future__ import annotations

from typing import Any

from ..runtime.formats.talks import LOGGED, QUEUED, REPAIRED
from ..scoring.latency import HIGH_MS, LOW_MS
from ..scoring.table import Column, Table
from ..scoring.talk_report import LATENCIES, WAYS

_HEADERS = {"": "source heard", LOGGED: "CA as logged", REPAIRED: "CA repaired", QUEUED: "CA queued"}


def lines(report: dict[str, Any]) -> list[str]:
    """The report for the terminal."""
    ratio, segmenter = report["length_ratio"], report["segmenter"]
    return [
        f"{report['n_instances']} segments of {report['n_recordings']} recordings"
        f"{f', segmenter {segmenter}' if segmenter else ''}; {report['n_empty']} without output (they have no latency)",
        *_quality(report),
        *([] if ratio is None else [f"{'length':10}{ratio:10.3f} characters for each of the references"]),
        "",
        *_latency(report),
        *_effort(report),
        *report["marks"],
        *(f"{name}: {signature}" for name, signature in report["signatures"].items()),
        report["signature"],
    ]


def _quality(report: dict[str, Any]) -> list[str]:
    latencies, lines_of_scores = tuple(LATENCIES), []
    for name, value in report["scores"].items():
        if not name.startswith(latencies):
            interval = report["intervals"].get(name)
            more = "" if interval is None else f" +- {interval:.3f} (95 %)"
            lines_of_scores.append(f"{name:10}{value:10.3f}{more}")
    return lines_of_scores


def _latency(report: dict[str, Any]) -> list[str]:
    """A table with a row for each latency and a column for each way to account for computation."""
    scores = report["scores"]
    ways = [way for way in WAYS if any(name + (way and f"_{way}") in scores for name in LATENCIES)]
    rows: list[dict[str, Any]] = []
    for name in LATENCIES:
        values = {way: scores.get(name + (way and f"_{way}")) for way in ways}
        if any(value is not None for value in values.values()):
            rows.append({"name": name, "unit": "" if name == "LongAP" else "ms", "ways": values})
        if name == "LongLAAL" and rows:  # StreamLAAL is its mean, in seconds
            seconds = {way: report["StreamLAAL_s"].get(way or "source heard") for way in ways}
            rows.append({"name": "StreamLAAL", "unit": "s", "ways": seconds})
    if not rows:
        return ["nothing was written: there is no latency"]
    low, high = LOW_MS / 1000, HIGH_MS / 1000
    limits = {"low": f"low (LongYAAL to {low:g} s)", "high": f"high ({low:g} to {high:g} s)"}
    columns = [Column(f"ways.{way}", _HEADERS[way], ".3f") for way in ways]
    table = Table(rows, [Column("name", ""), Column("unit", ""), *columns]).markdown()
    return [*table.split("\n"), f"latency regime: {limits.get(report['regime'], f'none (0 to {high:g} s)')}", ""]


def _effort(report: dict[str, Any]) -> list[str]:
    compute, shares, effort = report["compute"], report["simultaneity"], []
    if report["erasure"] is not None:
        effort.append(f"normalised erasure {report['erasure']:.3f}")
    if compute and compute["seconds_per_second"] is not None:
        effort.append(
            f"real-time factor {compute['seconds_per_second']:.3f}; 95 % of the chunks within "
            f"{compute['chunk_s_95']:.3f} s"
        )
    if shares:
        effort.append(f"SWF {shares['SWF']:.1f} %, EFSW {shares['EFSW']:.1f} %, DSPTV {shares['DSPTV']:.1f}")
    return effort
