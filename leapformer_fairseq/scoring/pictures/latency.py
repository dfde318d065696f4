"""Plots quality against latency of simultaneous translation, and computation by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from ...runtime.formats.runlog import PARTS
from .figures import save
from .results import MARKERS, PANEL

Row = dict[str, Any]
LATENCIES = {"AL": "average lagging AL (ms)", "LAAL": "length-adaptive average lagging LAAL (ms)"}
TALK_LATENCIES = {"LongYAAL": "LongYAAL (ms); shaded: low and high latency", "StreamLAAL": "StreamLAAL (s)"}
REGIME_GREYS = ("0.88", "0.95")
BAR = 0.22  # height of a bar in inches
BELOW = "*"  # marks a latency with computation that is below the same without
_VARIED = {"pre_decision_ratio": "r{}", "segment_ms": "{} ms"}  # written at points if there are several values
_TIMED = {"linestyle": "--", "capsize": 3, "markersize": 5, "markerfacecolor": "none"}


def draw_curve(rows: Sequence[Row], path: str | Path, regimes: Sequence[float] = ()) -> None:
    """Write `curve_figure` as a PNG."""
    save(curve_figure(rows, regimes), path)


def curve_figure(rows: Sequence[Row], regimes: Sequence[float] = ()) -> Any:
    """Plot BLEU against AL and LAAL in ms and, if measured, computation by part below.

    A row has "checkpoint", "policy", "numbers", "pre_decision_ratio", "segment_ms", "BLEU", the latencies, and "AL_CA",
    "LAAL_CA" and "compute" with its parts, each {"mean", "min", "max"}, or None if not measured. Each checkpoint has a
    colour and each policy a marker; a line joins rows that differ only in the policy's parameter. The policy offline,
    which waits for the whole source, is a horizontal line.

    Rows of talks have "LongYAAL", "StreamLAAL" and their _CA forms instead, "segment" (the rule that ends a segment),
    and "course" (memory and time over the longest talk, see `simul.talks.course`). `regimes` are the upper limits of
    the latency regimes, in ms of LongYAAL; regimes are shaded.
    """
    from matplotlib.figure import Figure

    of_talks = any("LongYAAL" in row for row in rows)
    latencies = TALK_LATENCIES if of_talks else LATENCIES
    measured, long = [row for row in rows if row["compute"]], [row for row in rows if row.get("course")]
    heights = [1.3 * PANEL[1]] + ([0.9 + BAR * len(measured)] if measured else []) + ([PANEL[1]] if long else [])
    figure = Figure(figsize=(3 * PANEL[0], sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    panels = parts[0].subplots(1, len(latencies), sharey=True)
    for axes, (latency, title) in zip(panels, latencies.items(), strict=True):
        _draw_lines(axes, rows, latency)
        axes.set_xlabel(title)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("BLEU")
    labelled = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))  # without duplicates
    if labelled:
        parts[0].legend(labelled.values(), labelled, loc="outside right upper", fontsize=8)
    figure.suptitle("Quality against latency")
    if of_talks:  # regimes are defined for LongYAAL, the first panel
        for (begin, end), grey in zip(pairwise((0.0, *regimes)), REGIME_GREYS, strict=False):
            panels[0].axvspan(begin, end, color=grey, zorder=0)
    if measured:
        _draw_bars(parts[1].subplots(), measured, "of all talks" if of_talks else "one utterance at a time")
    if long:
        _draw_courses(parts[-1].subplots(1, 2), long)
    return figure


def _draw_lines(axes: Any, rows: Sequence[Row], latency: str) -> None:
    policies, names = _values(rows, "policy"), list(dict.fromkeys(map(_name, rows)))
    varied = [key for key in _VARIED if len(_values(rows, key)) > 1]
    for line in _lines(rows):
        name, policy = _name(line[0]), line[0]["policy"]
        style = {"color": f"C{names.index(name) % 10}", "marker": MARKERS[policies.index(policy) % len(MARKERS)]}
        label = f"{name}, {policy}"
        if policy == "offline" and latency in LATENCIES:
            axes.axhline(line[0]["BLEU"], color=style["color"], linestyle=":", label=label)
            continue
        points = sorted((row[latency], row["BLEU"], _tag(row, varied)) for row in line if row[latency] is not None)
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], label=label, **style)
        for x, y, tag in points:
            axes.annotate(tag, (x, y), textcoords="offset points", xytext=(-4, 6), fontsize=7)
        timed = sorted((tuple(row[f"{latency}_CA"].values()), row["BLEU"]) for row in line if row[f"{latency}_CA"])
        if timed:
            means, least, greatest = zip(*(spread for spread, _ in timed), strict=True)
            bars = [
                [m - a for m, a in zip(means, least, strict=True)],
                [b - m for m, b in zip(means, greatest, strict=True)],
            ]
            label += ", computation-aware"
            axes.errorbar(means, [y for _, y in timed], xerr=bars, label=label, **_TIMED, **style)
        for row in line:
            if is_below(row, f"{latency}_CA"):
                mark = f"{BELOW} below the latency without computation"
                place = row[f"{latency}_CA"]["mean"], row["BLEU"]
                axes.annotate(mark, place, textcoords="offset points", xytext=(4, -10), fontsize=7)


def is_below(row: Row, name: str) -> bool:
    """Whether the mean latency with computation, `name` (ending in _CA), is below the same latency without."""
    aware, plain = row.get(name), row.get(name.removesuffix("_CA"))
    return name.endswith("_CA") and aware is not None and plain is not None and aware["mean"] < plain


def _lines(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Iterate over the lines, each a list of rows."""

    def key(row: Row) -> tuple[Any, ...]:
        return _name(row), row["policy"], row["pre_decision_ratio"] or 0, row["segment_ms"]

    for _, line in groupby(sorted(rows, key=key), key):
        yield list(line)


