"""Plots quality against latency of the systems of `scoring.comparison`, with labels beside the lines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import save

LEAST = 3  # points that make a line
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito's
SIZE = (7.2, 4.0)  # inches
LINE = 0.17  # inches per line of text
WIDEST = 28  # characters per line of a label


def draw_comparison(comparison: Mapping[str, Any], path: str | Path) -> bool:
    """Write `comparison_figure` as a PNG; return False, and write nothing, if there is no line to draw."""
    figure = comparison_figure(comparison)
    if figure is not None:
        save(figure, path)
    return figure is not None


def comparison_figure(comparison: Mapping[str, Any]) -> Any:
    """Plot BLEU against average lagging: a line for each system, dotted ones for offline translation.

    Systems with fewer than `LEAST` points are left out; returns None if none is left.
    """
    from matplotlib.figure import Figure

    curves = []
    for system in comparison["systems"].values():
        points = [(row["AL"], row["BLEU"], row["k"]) for row in system["rows"] if "AL" in row]
        offline = [row["BLEU"] for row in system["rows"] if row["k"] == "offline"]
        if len(points) >= LEAST:
            curves.append((system["title"], sorted(points), offline))
    if not curves:
        return None
    figure = Figure(figsize=SIZE, dpi=150, layout="constrained")
    axes = figure.subplots()
    longest = max(points[-1][0] for _, points, _ in curves)
    labels: list[tuple[float, str, str]] = []  # BLEU at the line's end, text, colour
    for (title, points, offline), colour in zip(curves, COLOURS * len(curves), strict=False):
        lags, scores, _ = zip(*points, strict=True)
        axes.plot(lags, scores, "o-", color=colour, linewidth=2, markersize=5)
        labels.append((scores[-1], textwrap.fill(title, WIDEST), colour))
        for score in offline:
            axes.axhline(score, linestyle=":", color=colour, linewidth=1.2)
            text = f"offline, beam 5: {score:.1f}"
            if len(curves) == 1:
                labels.append((score, text, colour))
            else:  # dotted lines may be too close to each other for labels of their own
                labels[-1] = (scores[-1], f"{labels[-1][1]}\n{text} (dotted)", colour)
    axes.set_xlim(right=longest + 0.04 * (longest - axes.get_xlim()[0]))
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.08 * (high - low), high + 0.02 * (high - low))
    _name_points(axes, [points for _, points, _ in curves])
    _label(axes, labels)
    axes.set_title("Translating while listening: quality against delay", loc="left", fontsize=11)
    axes.set(xlabel="average lagging behind the speaker (ms)", ylabel="BLEU")
    axes.grid(axis="y", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _name_points(axes: Any, curves: Sequence[Sequence[tuple[float, float, Any]]]) -> None:
    """Write each k once, below the lowest point with this k."""
    lowest: dict[Any, tuple[float, float]] = {}
    for points in curves:
        for lag, score, k in points:
            lowest[k] = min(lowest.get(k, (score, lag)), (score, lag))
    last = max(lag for _, lag in lowest.values())
    for k, (score, lag) in lowest.items():
        side = "right" if lag == last else "left"  # the last one must not run into the labels beside the axes
        place = {"textcoords": "offset points", "xytext": (4, -14), "ha": side, "fontsize": 8, "color": "0.3"}
        axes.annotate(f"k = {k}", (lag, score), **place)


def _label(axes: Any, labels: Sequence[tuple[float, str, str]]) -> None:
    """Write labels to the right of the axes, each as close to its BLEU as the others allow."""
    low, high = axes.get_ylim()
    unit = LINE * (high - low) / (0.75 * SIZE[1])  # BLEU of a line of text
    placed = spread([(wanted, (text.count("\n") + 1.3) * unit) for wanted, text, _ in labels], low, high)
    for (_, text, colour), centre in zip(labels, placed, strict=True):
        axes.text(
            1.02, centre, text, color=colour, fontsize=9, va="center", transform=axes.get_yaxis_transform(),
            parse_math=False,
        )  # fmt: skip


def spread(wanted: Sequence[tuple[float, float]], least: float, most: float) -> list[float]:
    """Move labels, given as (centre, height), so that they do not overlap; return the new centres.

    Labels that touch are stacked, and the stack is centred on what its members want, within `least` and `most` if it
    fits.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i][0])
    groups: list[tuple[float, list[int]]] = []  # lower edge, stacked labels from bottom to top
    for i in order:
        centre, height = wanted[i]
        edge, members = max(least, min(most - height, centre - height / 2)), [i]
        # Merging may move the stack down onto the one below it, so repeat.
        while groups and groups[-1][0] + sum(wanted[j][1] for j in groups[-1][1]) > edge:
            members = [*groups.pop()[1], *members]
            offsets, total = [], 0.0
            for j in members:
                offsets.append(wanted[j][0] - total - wanted[j][1] / 2)
                total += wanted[j][1]
            edge = max(least, min(most - total, sum(offsets) / len(offsets)))
        groups.append((edge, members))
    centres = [0.0] * len(wanted)
    for edge, members in groups:
        for j in members:
            centres[j], edge = edge + wanted[j][1] / 2, edge + wanted[j][1]
    return centres
