"""Heat maps of captured attention and reweighting, labelled with tokens if there are few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...modules.capture import Captured
from .figures import save

MOST_LABELS = 50  # labels of an axis; more would be unreadable
HIGHEST = 99.0  # percentile of weights with the brightest colour; the first causal rows have weights near 1
HIDDEN_COLOUR = "0.92"


@dataclass(frozen=True)
class Axis:
    """The name of an axis, and the tokens of its rows or columns, if any."""

    name: str
    tokens: Sequence[str] | None = None


def draw_attention(captured: Captured, head: int | str, queries: Axis, keys: Axis, path: str | Path) -> bool:
    """Draw normalised attention weights as a PNG: of a head (from 0), the "mean" over heads, or "all" side by side.

    Returns True, like `draw_reweighting`, since every mechanism has weights.
    """
    panels = _panels(captured.weights(), captured, head)
    values = np.concatenate([matrix[~np.isnan(matrix)] for _, matrix in panels])
    # The range may start below 0, since weights of rope may be negative.
    scale = (min(0.0, float(values.min())), float(np.percentile(values, HIGHEST)) or 1.0)
    _draw("attention", captured, panels, scale, queries, keys, path)
    return True


def draw_reweighting(captured: Captured, head: int | str, queries: Axis, keys: Axis, path: str | Path) -> bool:
    """Draw the reweighting matrix cos(pi/2 (p_q - p_k)) as a PNG (figure 3 of LeaPformer, arXiv:2405.13046).

    There is one matrix if all heads share proportions. Returns False, and draws nothing, for a mechanism without
    proportions.
    """
    matrices = captured.reweighting()
    if matrices is None:
        return False
    panels = [("all heads", _shown(matrices[0], captured))] if len(matrices) == 1 else _panels(matrices, captured, head)
    _draw("reweighting cos(π/2 (p_q − p_k))", captured, panels, (0.0, 1.0), queries, keys, path)
    return True


def _panels(matrices: Tensor, captured: Captured, head: int | str) -> list[tuple[str, np.ndarray]]:
    """Titles and matrices (T, S) of the chosen heads of `matrices` (H, T, S)."""
    if head == "mean":
        return [("mean over heads", _shown(matrices.mean(0), captured))]
    chosen = range(len(matrices)) if head == "all" else [int(head)]
    return [(f"head {i}", _shown(matrices[i], captured)) for i in chosen]


def _shown(matrix: Tensor, captured: Captured) -> np.ndarray:
    """The matrix as an array, NaN where the mask hides keys."""
    return matrix.float().masked_fill(captured.hidden(), math.nan).numpy()


def _draw(
    title: str,
    captured: Captured,
    panels: list[tuple[str, np.ndarray]],
    scale: tuple[float, float],
    queries: Axis,
    keys: Axis,
    path: str | Path,
) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    columns = math.ceil(math.sqrt(len(panels)))
    lines = math.ceil(len(panels) / columns)
    width, height = (_inches(panels[0][1].shape[side], axis) for side, axis in ((1, keys), (0, queries)))
    figure = Figure(figsize=(1.2 + columns * width, 0.8 + lines * height), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    colours = colormaps["viridis"].with_extremes(bad=HIDDEN_COLOUR)
    for axes, (name, matrix) in zip(grid.flat, panels, strict=False):
        image = axes.imshow(matrix, colours, aspect="auto", vmin=scale[0], vmax=scale[1])
        axes.set_title(name, fontsize=9)
        label(axes.xaxis, keys, matrix.shape[1], rotation=90)
        label(axes.yaxis, queries, matrix.shape[0])
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    more = float(np.nanmax([np.nanmax(matrix) for _, matrix in panels])) > scale[1]
    figure.colorbar(image, ax=grid, extend="max" if more else "neither", shrink=0.8)
    where = f"{captured.block}, layer {captured.layer + 1}, {captured.mechanism.name}"
    figure.suptitle(f"{title}: {where}", fontsize=10)
    save(figure, path)


def _inches(count: int, axis: Axis) -> float:
    """The side of a panel in inches: enough for its labels, or a fixed size without."""
    return min(8.0, max(2.4, 1.2 + 0.16 * count)) if _fits(axis, count) else 4.5


def _fits(axis: Axis, count: int) -> bool:
    return axis.tokens is not None and count <= MOST_LABELS


def label(side: Any, axis: Axis, count: int, rotation: int = 0) -> None:
    """Name an axis, and label its rows or columns if there are few."""
    side.set_label_text(axis.name, fontsize=8)
    side.set_tick_params(labelsize=7)
    if _fits(axis, count):
        # A $ in a token does not start a formula.
        side.set_ticks(range(count), list(axis.tokens or ()), rotation=rotation, parse_math=False)
