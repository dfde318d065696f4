"""Plots spectrograms of the same sentence below each other: the recording, and the output of each system."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...runtime.acoustics.mel import MelConfig
from .figures import save

PANEL_HEIGHT = 1.7  # inches
WIDTHS = (6.0, 14.0)  # minimum and maximum, in inches
INCHES_PER_SECOND = 2.5


def draw_spectrograms(log_mels: Mapping[str, np.ndarray], mels: MelConfig, title: str, path: str | Path) -> None:
    """Draw named log-mels, (frames, n_mels) each, as a PNG with a common colour scale and time axis."""
    from matplotlib.figure import Figure

    seconds_per_frame = mels.hop_length / mels.sample_rate
    longest = seconds_per_frame * max(len(frames) for frames in log_mels.values())
    width = float(np.clip(INCHES_PER_SECOND * longest, *WIDTHS))
    figure = Figure(figsize=(width, 1 + PANEL_HEIGHT * len(log_mels)), layout="constrained")
    grid = figure.subplots(len(log_mels), 1, squeeze=False, sharex=True, sharey=True)
    darkest = min(float(frames.min()) for frames in log_mels.values())
    brightest = max(float(frames.max()) for frames in log_mels.values())
    for axes, (name, frames) in zip(grid.flat, log_mels.items(), strict=True):
        # Extents are edges: frames are centred on their times, channels on their numbers.
        extent = ((np.array([0, len(frames)]) - 0.5) * seconds_per_frame).tolist() + [-0.5, mels.n_mels - 0.5]
        image = axes.imshow(
            frames.T, "magma", aspect="auto", origin="lower", extent=extent, vmin=darkest, vmax=brightest
        )
        axes.set_title(name, fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
    grid[0][0].set_xlim(-seconds_per_frame / 2, longest - seconds_per_frame / 2)
    figure.colorbar(image, ax=grid, shrink=0.8, label="log magnitude")
    figure.supxlabel("seconds", fontsize=8)
    figure.supylabel("mel channel", fontsize=8)
    figure.suptitle(title, fontsize=10, parse_math=False, wrap=True)
    save(figure, path)
