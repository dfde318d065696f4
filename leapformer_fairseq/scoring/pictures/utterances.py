"""Plots an utterance of a text-to-speech model: spectrogram, alignment, and probability of the end."""

from __future__ import annotations

from pathlib import Path

from ...runtime.spoken import Script, Utterance
from .figures import save


def draw_utterance(utterance: Utterance, script: Script, path: str | Path) -> None:
    """Draw a PNG with three panels over a common time axis; that of the alignment is empty if it was not kept."""
    from matplotlib.figure import Figure

    steps, phonemes = len(utterance.ended), [*script.phonemes.split(), "."]
    figure = Figure(figsize=(9, 7), layout="constrained")
    spectrogram, alignment, end = figure.subplots(3, 1, height_ratios=(3, 3, 1), sharex=True)
    channels = (0, steps, 0, utterance.frames.shape[1])
    spectrogram.imshow(utterance.frames.T, "magma", aspect="auto", origin="lower", extent=channels)
    spectrogram.set_ylabel("mel channel")
    if utterance.alignment is not None:
        extent = (0, steps, -0.5, len(phonemes) - 0.5)
        alignment.imshow(utterance.alignment.T, aspect="auto", origin="lower", extent=extent)
        alignment.set_yticks(range(len(phonemes)), phonemes, fontsize=6, parse_math=False)
    alignment.set_ylabel("phonemes")
    end.plot([step + 0.5 for step in range(steps)], utterance.ended)
    end.set(ylabel="end", xlabel="decoder step", ylim=(0, 1))
    if utterance.predicted is not None:
        end.axvline(utterance.predicted, linestyle=":", label="predicted length")
        end.legend(fontsize=7)
    figure.suptitle(script.text, fontsize=10, parse_math=False, wrap=True)
    save(figure, path)
