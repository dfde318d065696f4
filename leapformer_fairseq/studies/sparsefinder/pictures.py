"""Plots of predicted sparsity: curves over sparsity, graphs of single heads, a panel per layer and head."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...attention.sparse.blocks import SIZE
from ...scoring.figure import Figure, Panel, grid
from ...scoring.names import plan_title
from ...scoring.pictures.heatmaps import Axis, label
from ...support.files import read_json
from ...support.lines import read_table
from .report import by_seed, front

Row = dict[str, Any]
Means = dict[str, list[tuple[int, float, float]]]  # see `block_means`
WORSE = 0.3  # relative distance to the oracle's BLEU or perplexity that is still shown
GRID = 101  # sparsities at which the fronts of seeds are compared
ORACLE: dict[str, Any] = {"marker": "*", "markersize": 12, "colour": "black", "label": ""}


def figure_of(path: Path) -> Figure | None:
    """The figure of stored results: curves.csv or quality.csv with curves.json beside it, or blocks.json.

    Returns None for other files.
    """
    if path.suffix == ".csv":
        gold = read_json(path.with_name("curves.json"), ("gold",))["gold"]
        rows: list[Row] = [dict(row) for _, row in read_table(path)]
        name = gold["name"] if "quality" in rows[0] else "recall"
        numbers = {"sparsity": "sparsity", name: "quality" if "quality" in rows[0] else "recall"}
        rows = [{**row, **{to: float(row[key]) for to, key in numbers.items()}} for row in rows]
        return curves_figure(rows, {**gold, name: gold[numbers[name]]}, name)
    content = read_json(path)
    if {"full", "rows"} <= set(content):
        return blocks_figure(content["rows"], content["full"], content["full"]["name"])
    return None


def curves_figure(rows: Sequence[Row], gold: Mapping[str, Any], measure: str = "recall", title: str = "") -> Figure:
    """Draw each mechanism's front, `measure` over sparsity, with the range over seeds (Treviso et al., figures 2, 4).

    `gold` has the sparsity of the teacher's graph and its `measure`: the oracle. The axis of perplexity points
    downwards; BLEU and perplexity much worse than the oracle's are cut off.
    """
    larger = measure not in ("perplexity",)
    figure = Figure(title or f"{measure} over sparsity", [(1, 4.2)])
    panel = figure.panel("", "sparsity", measure if larger else f"{measure} (lower is better)")
    for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
        name = plan_title(mechanism)
        dash: dict[str, Any] = {"linestyle": "--"} if mechanism == "entmax-window" else {}
        seeds = [front(of_seed, measure, larger) for of_seed in by_seed(rows, mechanism).values()]
        if len(seeds) == 1:
            panel.line(name, [(row["sparsity"], row[measure]) for row in seeds[0]], markersize=3, **dash)
            continue
        at = np.linspace(min(row["sparsity"] for points in seeds for row in points), 1, GRID)
        curves = np.array([[_reached(points, x, measure, larger) for x in at] for points in seeds])
        reached = ~np.isnan(curves).any(0)
        panel.line(name, zip(at[reached], curves.mean(0)[reached], strict=True), marker="", **dash)
        panel.area(name, at, curves.min(0), curves.max(0))
    panel.axes.axvline(gold["sparsity"], color="0.35", linewidth=1, linestyle=":")
    panel.line("oracle", [(gold["sparsity"], gold[measure])], **ORACLE)
    panel.tag("full entmax", gold["sparsity"], gold[measure], "black", 6)
    if measure != "recall":
        best = (max if larger else min)([gold[measure], *(row[measure] for row in rows)])
        worst, room = gold[measure] * (1 - WORSE if larger else 1 + WORSE), 0.05 * WORSE * gold[measure]
        panel.axes.set_ylim(*((worst, best + room) if larger else (worst, best - room)))
    return figure


def draw_graph(
    predicted: Tensor, weights: Tensor, gold: Tensor, axes_of: tuple[Axis, Axis], path: str | Path, title: str
) -> None:
    """Draw a head's predicted graph and its attention, both (T, S), with stars at gold edges (figures 3, 5, 11, 12).

    `axes_of` are those of queries and keys.
    """
    figure = Figure(title, [(2, 3.8)])
    stars = gold.nonzero().numpy()
    for matrix, name in ((predicted.float(), "predicted graph"), (weights.float(), "attention")):
        panel = figure.panel(name)
        panel.heat(matrix.numpy(), (0, max(float(matrix.max()), 1e-9)))
        panel.axes.plot(stars[:, 1], stars[:, 0], "r*", markersize=6, markeredgewidth=0)
        label(panel, *axes_of, matrix.shape)
    figure.save(path)


def draw_panels(points: Mapping[str, tuple[Tensor, Tensor]], path: str | Path, title: str) -> None:
    """Draw recall over sparsity, a panel per layer and head (figures 8 to 10).

    `points` are sparsities and recalls (P, L, H) of each mechanism at one window.
    """
    layers, heads = next(iter(points.values()))[0].shape[1:]
    figure = Figure(f"{title}: recall over sparsity", [(heads, 1.5)] * layers, share="xy")
    for layer in range(layers):
        for head in range(heads):
            panel = figure.panel(f"layer {layer + 1}, head {head}")
            for mechanism, (sparsity, recall) in points.items():
                of_head = sorted(zip(sparsity[:, layer, head].tolist(), recall[:, layer, head].tolist(), strict=True))
                panel.line(plan_title(mechanism), of_head, markersize=2, linewidth=0.9)
            panel.axes.set(xlim=(0, 1), ylim=(0, 1.02))
            panel.axes.title.set_fontsize(7)
    figure.save(path)


def blocks_figure(rows: Sequence[Row], full: Row, name: str, by_size: bool = False) -> Figure:
    """Draw perplexity over seconds: lines through the numbers of attended blocks, averaged over sizes (figure 7).

    With `by_size`, there is a panel for each size (figure 13).
    """
    sizes = sorted({row["options"][SIZE.name] for row in rows})
    panels = {f"blocks of {size}": [size] for size in sizes}
    panels = panels if by_size else {"averaged over sizes from 2": [size for size in sizes if size > 1]}
    figure = Figure(f"Attention over blocks: {name} against time", grid(len(panels), 2, 3.4 if by_size else 4.0))
    for title, chosen in panels.items():
        panel = figure.panel(title, "seconds of the model", f"{name} (lower is better)")
        _draw_blocks(panel, block_means(rows, chosen), full)
    return figure


def _draw_blocks(panel: Panel, means: Means, full: Row) -> None:
    for mechanism, line in means.items():
        panel.line(plan_title(mechanism), [(seconds, quality) for _, seconds, quality in line])
        for count, seconds, quality in line:
            panel.tag(str(count), seconds, quality)
    panel.line("full", [(full["seconds"], full["quality"])], **ORACLE)
    panel.level(full["quality"], "full entmax")
    panel.axes.invert_yaxis()


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
    """Draw the distribution of each tag's tokens over buckets as stacked bars (figure 6).

    `shares` (buckets, tags) has a panel for each side, queries and keys.
    """
    figure = Figure(title, grid(len(shares), 1, 2.8))
    for side, of_side in shares.items():
        panel = figure.panel(side, y="share of the tag's tokens")
        panel.bars(tags, {f"bucket {i}": part for i, part in enumerate(of_side.tolist())}, stacked=True)
        panel.axes.tick_params(axis="x", rotation=45)
    figure.save(path)


def _reached(points: Sequence[Row], sparsity: float, measure: str, larger: bool) -> float:
    values = [row[measure] for row in points if row["sparsity"] >= sparsity]
    return (max if larger else min)(values, default=np.nan)
