"""Plots of predicted sparsity: curves over sparsity, graphs of single heads, a panel per layer and head."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...attention.sparse.blocks import SIZE
from ...scoring.pictures.figures import save
from ...scoring.pictures.heatmaps import Axis, label
from .report import by_seed, front

Row = dict[str, Any]
Means = dict[str, list[tuple[int, float, float]]]  # see `block_means`
PANEL = (4.6, 3.6)  # inches
MARKERS = "osD^vP*X"
WORSE = 0.3  # relative distance to the oracle's BLEU or perplexity that is still shown
GRID = 101  # sparsities at which the fronts of seeds are compared


def draw_curves(
    rows: Sequence[Row], gold: Mapping[str, float], path: str | Path, measure: str = "recall", title: str = ""
) -> None:
    """Plot each mechanism's front, `measure` over sparsity, with the range over seeds (Treviso et al., figures 2, 4).

    `gold` has the sparsity of the teacher's graph and its `measure`: the oracle. The axis of perplexity points
    downwards; BLEU and perplexity much worse than the oracle's are cut off.
    """
    figure, axes = _figure(1, 1, PANEL)
    larger = measure not in ("perplexity",)
    for i, mechanism in enumerate(dict.fromkeys(row["mechanism"] for row in rows)):
        style = {"color": f"C{i % 10}", "linestyle": "--" if mechanism == "entmax-window" else "-"}
        seeds = [front(of_seed, measure, larger) for of_seed in by_seed(rows, mechanism).values()]
        if len(seeds) == 1:
            xs, ys = ([row[name] for row in seeds[0]] for name in ("sparsity", measure))
            axes.plot(xs, ys, label=mechanism, marker=MARKERS[i % len(MARKERS)], markersize=3, linewidth=1, **style)
            continue
        at = np.linspace(min(row["sparsity"] for points in seeds for row in points), 1, GRID)
        curves = np.array([[_reached(points, x, measure, larger) for x in at] for points in seeds])
        axes.plot(at, curves.mean(0), label=mechanism, linewidth=1, **style)
        axes.fill_between(at, curves.min(0), curves.max(0), color=style["color"], alpha=0.2, linewidth=0)
    axes.axvline(gold["sparsity"], color="0.4", linewidth=1, linestyle=":")
    axes.plot([gold["sparsity"]], [gold[measure]], "k*", markersize=10, label="oracle (full entmax)")
    axes.set(xlabel="sparsity", ylabel=measure if larger else f"{measure} (lower is better)", title=title)
    if measure != "recall":
        best = (max if larger else min)([gold[measure], *(row[measure] for row in rows)])
        worst, room = gold[measure] * (1 - WORSE if larger else 1 + WORSE), 0.05 * WORSE * gold[measure]
        axes.set_ylim(*((worst, best + room) if larger else (worst, best - room)))
    axes.legend(fontsize=7)
    save(figure, path)


def draw_graph(
    predicted: Tensor, weights: Tensor, gold: Tensor, axes_of: tuple[Axis, Axis], path: str | Path, title: str
) -> None:
    """Draw a head's predicted graph and its attention, both (T, S), with stars at gold edges (figures 3, 5, 11, 12).

    `axes_of` are those of queries and keys.
    """
    figure, axes = _figure(1, 2, PANEL)
    stars = gold.nonzero().numpy()
    for panel, matrix, name in (
        (axes[0], predicted.float(), "predicted graph"),
        (axes[1], weights.float(), "attention"),
    ):
        panel.imshow(matrix.numpy(), "viridis", aspect="auto", vmin=0, vmax=max(float(matrix.max()), 1e-9))
        panel.plot(stars[:, 1], stars[:, 0], "r*", markersize=3, markeredgewidth=0)
        panel.set_title(name, fontsize=9)
        label(panel.xaxis, axes_of[1], matrix.shape[1], rotation=90)
        label(panel.yaxis, axes_of[0], matrix.shape[0])
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def draw_panels(points: Mapping[str, tuple[Tensor, Tensor]], path: str | Path, title: str) -> None:
    """Plot recall over sparsity, a panel per layer and head (figures 8 to 10).

    `points` are sparsities and recalls (P, L, H) of each mechanism at one window.
    """
    layers, heads = next(iter(points.values()))[0].shape[1:]
    figure, grid = _figure(layers, heads, (1.9, 1.6), squeeze=False)
    for i, (mechanism, (sparsity, recall)) in enumerate(points.items()):
        for layer in range(layers):
            for head in range(heads):
                order = sparsity[:, layer, head].argsort()
                grid[layer, head].plot(
                    sparsity[order, layer, head],
                    recall[order, layer, head],
                    color=f"C{i % 10}",
                    marker=MARKERS[i % len(MARKERS)],
                    markersize=2,
                    linewidth=0.8,
                    label=mechanism,
                )
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer, head]
            axes.set(xlim=(0, 1), ylim=(0, 1.02))
            axes.set_title(f"layer {layer + 1}, head {head}", fontsize=7)
            axes.tick_params(labelsize=6)
    lines, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=5, fontsize=7)
    figure.suptitle(f"{title}: recall over sparsity", fontsize=10)
    save(figure, path)


def draw_blocks(panels: Mapping[str, Means], full: Row, name: str, path: str | Path) -> None:
    """Plot perplexity over seconds: lines through the numbers of attended blocks, a panel per title (figures 7, 13)."""
    figure, grid = _figure(1, len(panels), PANEL, squeeze=False)
    for axes, (title, means) in zip(grid[0], panels.items(), strict=True):
        for i, (mechanism, line) in enumerate(means.items()):
            seconds, quality = [x for _, x, _ in line], [y for _, _, y in line]
            axes.plot(seconds, quality, label=mechanism, color=f"C{i}", marker=MARKERS[i], markersize=4)
            for count, *at in line:
                axes.annotate(str(count), at, fontsize=6)
        axes.plot([full["seconds"]], [full["quality"]], "k*", markersize=10, label="full entmax")
        axes.axhline(full["quality"], color="0.4", linewidth=1, linestyle=":")
        axes.set(xlabel="seconds of the model", ylabel=f"{name} (lower is better)", title=title)
        axes.invert_yaxis()
    grid[0, 0].legend(fontsize=7)
    save(figure, path)


def block_means(rows: Sequence[Row], sizes: Collection[int]) -> Means:
    """Return (attended blocks, seconds, quality) of each pattern of blocks, means over `sizes` and all centroids."""
    means: Means = {}
    chosen = [row for row in rows if row["options"][SIZE.name] in sizes]
    for mechanism, count in sorted({(row["mechanism"], row["attended"]) for row in chosen}):
        here = [row for row in chosen if (row["mechanism"], row["attended"]) == (mechanism, count)]
        seconds, quality = (sum(row[key] for row in here) / len(here) for key in ("seconds", "quality"))
        means.setdefault(mechanism, []).append((count, seconds, quality))
    return means


def draw_tags(shares: Mapping[str, Tensor], tags: Sequence[str], path: str | Path, title: str) -> None:
    """Plot the distribution of each tag's tokens over buckets as stacked bars (figure 6).

    `shares` (buckets, tags) has a panel for each side, queries and keys.
    """
    figure, grid = _figure(1, len(shares), (6.4, 3.6), squeeze=False)
    for axes, (side, of_side) in zip(grid[0], shares.items(), strict=True):
        below = np.zeros(len(tags))
        for bucket, part in enumerate(of_side.numpy()):
            style = {"color": f"C{bucket % 10}", "hatch": "/" * (bucket // 10)}
            axes.bar(range(len(tags)), part, bottom=below, label=str(bucket), **style)
            below += part
        axes.set(ylabel="share of the tag's tokens", title=side)
        axes.set_xticks(range(len(tags)), tags, rotation=90, fontsize=7)
    grid[0, -1].legend(fontsize=6, title="bucket", title_fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def _reached(points: Sequence[Row], sparsity: float, measure: str, larger: bool) -> float:
    values = [row[measure] for row in points if row["sparsity"] >= sparsity]
    return (max if larger else min)(values, default=np.nan)


def _figure(rows: int, columns: int, panel: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * panel[0] + 0.4, rows * panel[1] + 0.6), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)
