"""Draws a model's attention on some sentences into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...modules.capture import Choice, capture
from .heatmaps import draw_attention, draw_reweighting
from .inputs import Example
from .proportions import Proportions


def draw_maps(
    model: Any, sentences: Iterable[Example], chosen: Choice, head: int | str, folder: Path, tell: Callable[[str], None]
) -> tuple[Proportions, list[Path]]:
    """Draw the first sentence as BLOCK_layerN_{attention,reweighting}.svg, and the proportions of all sentences.

    Histograms of proportions are written to proportions.svg if a mechanism has any. `tell` receives the notes on each
    sentence. Returns the proportions and the paths of the plots.
    """
    proportions, drawn = Proportions(), []
    for number, sentence in enumerate(sentences):
        for note in sentence.notes:
            tell(f"sentence {number + 1}: {note}")
        captured = capture(model, sentence.batch, chosen)
        proportions.add(captured)
        for layer in captured if number == 0 else ():
            for kind, draw in (("attention", draw_attention), ("reweighting", draw_reweighting)):
                path = folder / f"{layer.block}_layer{layer.layer + 1}_{kind}.svg"
                if draw(layer, head, *sentence.axes(layer.block), path):
                    drawn.append(path)
    if proportions.values:
        drawn.append(folder / "proportions.svg")
        proportions.draw(drawn[-1])
    return proportions, drawn
