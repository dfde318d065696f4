"""Plots the cost of replacing attention blocks one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .figures import save


def draw_order(
    swaps: Sequence[tuple[str, float]], students: Mapping[int, tuple[float, float]], unit: str, path: Path
) -> None:
    """Plot the distance to the teacher by the number of replaced blocks: a line before distillation, points after.

    swaps:    the blocks in the order of replacement, each with the resulting distance.
    students: number of replaced blocks -> distance before and after distillation.
    unit:     of the distance, the label of the axis.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    if swaps:
        places = range(1, len(swaps) + 1)
        axes.plot(places, [distance for _, distance in swaps], "o-", color="C0", label="aligned")
        axes.set_xticks(places, [block for block, _ in swaps], rotation=45, ha="right", fontsize=8)
    else:
        axes.plot(list(students), [aligned for aligned, _ in students.values()], "o", color="C0", label="aligned")
    distilled = [after for _, after in students.values()]
    axes.plot(list(students), distilled, "*", color="C1", markersize=12, label="distilled")
    axes.set(xlabel="replaced blocks, one more at each place", ylabel=unit, title="Distance to the teacher")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)
