"""Cepstral mean and variance normalisation of frames, by the statistics of a data set or of the recording itself."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..support.errors import LeapformerError

LEAST_VARIANCE = 1e-10  # of a bin in a recording


@dataclass(frozen=True)
class Cmvn:
    """The mean and the standard deviation of each of F bins, (F,), as fairseq's `gcmvn.npz` holds them."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def load(cls, path: str | Path) -> Cmvn:
        """Read `gcmvn.npz`. Raises LeapformerError if it is missing or does not contain mean and std."""
        if not Path(path).is_file():
            raise LeapformerError(f"no CMVN statistics at {path}; check global_cmvn.stats_npz_path in the config yaml")
        try:
            with np.load(path) as stats:
                return cls(stats["mean"].astype(np.float32), stats["std"].astype(np.float32))
        except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise LeapformerError(f"{path} is no npz file with mean and std; prepare the data again") from error

    @classmethod
    def of(cls, mean: Sequence[float] | None, std: Sequence[float] | None) -> Cmvn | None:
        """The statistics in an exported folder; None if its frames are not normalised."""
        return None if mean is None or std is None else cls(np.array(mean, np.float32), np.array(std, np.float32))

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Normalised frames, (T, F)."""
        return (frames - self.mean) / self.std

    def undo(self, frames: np.ndarray) -> np.ndarray:
        """Frames (T, F) before they were normalised."""
        return frames * self.std + self.mean


def by_itself(frames: np.ndarray, mean: bool, std: bool) -> np.ndarray:
    """The frames (T, F) of a recording without their mean, over their deviation: fairseq's `utterance_cmvn`."""
    means, squares = frames.mean(axis=0), (frames**2).sum(axis=0)
    centred = frames - means if mean else frames
    return centred / np.sqrt(np.maximum(squares / len(frames) - means**2, LEAST_VARIANCE)) if std else centred
