"""Vocoders: from log-mel spectrograms back to speech."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...support.errors import LeapformerError
from .mel import MelConfig, istft, stft

Vocoder = Callable[[np.ndarray], np.ndarray]  # log-mels (frames, n_mels) to samples (T,)
# How much of its last change the spectrogram goes on by. Measured on speech of espeak-ng: 32 iterations with it reach a
# log-mel error of 0.17, 32 without it 0.19, 64 without it 0.18.
MOMENTUM = 0.99


class GriffinLim:
    """Speech from log-mels by the fast Griffin-Lim algorithm (Perraudin et al. 2013); the same input repeats exactly.

    Magnitudes come from the pseudo-inverse of the mel filters, negative ones set to 0. Phases begin at random, drawn
    from `seed`. Called with log-mels (frames, n_mels) as `log_mel` makes them it returns samples, float32, of
    hop_length * (frames - 1), which `log_mel` turns into as many frames again; a single frame gives one hop.
    Raises LeapformerError for another shape.
    """

    def __init__(self, config: MelConfig, iterations: int = 32, seed: int = 0) -> None:
        self.config, self.iterations, self.seed = config, iterations, seed
        self._inverse = np.linalg.pinv(config.filters().astype(np.float64)).T.astype(np.float32)  # (n_mels, bins)

    def __call__(self, log_mels: np.ndarray) -> np.ndarray:
        """The speech, (T,), of log-mels (frames, n_mels)."""
        log_mels = np.asarray(log_mels, np.float32)
        if log_mels.ndim != 2 or log_mels.shape[1] != self.config.n_mels or not len(log_mels):
            raise LeapformerError(
                f"log-mels of shape {tuple(log_mels.shape)} for a vocoder of (frames, {self.config.n_mels}); "
                "give the features that the model was trained on"
            )
        magnitude = (np.exp(log_mels) @ self._inverse).clip(min=0)  # (frames, bins)
        turns = np.random.default_rng(self.seed).random(magnitude.shape, np.float32)
        estimate, last = magnitude * np.exp(2j * np.pi * turns).astype(np.complex64), np.zeros((), np.complex64)
        for _ in range(self.iterations):
            rebuilt = stft(istft(estimate, self.config), self.config)
            # Only the phase counts, so 1 + MOMENTUM times this is meant.
            ahead = rebuilt - np.float32(MOMENTUM / (1 + MOMENTUM)) * last
            estimate = magnitude * ahead / np.abs(ahead).clip(min=np.finfo(np.float32).tiny)
            last = rebuilt
        return istft(estimate, self.config)
