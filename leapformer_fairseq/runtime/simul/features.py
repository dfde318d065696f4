"""Model input from arriving audio: normalised filterbank frames in pre-decision steps."""

from __future__ import annotations

import copy

import numpy as np

from ..audio import SAMPLE_RATE, OnlineFbank
from ..cmvn import Cmvn


class FeatureStream:
    """The frames of one utterance while its audio arrives, returned in steps of `step_frames` frames (10 ms each).

    The steps do not depend on how the audio was cut; only the last one may be shorter. Each frame is computed once and
    kept only until its step is taken.
    """

    def __init__(self, step_frames: int, cmvn: Cmvn | None = None, n_bins: int = 80) -> None:
        self.step_frames, self.cmvn, self.n_bins = step_frames, cmvn, n_bins
        self._fbank = OnlineFbank(SAMPLE_RATE, n_bins)
        self._pending = np.empty((0, n_bins), dtype=np.float32)

    @property
    def n_pending(self) -> int:
        """Number of frames that are computed but not taken yet."""
        return len(self._pending)

    def push(self, samples: np.ndarray) -> None:
        """Add samples in [-1, 1] at 16 kHz, shape (T,)."""
        frames = self._fbank.push(samples)
        if len(frames):
            self._pending = np.concatenate([self._pending, self.cmvn(frames) if self.cmvn else frames])

    def fork(self) -> FeatureStream:
        """An independent copy."""
        other = copy.copy(self)
        other._fbank = self._fbank.fork()
        return other

    def next_step(self, final: bool) -> np.ndarray | None:
        """Frames of the next step, (step_frames, n_bins) float32, or None while it is incomplete.

        With `final` (the audio has ended), the remaining frames are the last, shorter step.
        """
        if self.n_pending < self.step_frames and not (final and self.n_pending):
            return None
        step, self._pending = self._pending[: self.step_frames], self._pending[self.step_frames :]
        return step.copy()
