"""Plots accuracy against throughput on Long Range Arena, as figure 1 of the LeaPformer and Luna papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import save
from .results import PANEL

Point = tuple[str, float, float, float | None]  # name, throughput / softmax's, accuracy in %, memory / softmax's
LARGEST = 600.0  # area of softmax's circle, in square points


def draw_tradeoff(points: Sequence[Point], title: str, path: Path) -> None:
    """Write `tradeoff_figure` as a PNG."""
    save(tradeoff_figure(points, title), path)


def tradeoff_figure(points: Sequence[Point], title: str) -> Any:
    """Plot a circle for each point; its area is the memory. Circles without a memory are small and equal."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure = Figure(figsize=(2 * PANEL[0], 1.5 * PANEL[1]), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    for i, (_, speed, accuracy, memory) in enumerate(points):
        area = 40.0 if memory is None else LARGEST * memory
        axes.scatter([speed], [accuracy], s=area, color=f"C{i % 10}", alpha=0.6)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("training throughput / softmax")
    axes.set_ylabel("average accuracy (%)")
    measured = any(memory is not None for *_, memory in points)
    axes.set_title(title + ("; area: peak memory" if measured else ""), fontsize=8, wrap=True)
    axes.margins(0.15)
    _name(figure, axes, points)
    return figure


def _name(figure: Any, axes: Any, points: Sequence[Point]) -> None:
    """Write names beside the circles, and move each down until it covers none before it."""
    figure.draw_without_rendering()  # computes the positions of the texts
    boxes: list[Any] = []
    for name, speed, accuracy, _ in sorted(points, key=lambda point: -point[2]):
        text = axes.annotate(name, (speed, accuracy), textcoords="offset points", xytext=(6, 4), fontsize=7)
        while any(text.get_window_extent().overlaps(box) for box in boxes):
            text.set_position((text.get_position()[0], text.get_position()[1] - 4))
        boxes.append(text.get_window_extent())
