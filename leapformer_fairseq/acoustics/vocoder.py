"""Vocoders: from log-mel spectrograms back to speech.

Griffin-Lim needs nothing but the configuration of the features; HiFi-GAN is a network that somebody has trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import LeapformerError
from .mel import MelConfig, stft

Vocoder = Callable[[Tensor], Tensor]  # log-mels (frames, n_mels) to a waveform (T,)
# How much of its last change the spectrogram goes on by. Measured on speech of espeak-ng: 32 iterations with it reach a
# log-mel error of 0.17, 32 without it 0.19, 64 without it 0.18.
MOMENTUM = 0.99


class GriffinLim:
    """Speech from log-mels by the fast Griffin-Lim algorithm (Perraudin et al. 2013); the same input repeats exactly.

    Magnitudes come from the pseudo-inverse of the mel filters, negative ones set to 0. Phases begin at random, drawn
    from `seed`. Called with log-mels (frames, n_mels) as `log_mel` makes them it returns a waveform, float32, of
    hop_length * (frames - 1) samples, which `log_mel` turns into as many frames again; a single frame gives one hop.
    Raises LeapformerError for another shape.
    """

    def __init__(self, config: MelConfig, iterations: int = 32, seed: int = 0) -> None:
        self.config, self.iterations, self.seed = config, iterations, seed
        self._inverse = torch.linalg.pinv(config.filters().double()).float()  # (bins, n_mels)

    @torch.no_grad()
    def __call__(self, log_mels: Tensor) -> Tensor:
        """The speech, (T,), of log-mels (frames, n_mels)."""
        if log_mels.ndim != 2 or log_mels.shape[1] != self.config.n_mels or not len(log_mels):
            raise LeapformerError(
                f"log-mels of shape {tuple(log_mels.shape)} for a vocoder of (frames, {self.config.n_mels}); "
                "give the features that the model was trained on"
            )
        magnitude = (self._inverse.to(log_mels.device) @ log_mels.float().exp().T).clamp(min=0)  # (bins, frames)
        turns = torch.rand(magnitude.shape, generator=torch.Generator().manual_seed(self.seed)).to(magnitude)
        estimate, last = torch.polar(magnitude, 2 * math.pi * turns), torch.zeros_like(magnitude)
        for _ in range(self.iterations):
            rebuilt = stft(self._waveform(estimate), self.config)
            # Only the phase counts, so 1 + MOMENTUM times this is meant.
            ahead = rebuilt - MOMENTUM / (1 + MOMENTUM) * last
            estimate, last = torch.polar(magnitude, ahead.angle()), rebuilt
        return self._waveform(estimate)

    def _waveform(self, spectrogram: Tensor) -> Tensor:
        config = self.config
        window = torch.hann_window(config.win_length, device=spectrogram.device)
        length = config.hop_length * max(spectrogram.shape[1] - 1, 1)
        return torch.istft(spectrogram, config.n_fft, config.hop_length, config.win_length, window, length=length)


def load_hifigan(checkpoint: str | Path, config_json: str | Path) -> Vocoder:
    """HiFi-GAN (Kong et al. 2020) from a generator's checkpoint and its configuration, as its authors publish them.

    The features must be those it was trained on; nothing here can check that. Raises LeapformerError for files that are
    missing, no such checkpoint, or do not belong together.
    """
    state = _load_generator(Path(checkpoint))
    config = _load_json(Path(config_json))
    from fairseq.models.text_to_speech.hifigan import Generator

    try:
        generator = Generator(config)
        generator.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise LeapformerError(
            f"the generator in {checkpoint} is not the one that {config_json} describes "
            f"({' '.join(str(error).split())[:120]}); give the files of one HiFi-GAN"
        ) from error
    generator.eval()

    @torch.no_grad()
    def vocoder(log_mels: Tensor) -> Tensor:
        return generator(log_mels.float().T[None])[0, 0]

    return vocoder


def _load_generator(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise LeapformerError(f"no vocoder at {path}; give a HiFi-GAN generator's checkpoint")
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle and zipfile each have their own for a broken file
        reason = " ".join(str(error).split())[:120]
        raise LeapformerError(f"{path} cannot be loaded ({reason}); give a HiFi-GAN generator's checkpoint") from error
    if not isinstance(state, dict) or not isinstance(state.get("generator"), dict):
        raise LeapformerError(f"{path} holds no generator; give the g_* checkpoint of a HiFi-GAN, not the do_* one")
    return state["generator"]


def _load_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LeapformerError(f"{path} cannot be read as JSON ({error}); give a HiFi-GAN's config.json") from error
    if not isinstance(config, dict):
        raise LeapformerError(f"{path} holds no JSON object; give a HiFi-GAN's config.json")
    return config
