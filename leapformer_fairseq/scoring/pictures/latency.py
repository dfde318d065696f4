"""Draws quality against latency of simultaneous translation, and computation by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from ...runtime.formats.runlog import PARTS
from ..figure import LEAST, MARKERS, SMALL, Figure, Panel
from ..latency import HIGH_MS, LOW_MS
from ..names import WHOLE_SOURCE, plan_title

Row = dict[str, Any]
LATENCIES = {"AL": "average lagging AL, ms", "LAAL": "length-adaptive average lagging LAAL, ms"}
TALK_LATENCIES = {"LongYAAL": "LongYAAL, ms; shaded: low and high latency", "StreamLAAL": "StreamLAAL, s"}
REGIME_GREYS = ("0.88", "0.95")
BELOW = "*"  # marks a latency with computation that is below the same without
_VARIED = {"pre_decision_ratio": "r{}", "segment_ms": "{} ms"}  # written at points if there are several values


def comparison_figure(comparison: Mapping[str, Any], latency: str = "AL", least: int = LEAST) -> Figure:
    """Draw BLEU against a latency in ms: a line for each system, dotted ones for offline translation.

    Bars are the 95 % intervals of both, where they are known. `comparison` is that of `scoring.comparison`. Systems
    with fewer than `least` points are left out.
    """
    figure = Figure("Translating while listening: quality against delay")
    name_of = {"AL": "average lagging behind the speaker, ms"}
    panel = figure.panel("", name_of.get(latency, f"{latency}, ms"), "BLEU")
    lowest: dict[Any, tuple[float, float]] = {}  # k -> BLEU and AL of the lowest point
    systems = [
        (system.get("title") or plan_title(name, WHOLE_SOURCE), system["rows"])
        for name, system in comparison["systems"].items()
    ]
    curves = [(title, rows) for title, rows in systems if sum(latency in row for row in rows) >= least]
    for title, rows in curves:
        offline = [row["BLEU"] for row in rows if row["k"] == "offline"]
        # Dotted lines of several systems may be too close to each other for labels of their own.
        several = [f"offline (dotted): {score:.1f}" for score in offline] if len(curves) > 1 else []
        timed = sorted((row for row in rows if latency in row), key=lambda row: (row[latency], row["BLEU"]))
        points = [(row[latency], row["BLEU"], row["k"]) for row in timed]
        label = "\n".join([title, *several])
        reach, across = _bars(timed, "BLEU"), _bars(timed, latency)
        panel.line(title, [point[:2] for point in points], label=label, reach=reach, across=across)
        for score in offline:
            panel.level(score, f"offline, beam 5: {score:.1f}", figure.colour(title), label=len(curves) == 1)
        for lag, score, k in points:
            lowest[k] = min(lowest.get(k, (score, lag)), (score, lag))
    for k, (score, lag) in lowest.items():
        if k != "":
            panel.tag(f"k = {k}", lag, score)
    return figure


def _bars(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    """The ends of the 95 % intervals of a score; none if no row has one."""
    halves = [row.get("intervals", {}).get(name) for row in rows]
    if not any(halves):
        return []
    return [(row[name] - (half or 0.0), row[name] + (half or 0.0)) for row, half in zip(rows, halves, strict=True)]


def systems_figure(found: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw systems that were compared, by their places: those in the folders k1, k3, ... of one folder as a line.

    The results are those of `scoring.significance.compared`. Without latencies there is nothing to draw.
    """
    systems = dict[str, Any]()
    for place, results in found.items():
        scores = {name: result for name, result in results.items() if isinstance(result, Mapping)}
        row: Row = {name: result["score"] for name, result in scores.items()}
        row["intervals"] = {name: result["interval"] for name, result in scores.items() if result["interval"]}
        folder, _, last = place.rstrip("/").rpartition("/")
        lagging = last.removeprefix("k") if last.startswith("k") and last[1:].isdecimal() else ""
        systems.setdefault((folder or ".") if lagging else place, []).append({**row, "k": lagging})
    latency = "LongYAAL" if any("LongYAAL" in row for rows in systems.values() for row in rows) else "AL"
    rows_of = {name: {"title": plan_title(name.rpartition("/")[2]), "rows": rows} for name, rows in systems.items()}
    titles = [system["title"] for system in rows_of.values()]
    for name, system in rows_of.items():
        system["title"] = name if titles.count(system["title"]) > 1 else system["title"]
    return comparison_figure({"systems": rows_of}, latency, least=1)


