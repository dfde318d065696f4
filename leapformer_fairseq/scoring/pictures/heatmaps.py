"""Heat maps: captured attention and reweighting, labelled with tokens if there are few, and spectrograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..figure import SMALL, TEXT, Figure, Panel, grid
from ..names import plan_title

if TYPE_CHECKING:
    from torch import Tensor

    from ...modules.capture import Captured
    from ...runtime.acoustics.mel import MelConfig
    from ...runtime.spoken import Script, Utterance

MOST_LABELS = 50  # labels of an axis; more would be unreadable
HIGHEST = 99.0  # percentile of weights with the brightest colour; the first causal rows have weights near 1
HIDDEN_COLOUR = "0.92"
SOUND = "magma"
BINS = 50


@dataclass(frozen=True)
class Axis:
    """The name of an axis, and the tokens of its rows or columns, if any."""

    name: str
    tokens: Sequence[str] | None = None


def draw_attention(captured: Captured, head: int | str, queries: Axis, keys: Axis, path: str | Path) -> bool:
    """Draw normalised attention weights: of a head (from 0), the "mean" over heads, or "all" side by side.

    Returns True, like `draw_reweighting`, since every mechanism has weights.
    """
    panels = _panels(captured.weights(), captured, head)
    values = np.concatenate([matrix[~np.isnan(matrix)] for _, matrix in panels])
    # The range may start below 0, since weights of rope may be negative.
    scale = (min(0.0, float(values.min())), float(np.percentile(values, HIGHEST)) or 1.0)
    _draw("attention", captured, panels, scale, queries, keys, path)
    return True


def draw_reweighting(captured: Captured, head: int | str, queries: Axis, keys: Axis, path: str | Path) -> bool:
    """Draw the reweighting matrix cos(pi/2 (p_q - p_k)) (figure 3 of LeaPformer, arXiv:2405.13046).

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

    where = f"{captured.block}, layer {captured.layer + 1}, {plan_title(captured.mechanism.name)}"
    height = _inches(panels[0][1].shape[0], queries)
    # A short sentence would be drawn out over the page.
    width = 1.2 + math.ceil(math.sqrt(len(panels))) * _inches(panels[0][1].shape[1], keys)
    figure = Figure(f"{title}: {where}", grid(len(panels), math.ceil(math.sqrt(len(panels))), height), width=width)
    colours = colormaps["viridis"].with_extremes(bad=HIDDEN_COLOUR)
    for name, matrix in panels:
        panel = figure.panel(name)
        image = panel.heat(matrix, scale, colours)
        label(panel, queries, keys, matrix.shape)
    more = float(np.nanmax([np.nanmax(matrix) for _, matrix in panels])) > scale[1]
    figure.scale(image, extend="max" if more else "neither")
    figure.save(path)


def _inches(count: int, axis: Axis) -> float:
    """The side of a panel in inches: enough for its labels, or a fixed size without."""
    return min(8.0, max(2.4, 1.2 + 0.16 * count)) if _fits(axis, count) else 4.0


def _fits(axis: Axis, count: int) -> bool:
    return axis.tokens is not None and count <= MOST_LABELS


def label(panel: Panel, queries: Axis, keys: Axis, shape: Sequence[int]) -> None:
    """Name the axes of a map (T, S), and label its rows and columns if there are few."""
    sides = ((panel.axes.yaxis, queries, shape[0], 0), (panel.axes.xaxis, keys, shape[1], 90))
    for side, axis, count, rotation in sides:
        side.set_label_text(axis.name, fontsize=SMALL)
        side.set_tick_params(labelsize=7)
        if _fits(axis, count):
            # A $ in a token does not start a formula.
            side.set_ticks(range(count), list(axis.tokens or ()), rotation=rotation, parse_math=False)
        else:
            side.get_major_locator().set_params(integer=True)


# --------------------------------------------------------------------------------------------------------------- speech
def draw_spectrograms(log_mels: Mapping[str, np.ndarray], mels: MelConfig, title: str, path: str | Path) -> None:
    """Draw named log-mels, (frames, n_mels) each, below each other with a common colour scale and time axis."""
    seconds_per_frame = mels.hop_length / mels.sample_rate
    longest = seconds_per_frame * max(len(frames) for frames in log_mels.values())
    scale = min(float(x.min()) for x in log_mels.values()), max(float(x.max()) for x in log_mels.values())
    figure = Figure(title, [(1, 1.6)] * len(log_mels), share="xy")
    for name, frames in log_mels.items():
        # Extents are edges: frames are centred on their times, channels on their numbers.
        extent = ((np.array([0, len(frames)]) - 0.5) * seconds_per_frame).tolist() + [-0.5, mels.n_mels - 0.5]
        panel = figure.panel(name, y="mel channel")
        image = panel.heat(frames.T, scale, SOUND, origin="lower", extent=extent)
    panel.axes.set_xlabel("seconds", fontsize=TEXT)
    panel.axes.set_xlim(-seconds_per_frame / 2, longest - seconds_per_frame / 2)
    figure.scale(image, label="log magnitude")
    figure.save(path)


def draw_utterance(utterance: Utterance, script: Script, path: str | Path) -> None:
    """Draw an utterance of a text-to-speech model over time: spectrogram, alignment, probability of the end.

    The panel of the alignment is empty if it was not kept.
    """
    steps, phonemes = len(utterance.ended), [*script.phonemes.split(), "."]
    frames, figure = utterance.frames, Figure(script.text, [(1, 2.4), (1, 2.8), (1, 1.4)], share="x")
    spectrogram, alignment = figure.panel(y="mel channel"), figure.panel(y="phonemes")
    extent = (0, steps, 0, frames.shape[1])
    spectrogram.heat(frames.T, (frames.min(), frames.max()), SOUND, origin="lower", extent=extent)
    if utterance.alignment is not None:
        weights, rows = utterance.alignment, (0, steps, -0.5, len(phonemes) - 0.5)
        alignment.heat(weights.T, (weights.min(), weights.max()), origin="lower", extent=rows)
        alignment.axes.set_yticks(range(len(phonemes)), phonemes, fontsize=6, parse_math=False)
    predicted = "" if utterance.predicted is None else "; dotted: predicted length"
    end = figure.panel(f"probability of the end{predicted}", "decoder step")
    end.line("end", [(step + 0.5, value) for step, value in enumerate(utterance.ended)], marker="", label="")
    end.axes.set_ylim(0, 1)
    if utterance.predicted is not None:
        end.axes.axvline(utterance.predicted, linestyle=":", color="0.35")
    figure.save(path)


# --------------------------------------------------------------------------------------------------------------- shares
def draw_shares(
    panels: Mapping[str, Mapping[str, Any]], x: str, shaded: Sequence[tuple[float, float]], path: Path
) -> None:
    """Draw histograms of values from 0 to 1, as shares: a panel for each title, and in it one for each name.

    Ranges in `shaded` are grey.
    """
    figure = Figure("Proportions of queries and keys", grid(len(panels), 2, 1.9), share="x")
    for title, values in panels.items():
        panel = figure.panel(title, x, "share of the tokens")
        for name, of_name in values.items():
            shares, edges = np.histogram(of_name, BINS, (0, 1), weights=np.full(len(of_name), 1 / len(of_name)))
            panel.steps(name, shares, edges)
        for begin, end in shaded:
            panel.axes.axvspan(begin, end, color="0.9", zorder=0)
    figure.save(path)
