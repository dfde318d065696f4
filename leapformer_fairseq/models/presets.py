"""Registers architectures, which are tables: the options of a model at one size."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairseq.models import register_model_architecture

from ..modules import fill_options

Preset = Mapping[str, Any]


def register_presets(model: str, fill: Callable[[Namespace], None], presets: Mapping[str, Preset]) -> None:
    """Register MODEL_NAME for each of the presets, by name; "" stands for MODEL alone.

    Options that neither the user nor the preset gives are left to `fill`.
    """
    for name, preset in presets.items():
        register_model_architecture(model, f"{model}_{name}".rstrip("_"))(partial(_apply, preset, fill))


def _apply(preset: Preset, fill: Callable[[Namespace], None], args: Namespace) -> None:
    fill_options(args, preset)
    fill(args)


def on_both_sides(**options: Any) -> Preset:
    """The options with the prefixes `encoder_` and `decoder_`."""
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in options.items()}
