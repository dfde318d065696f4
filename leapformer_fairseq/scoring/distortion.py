"""Mel cepstral and mel spectral distortion (MCD, MSD) of synthesised speech from a recording of the same text.

Frames are aligned by dynamic time warping (DTW), and the distances along the path are summed (Weiss et al., 2021,
arXiv:2011.03568). Features and distances are those of fairseq's evaluation of speech synthesis: windows of 50 ms every
12.5 ms, 80 mel channels, 13 cepstral coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from ..runtime.acoustics.mel import MelConfig, stft

CEPSTRA = 13
CHANNELS = 80
OFFSET = 1e-6  # added to the power in a mel channel before the logarithm


@dataclass(frozen=True)
class Distortion:
    """The sum of the distances along the alignment path, and the lengths of path and speech, in frames.

    Distortions of sentences add up to the distortion of a corpus.
    """

    total: float = 0.0
    reference_frames: int = 0
    synthesised_frames: int = 0
    aligned: int = 0

    def __add__(self, other: Distortion) -> Distortion:
        return Distortion(
            self.total + other.total,
            self.reference_frames + other.reference_frames,
            self.synthesised_frames + other.synthesised_frames,
            self.aligned + other.aligned,
        )

    @property
    def insertions(self) -> int:
        """Steps of the path that stay at a reference frame: extra synthesised speech."""
        return self.aligned - self.reference_frames

    @property
    def deletions(self) -> int:
        """Steps of the path that stay at a synthesised frame: missing reference frames."""
        return self.aligned - self.synthesised_frames

    @property
    def per_reference_frame(self) -> float:
        """The usual score. It also decreases if speech is too short, because there is less to sum."""
        return self.total / self.reference_frames

    @property
    def per_aligned_frame(self) -> float:
        """The mean distance of aligned frames."""
        return self.total / self.aligned


def mcd(reference: np.ndarray, synthesised: np.ndarray, sample_rate: int) -> Distortion:
    """Mel cepstral distortion of waveforms (T,) and (T',) with samples in [-1, 1]."""
    return distance(cepstra(log_spectrum(reference, sample_rate)), cepstra(log_spectrum(synthesised, sample_rate)))


def msd(reference: np.ndarray, synthesised: np.ndarray, sample_rate: int) -> Distortion:
    """Mel spectral distortion of waveforms (T,) and (T',) with samples in [-1, 1]."""
    return distance(log_spectrum(reference, sample_rate), log_spectrum(synthesised, sample_rate))


def log_spectrum(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Log power in mel channels, (frames, 80), of a waveform (T,), as in torchaudio's MFCC with log_mels=True."""
    window, hop = int(0.05 * sample_rate), int(0.0125 * sample_rate)  # as fairseq: cut off, not rounded
    config = MelConfig(sample_rate, window, window, hop, CHANNELS, 20.0, sample_rate / 2)
    return np.log(np.abs(stft(samples, config)) ** 2 @ config.filters("htk").T + OFFSET)


def cepstra(log_spectrum: np.ndarray) -> np.ndarray:
    """The first 13 coefficients of the orthonormal DCT-II of a log spectrum (frames, 80): (frames, 13)."""
    channels = log_spectrum.shape[1]
    basis = np.cos(np.pi / channels * (np.arange(channels) + 0.5)[:, None] * np.arange(CEPSTRA))
    basis *= math.sqrt(2 / channels)
    basis[:, 0] /= math.sqrt(2)
    return log_spectrum @ basis.astype(log_spectrum.dtype)


def distance(reference: np.ndarray, synthesised: np.ndarray) -> Distortion:
    """The distortion of features (M, K) and (N, K), with sqrt(mean over K of (c - c')^2) as distance of two frames."""
    total, aligned = warp(cdist(reference, synthesised) / math.sqrt(reference.shape[1]))
    return Distortion(total, len(reference), len(synthesised), aligned)


def warp(costs: np.ndarray) -> tuple[float, int]:
    """DTW without a window: the sum of `costs` (M, N) along the cheapest path from corner to corner, and its length.

    A step goes one down, one right, or both. Among the cheapest paths, the shortest is used. M + N - 1 vector
    operations: the cells of an anti-diagonal depend only on the two before it.
    """
    rows, columns = costs.shape
    # (sum, length) at the cells of the last two anti-diagonals; row i is at i + 1, so that row 0 has one above it.
    before, last = np.full((2, 2, rows + 1), np.inf)
    before[:, 0] = 0  # the start of every path
    for offset in range(rows + columns - 1):
        low, high = max(0, offset - columns + 1), min(rows, offset + 1)
        here = np.arange(low, high)
        sums, lengths = np.stack((before[:, low:high], last[:, low:high], last[:, low + 1 : high + 1]), axis=1)
        least = sums.min(axis=0)
        current = np.full_like(last, np.inf)
        current[0, low + 1 : high + 1] = least + costs[here, offset - here]
        current[1, low + 1 : high + 1] = np.where(sums == least, lengths, np.inf).min(axis=0) + 1
        before, last = last, current
    return float(last[0, rows]), int(last[1, rows])
