"""Reading a picture back."""

from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
from matplotlib.image import imread
from matplotlib.text import Text

SVG = "{http://www.w3.org/2000/svg}"


def pixels(path: Path) -> np.ndarray:
    """(height, width, 3) of a PNG that is neither tiny, nor huge, nor blank."""
    found = imread(path)[..., :3]
    assert min(found.shape[:2]) > 150 and max(found.shape[:2]) < 4000
    assert len(np.unique(found.reshape(-1, 3), axis=0)) > 20
    return found


def texts(path: Path) -> list[str]:
    """The texts of an SVG with a white background, no wider than a page."""
    root = ElementTree.parse(path).getroot()
    assert 150 < float(root.attrib["width"].removesuffix("pt")) < 2000
    assert "fill: #ffffff" in next(iter(root.iter(f"{SVG}path"))).attrib["style"]
    return ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]


def overlapping(figure: Any) -> list[tuple[str, str]]:
    """The pairs of visible texts of a finished figure that cover each other, or that leave the figure."""
    shown, draw = list[Text](), Text.draw
    with patch.object(Text, "draw", lambda text, renderer: (shown.append(text), draw(text, renderer))):
        figure.draw_without_rendering()  # ticks out of view have texts, too, which are not drawn
    shown = [text for text in dict.fromkeys(shown) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown]
    inside = figure.bbox.padded(2)
    cut = [(text, "edge") for text, box in boxes if not (inside.contains(*box.p0) and inside.contains(*box.p1))]
    return cut + [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.padded(-0.5).overlaps(other)]
