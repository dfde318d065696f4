"""Draws scores: runs over seeds, what mechanisms remember, the cost of replacing blocks, accuracy against speed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..figure import COLOURS, GREY, Figure, grid, wrapped
from ..names import plan_title

Row = Mapping[str, Any]
LARGEST = 600.0  # area of softmax's circle, in square points
LONGEST = 40  # characters of an option's value; the end of a path tells most


def runs_figure(rows: Sequence[Row], title: str) -> Figure:
    """Draw the main score of each row of `scoring.runs.compare`, a panel per test set.

    A dot is the mean over the seeds, a bar goes from minimum to maximum, and a line through all rows is softmax.
    """
    sets = list(dict.fromkeys(row["set"] for row in rows))
    by_set = {name: [row for row in rows if row["set"] == name] for name in sets}
    names = {name: _row_names(by_set[name], 56 // min(2, len(sets))) for name in sets}
    lines = max(sum(1 + name.count("\n") for name in of_set) for of_set in names.values())
    figure = Figure(title, grid(len(sets), 2, 0.8 + 0.22 * lines + 0.1 * max(map(len, names.values()))))
    for name, of_set in by_set.items():
        panel = figure.panel(name if len(sets) > 1 else "", ", ".join(dict.fromkeys(row["measure"] for row in of_set)))
        panel.rows(names[name])
        for place, row in enumerate(of_set):
            score = row["scores"][row["measure"]]
            panel.line(
                names[name][place], [(score["mean"], place)], across=[(score["min"], score["max"])],
                colour="black" if row["difference"] is None else COLOURS[0], label="", marker="o",
            )  # fmt: skip
            if row["attention"] == "softmax":
                panel.axes.axvline(score["mean"], linestyle=":", color=GREY, linewidth=1.1, zorder=0)
    return figure


def _row_names(rows: Sequence[Row], width: int) -> list[str]:
    options = distinct_options(rows)
    lines = ([plan_title(row["attention"]), *more] for row, more in zip(rows, options, strict=True))
    return [wrapped("\n".join(of_row), width) for of_row in lines]


def distinct_options(rows: Sequence[Row]) -> list[list[str]]:
    """For each row, the options that not all rows share, such as `--max-epoch 8`; long values are cut to their end."""
    parsed = [[option.split(None, 1) for option in re.split(r"\s(?=--)", row["options"])] for row in rows]
    common = [option for option in parsed[0] if all(option in options for options in parsed)]
    return [[" ".join(map(_end, option)) for option in options if option not in common] for options in parsed]


def _end(text: str) -> str:
    return text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"


def tradeoff_figure(content: Mapping[str, Any]) -> Figure:
    """Draw accuracy against throughput, as figure 1 of the LeaPformer and Luna papers.

    `content` is that of `studies.lra.composite`. The area of a circle is the memory; without one, circles are small.
    """
    rows, baseline = content["rows"], content["rows"]["softmax"]
    measured = any(row["memory"] for row in rows.values())
    source = content["source"] + ("; area: peak memory" if measured else "")
    figure = Figure("Accuracy against speed", [(1, 4.4)])
    panel = figure.panel(wrapped(source, 100), "training throughput / softmax's (log)", "average accuracy, %")
    panel.axes.set_xscale("log", base=2)
    panel.axes.xaxis.set_major_formatter("{x:g}")
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["accuracy"]):
        memory = row["memory"] and baseline["memory"] and row["memory"] / baseline["memory"]
        area = LARGEST * memory if memory else 40.0
        panel.point(row.get("title") or plan_title(name), row["speed"] / baseline["speed"], row["accuracy"], area)
    panel.axes.margins(0.15)
    return figure


def probes_figure(probes: Mapping[str, Sequence[Row]], about: Mapping[str, str] | None = None) -> Figure:
    """Draw right answers by size, a panel per probe: means over seeds, with bars from minimum to maximum."""
    figure = Figure("What a mechanism remembers: right answers by size", grid(len(probes), 2, 2.8))
    for probe, rows in probes.items():
        title = wrapped(f"{probe}: {about[probe]}" if about else probe, 52)
        panel = figure.panel(title, "length / to remember", "right answers, %")
        sizes = list(rows[0]["sizes"])
        for number, row in enumerate(rows):
            shares = list(row["sizes"].values())
            at = [place + 0.06 * (number - len(rows) / 2) for place in range(len(sizes))]  # bars side by side
            points = zip(at, (share["mean"] for share in shares), strict=True)
            panel.line(plan_title(row["attention"]), points, reach=[(s["least"], s["most"]) for s in shares])
        panel.axes.set_xticks(range(len(sizes)), sizes)
        panel.axes.set_ylim(-3, 103)
    return figure


def order_figure(swaps: Sequence[tuple[str, float]], students: Mapping[int, tuple[float, float]], unit: str) -> Figure:
    """Draw the distance to the teacher by the number of replaced blocks: a line before distillation, points after.

    swaps:    the blocks in the order of replacement, each with the resulting distance.
    students: number of replaced blocks -> distance before and after distillation.
    """
    figure = Figure("Distance to the teacher, by the blocks that are replaced one after another")
    panel = figure.panel("", "replaced blocks, one more at each place", unit)
    aligned = [(place, distance) for place, (_, distance) in enumerate(swaps, 1)]
    panel.line("aligned", aligned or [(count, before) for count, (before, _) in students.items()])
    if students:
        after = [(count, distance) for count, (_, distance) in students.items()]
        panel.line("distilled", after, marker="*", markersize=12, linestyle="none")
    if swaps:
        panel.axes.set_xticks(range(1, len(swaps) + 1), [block for block, _ in swaps], rotation=35, ha="right")
    panel.axes.set_ylim(bottom=0)
    return figure


def students_figure(content: Mapping[str, Any]) -> Figure:
    """Draw the students of a teacher, `table.json` of `leapformer linearize`."""
    distances = {len(student["replaced"]): student["distance"] for student in content["students"]}
    points = {count: (distance["aligned"], distance["distilled"]) for count, distance in distances.items()}
    return order_figure(content["order"] or [], points, content["unit"])


def ablation_figure(content: Mapping[str, Any]) -> Figure:
    """Draw the validation loss by block (and layers) and mechanism, `table.json` of `leapformer ablate`.

    The baseline is a line, replacements in the recommended plan are ringed, and combinations are stars: black for the
    recommended one, grey for the others.
    """
    rows = [row for row in content["rows"] if row["loss"] is not None]
    tried = [row for row in rows if row["mechanism"]]
    order = ("encoder-self", "decoder-self", "decoder-cross")
    places = sorted({_slot(row) for row in content["rows"] if row["mechanism"]}, key=lambda x: (order.index(x[0]), x))
    names = [
        f"{block}\nlayers {layers}" if content["settings"]["layer_groups"] > 1 else block for block, layers in places
    ]
    figure = Figure(f"One block at a time: {content['arch']}")
    panel = figure.panel("", "replaced block", f"best validation {content['metric']}")
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in sorted(tried, key=lambda row: row["mechanism"])))
    for i, mechanism in enumerate(mechanisms):
        offset = 0.5 * ((i + 0.5) / len(mechanisms) - 0.5)  # side by side
        here = {(places.index(_slot(row)) + offset, row["loss"]): row for row in tried if row["mechanism"] == mechanism}
        title = plan_title(mechanism)
        panel.line(title, sorted(here), linestyle="none", markersize=6)
        for point, row in here.items():
            if row.get("taken", row["recommended"]):
                panel.line(title, [point], label="", marker="o", markersize=13, fillstyle="none")
    for row in rows:
        if row["role"] == "baseline":
            panel.level(row["loss"], f"baseline {content['settings']['baseline']}")
        elif row["role"] == "combination":
            told = "recommended" if row["recommended"] else "given up"
            colour = "black" if row["recommended"] else "0.45"
            panel.line(
                f"{told}: {plan_title(row['plan'])}",
                [(len(names), row["loss"])],
                marker="*",
                markersize=12,
                colour=colour,
            )
            names.append(told)
    panel.axes.set_xticks(range(len(names)), names)
    panel.axes.set_xlim(-0.6, len(names) - 0.4)
    return figure


def _slot(row: Row) -> tuple[str, str]:
    return row["block"], row["layers"]
