"""Loads HiFi-GAN vocoders (Kong et al., 2020, arXiv:2010.05646)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.acoustics.vocoder import Vocoder
from ..support.errors import LeapformerError


def load_hifigan(checkpoint: str | Path, config_json: str | Path) -> Vocoder:
    """Return a vocoder from a generator's checkpoint and its config.json, as HiFi-GAN's authors publish them.

    Its features must equal those of the text-to-speech model, which cannot be checked here. Raises LeapformerError if
    a file is missing, is not HiFi-GAN's, or does not belong to the other.
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
    def vocoder(log_mels: np.ndarray) -> np.ndarray:
        return generator(torch.from_numpy(log_mels).float().T[None])[0, 0].numpy()

    return vocoder


def _load_generator(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise LeapformerError(f"no vocoder at {path}; give a HiFi-GAN generator's checkpoint")
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle and zipfile each raise their own types for a broken file
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
