"""Spectrograms below each other share their axes."""

from __future__ import annotations

import numpy as np
import pytest

from leapformer_fairseq.runtime.acoustics.mel import MelConfig
from leapformer_fairseq.scoring.pictures.heatmaps import draw_spectrograms
from tests.scoring.pictures.images import pixels

MELS = MelConfig()


def noise(frames):
    return np.random.default_rng(0).random((frames, 80)) * 4 - 6


def test_a_shorter_panel_leaves_the_rest_of_the_time_empty(tmp_path):
    draw_spectrograms({"reference": noise(200), "leap": noise(100)}, MELS, "costs $5, not $6", tmp_path / "two.png")
    picture = pixels(tmp_path / "two.png")
    coloured = picture.max(axis=2) - picture.min(axis=2) > 0.1
    half = len(coloured) // 2
    widths = [
        int(rows[:, : int(0.86 * rows.shape[1])].sum(axis=1).max()) for rows in (coloured[:half], coloured[half:])
    ]
    assert abs(widths[1] / widths[0] - 0.5) < 0.03


@pytest.mark.full
def test_every_system_adds_a_panel(tmp_path):
    panels = {name: noise(50) for name in ("reference", "softmax", "leap", "relu")}
    heights = []
    for count in (1, 2, 4):
        draw_spectrograms(dict(list(panels.items())[:count]), MELS, "a", tmp_path / f"{count}.png")
        heights.append(len(pixels(tmp_path / f"{count}.png")))
    assert heights[1] - heights[0] == (heights[2] - heights[1]) / 2 > 100


def test_panels_have_one_scale_of_colours(tmp_path):
    """The same soft frames below loud ones are drawn darker than alone."""
    soft = np.linspace(-8, -6, 4000).reshape(50, 80)
    draw_spectrograms({"soft": soft}, MELS, "a", tmp_path / "alone.png")
    draw_spectrograms({"loud": soft + 6, "soft": soft}, MELS, "a", tmp_path / "both.png")
    alone, both = pixels(tmp_path / "alone.png"), pixels(tmp_path / "both.png")
    x, y = both.shape[1] // 3, int(0.68 * len(both))
    assert both[y, x].sum() < alone[len(alone) // 2, x].sum() - 0.3
