"""Writing figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...support.files import write_with


def save(figure: Any, path: str | Path) -> None:
    """Write a matplotlib figure as a PNG, completely or not at all. Raises LeapformerError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    write_with(path, lambda partial: FigureCanvasAgg(figure).print_png(str(partial)))
