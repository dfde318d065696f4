"""Writes figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...support.files import write_with


def save(figure: Any, path: str | Path) -> None:
    """Write a matplotlib figure as a PNG, atomically. Raises LeapformerError if it cannot be written."""
    # The canvas is used directly: pyplot would look for a display and keep figures in memory.
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    write_with(path, lambda partial: FigureCanvasAgg(figure).print_png(str(partial)))
