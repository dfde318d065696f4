"""Reading a picture back."""

from pathlib import Path

import numpy as np
from matplotlib.image import imread


def pixels(path: Path) -> np.ndarray:
    """(height, width, 3) of a PNG that is neither tiny, nor huge, nor blank."""
    found = imread(path)[..., :3]
    assert min(found.shape[:2]) > 150 and max(found.shape[:2]) < 4000
    assert len(np.unique(found.reshape(-1, 3), axis=0)) > 20
    return found