def _name(row: Row) -> str:
    """The checkpoint and, for talks, the rule that ends a segment."""
    segment = row.get("segment")
    return f"{row['checkpoint']}, {segment}" if segment else str(row["checkpoint"])


def _values(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _tag(row: Row, varied: Sequence[str]) -> str:
    """The label of a point: the policy's parameters, and the values of the `varied` keys."""
    return " ".join([*map(str, row["numbers"].values()), *(_VARIED[key].format(row[key]) for key in varied)])


def _draw_bars(axes: Any, rows: Sequence[Row], of_what: str) -> None:
    """Draw seconds of computation per second of audio: a bar per row, with a whisker from minimum to maximum."""
    places, begins = range(len(rows)), [0.0] * len(rows)
    for part, colour in zip(PARTS, ("0.75", "C0", "C1"), strict=True):
        widths = [row["compute"][part]["mean"] for row in rows]
        axes.barh(places, widths, left=begins, color=colour, label=part)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    totals = [row["compute"]["total"] for row in rows]
    least, greatest = ([abs(total[end] - total["mean"]) for total in totals] for end in ("min", "max"))
    axes.errorbar(begins, places, xerr=[least, greatest], fmt="none", ecolor="0.2", capsize=2)
    axes.set_yticks(places, [row["run"] for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # from top to bottom
    axes.set_xlabel(f"seconds of computation per second of audio, {of_what}")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3, axis="x")


def _draw_courses(panels: Sequence[Any], rows: Sequence[Row]) -> None:
    """Draw memory, above that after the first part, and time over the longest talk: a line per row."""
    memory, time = panels
    for row in rows:
        course = row["course"]
        if None not in course["memory_mib"]:
            growth = [mib - course["memory_mib"][0] for mib in course["memory_mib"]]
            memory.plot(course["minutes"], growth, label=row["run"], linewidth=1)
        time.plot(course["minutes"], course["compute"], label=row["run"], linewidth=1)
    memory.set_ylabel("memory since the beginning (MiB)")
    time.set_ylabel("CPU seconds per second of audio")
    time.set_ylim(bottom=0)
    for axes in panels:
        axes.set_xlabel("minutes of the longest talk")
        axes.grid(alpha=0.3)
    time.legend(fontsize=7)
