"""The scores of a recipe's runs as a picture: attentions below each other, a panel for each test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import save
from .results import PANEL

Row = dict[str, Any]
LINE = 0.26  # inches of a row's height


def draw_runs(rows: Sequence[Row], title: str, path: str | Path) -> None:
    """The figure of `runs_figure` as a PNG."""
    save(runs_figure(rows, title), path)


def runs_figure(rows: Sequence[Row], title: str) -> Any:
    """The main score of every row of `scoring.runs.compare` as a matplotlib figure.

    A dot is the mean over the seeds, a bar goes from the least to the greatest; softmax is a line through all rows.
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
    several = len({row["options"] for row in rows}) > 1
    for place, row in enumerate(rows):
        score = row["scores"][row["measure"]]
        reach = [[score["mean"] - score["min"]], [score["max"] - score["mean"]]]
        colour = "black" if row["difference"] is None else "C0"
        axes.errorbar([score["mean"]], [place], xerr=reach, fmt="o", capsize=3, color=colour)
        if row["attention"] == "softmax":
            axes.axvline(score["mean"], linestyle=":", color="grey")
    labels = [f"{row['attention']}\n{row['options']}" if several else row["attention"] for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(", ".join(dict.fromkeys(row["measure"] for row in rows)))
    axes.grid(axis="x", alpha=0.3)
