"""The ratio predictor: target length proportional to source length."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...attention import Option
from ...support.errors import LeapformerError
from .base import Predictor, Setting, Source, register


@register(
    "ratio",
    Option("length_ratio", 0.0, "ratio: decoder steps per source position; 0 estimates it from the training data"),
)
class Ratio(Predictor):
    """Predicts a constant times the source length (in the paper 1.25 to 1.5 for speech, 0.6 for translation)."""

    source_length: Tensor
    target_length: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.fixed = setting.options.length_ratio
        if not 0 <= self.fixed < math.inf:
            raise LeapformerError(f"--length-ratio {self.fixed}: give decoder steps per position, or 0 to estimate it")
        for name in ("source_length", "target_length"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))

    def observe(self, source: Source) -> None:
        assert source.target is not None
        self.source_length += source.keep.sum()
        self.target_length += source.target.sum()

    @property
    def missing(self) -> str | None:
        if self.fixed or self.source_length:
            return None
        return "the ratio of target and source lengths is unknown; train with it, or give --length-ratio"

    def forward(self, source: Source) -> Tensor:
        ratio = self.fixed or self.target_length / self.source_length
        return source.keep.sum(1).float() * ratio
