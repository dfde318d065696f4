"""How a picture becomes a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import write_with


def save(figure: Any, path: str | Path) -> None:
    """Write a figure of matplotlib as a PNG, whole or not at all. Raises LeapformerError when it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    write_with(path, lambda partial: FigureCanvasAgg(figure).print_png(str(partial)))
