"""Plots what mechanisms remember: a panel for each probe, and a line for each mechanism over the tested sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import save
from .results import PANEL


def draw_probes(probes: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]], path: str | Path) -> None:
    """Write `probes_figure` as a PNG."""
    save(probes_figure(probes), path)


def probes_figure(probes: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]) -> Any:
    """Plot means over seeds, with bars from minimum to maximum.

    `probes` maps the name of each probe to a description and the rows of `studies.probes.study`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.4 * PANEL[0] * len(probes), 1.6 * PANEL[1]), layout="constrained")
    panels = figure.subplots(1, len(probes), squeeze=False)[0]
    for axes, (probe, (about, rows)) in zip(panels, probes.items(), strict=True):
        for number, row in enumerate(rows):
            sizes = list(row["sizes"].values())
            places = [place + 0.06 * (number - len(rows) / 2) for place in range(len(sizes))]  # bars side by side
            reach = [[size["mean"] - size["least"] for size in sizes], [size["most"] - size["mean"] for size in sizes]]
            axes.errorbar(places, [size["mean"] for size in sizes], yerr=reach, marker="o", label=row["attention"])
        axes.set_xticks(range(len(rows[0]["sizes"])), list(rows[0]["sizes"]))
        axes.set_ylim(-3, 103)
        axes.set_title(f"{probe}\n{about}", fontsize=7)
        axes.set_xlabel("length / to remember")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("right answers, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    return figure
