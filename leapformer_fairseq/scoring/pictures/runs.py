"""Plots the scores of a recipe's runs: a row per attention, a panel per test set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import save
from .results import PANEL

Row = dict[str, Any]
LINE = 0.26  # height of a row in inches
LONGEST = 40  # characters of an option's value; the end of a path tells most


def draw_runs(rows: Sequence[Row], title: str, path: str | Path) -> None:
    """Write `runs_figure` as a PNG."""
    save(runs_figure(rows, title), path)


def runs_figure(rows: Sequence[Row], title: str) -> Any:
    """Plot the main score of each row of `scoring.runs.compare`.

    A dot is the mean over the seeds, a bar goes from minimum to maximum, and a line through all rows is softmax.
    """
    from matplotlib.figure import Figure

    sets = list(dict.fromkeys(row["set"] for row in rows))
    height = 1.4 + LINE * max(sum(row["set"] == name for row in rows) for name in sets)
    figure = Figure(figsize=(2 * PANEL[0] * len(sets), height), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        _draw_rows(axes, [row for row in rows if row["set"] == name])
        axes.set_title(name if len(sets) > 1 else "", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure


def _draw_rows(axes: Any, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        score = row["scores"][row["measure"]]
        reach = [[score["mean"] - score["min"]], [score["max"] - score["mean"]]]
        colour = "black" if row["difference"] is None else "C0"
        axes.errorbar([score["mean"]], [place], xerr=reach, fmt="o", capsize=3, color=colour)
        if row["attention"] == "softmax":
            axes.axvline(score["mean"], linestyle=":", color="grey")
    options = distinct_options(rows)
    labels = ["\n".join([row["attention"], *lines]) for row, lines in zip(rows, options, strict=True)]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(", ".join(dict.fromkeys(row["measure"] for row in rows)))
    axes.grid(axis="x", alpha=0.3)


def distinct_options(rows: Sequence[Row]) -> list[list[str]]:
    """For each row, the options that not all rows share, such as `--max-epoch 8`; long values are cut to their end."""
    parsed = [[option.split(None, 1) for option in re.split(r"\s(?=--)", row["options"])] for row in rows]
    common = [option for option in parsed[0] if all(option in options for options in parsed)]
    return [[" ".join(map(_end, option)) for option in options if option not in common] for options in parsed]


def _end(text: str) -> str:
    return text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"