def curve_figure(rows: Sequence[Row], regimes: Sequence[float] = (LOW_MS, HIGH_MS)) -> Figure:
    """Draw BLEU against AL and LAAL in ms and, if measured, computation by part below.

    A row has "checkpoint", "policy", "numbers", "pre_decision_ratio", "segment_ms", "BLEU", the latencies, and "AL_CA",
    "LAAL_CA" and "compute" with its parts, each {"mean", "min", "max"}, or None if not measured. Each checkpoint has a
    colour and each policy a marker; a line joins rows that differ only in the policy's parameter. The policy offline,
    which waits for the whole source, is a horizontal line.

    Rows of talks have "LongYAAL", "StreamLAAL" and their _CA forms instead, "segment" (the rule that ends a segment),
    and "course" (memory and time over the longest talk, see `simul.talks.course`). `regimes` are the upper limits of
    the latency regimes, in ms of LongYAAL; regimes are shaded.
    """
    of_talks = any("LongYAAL" in row for row in rows)
    varied = [key for key in _VARIED if len(_values(rows, key)) > 1]
    rows = [{**row, "name": _name(row, rows), "tag": _tag(row, varied)} for row in rows]
    latencies = TALK_LATENCIES if of_talks else LATENCIES
    measured, long = [row for row in rows if row["compute"]], [row for row in rows if row.get("course")]
    height = 3.6 + 0.16 * max(0, len(list(_lines(rows))) - 8)
    parts = [(len(latencies), height), (bool(measured), 0.9 + 0.2 * len(measured)), (2 * bool(long), 2.6)]
    timed = any(row[f"{latency}_CA"] for row in rows for latency in latencies)
    figure = Figure(
        "Simultaneous translation: quality and latency" + ("; dashed and hollow: with computation" if timed else ""),
        parts,
    )
    for latency, title in latencies.items():
        panel = figure.panel("", title, "BLEU")
        _draw_lines(panel, rows, latency)
        if latency == "LongYAAL":  # for which the regimes are defined
            for (begin, end), grey in zip(pairwise((0.0, *regimes)), REGIME_GREYS, strict=False):
                panel.axes.axvspan(begin, end, color=grey, zorder=0)
    if measured:
        of_what = "of all talks" if of_talks else "one utterance at a time"
        _draw_parts(figure.panel("", f"seconds of computation per second of audio, {of_what}"), measured)
    if long:
        memory = figure.panel("", "minutes of the longest talk", "MiB more than at the beginning")
        time = figure.panel("", "minutes of the longest talk", "CPU seconds per second of audio")
        _draw_courses(memory, time, long)
    return figure


def _draw_lines(panel: Panel, rows: Sequence[Row], latency: str) -> None:
    figure, policies = panel.figure, _values(rows, "policy")
    for line in _lines(rows):
        name, policy = line[0]["name"], line[0]["policy"]
        colour = figure.colour(name.removesuffix(f", {policy}"))  # that of the checkpoint
        marker = MARKERS[policies.index(policy) % len(MARKERS)]
        if policy == "offline" and latency in LATENCIES:
            panel.level(line[0]["BLEU"], name, colour)
            continue
        known = [row for row in line if row[latency] is not None]
        known.sort(key=lambda row: (row[latency], row["BLEU"]))
        points = [(row[latency], row["BLEU"], row["tag"]) for row in known]
        reach, across = _bars(known, "BLEU"), _bars(known, latency)
        panel.line(name, [point[:2] for point in points], colour=colour, marker=marker, reach=reach, across=across)
        for x, y, tag in points:
            panel.tag(tag, x, y, colour)
        aware = f"{latency}_CA"
        timed = sorted((tuple(row[aware].values()), row["BLEU"]) for row in line if row[aware])
        if timed:
            panel.line(
                f"{name}, computation-aware", [(spread[0], score) for spread, score in timed], hollow=True, label="",
                across=[spread[1:] for spread, _ in timed], colour=colour, marker=marker,
            )  # fmt: skip
        for row in line:
            if is_below(row, aware):
                panel.tag(f"{BELOW} below the latency without computation", row[aware]["mean"], row["BLEU"])


def is_below(row: Mapping[str, Any], name: str) -> bool:
    """Whether the mean latency with computation, `name` (ending in _CA), is below the same latency without."""
    aware, plain = row.get(name), row.get(name.removesuffix("_CA"))
    return name.endswith("_CA") and aware is not None and plain is not None and aware["mean"] < plain


def _lines(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Iterate over the lines, each a list of rows."""

    def key(row: Row) -> tuple[Any, ...]:
        others = list(row["numbers"].items())[1:]  # the first number is what varies along a line
        return row["name"], row["pre_decision_ratio"] or 0, row["segment_ms"], str(others)

    for _, line in groupby(sorted(rows, key=key), key):
        yield list(line)


def _name(row: Row, rows: Sequence[Row]) -> str:
    """The checkpoint if there are several, for talks the rule that ends a segment, and the policy."""
    checkpoint = [plan_title(str(row["checkpoint"]))] if len(_values(rows, "checkpoint")) > 1 else []
    return ", ".join([*checkpoint, *filter(None, [row.get("segment")]), row["policy"]])


def _values(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _tag(row: Row, varied: Sequence[str]) -> str:
    """The label of a point: the policy's parameters, and the values of the `varied` keys."""
    return " ".join([*map(str, row["numbers"].values()), *(_VARIED[key].format(row[key]) for key in varied)])


def _draw_parts(panel: Panel, rows: Sequence[Row]) -> None:
    """Draw seconds of computation per second of audio: a bar per row, with a whisker from minimum to maximum."""
    begins, axes = [0.0] * len(rows), panel.axes
    panel.rows([f"{row['name']} {row['tag']}" for row in rows])
    panel.points += len(rows)
    for part, colour in zip(PARTS, ("0.75", "#0072B2", "#E69F00"), strict=True):
        widths = [row["compute"][part]["mean"] for row in rows]
        axes.barh(range(len(rows)), widths, left=begins, color=colour, label=part)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    totals = [row["compute"]["total"] for row in rows]
    reach = [[abs(total[end] - total["mean"]) for total in totals] for end in ("min", "max")]
    axes.errorbar(begins, range(len(rows)), xerr=reach, fmt="none", ecolor="0.2", capsize=2)
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(fontsize=SMALL, ncols=len(PARTS), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)


def _draw_courses(memory: Panel, time: Panel, rows: Sequence[Row]) -> None:
    """Draw memory, above that after the first part, and time over the longest talk: a line per row."""
    for row in rows:
        course, name = row["course"], f"{row['name']} {row['tag']}"
        if None not in course["memory_mib"]:
            growth = [mib - course["memory_mib"][0] for mib in course["memory_mib"]]
            memory.line(name, zip(course["minutes"], growth, strict=True), marker="", linewidth=1)
        time.line(name, zip(course["minutes"], course["compute"], strict=True), marker="", linewidth=1)
    time.axes.set_ylim(bottom=0)
