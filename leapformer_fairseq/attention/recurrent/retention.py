"""Retention: every head forgets at its own fixed rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..decoding.recurrent import KernelRecurrence
from ..ops.recurrent import Written
from ..registry import register
from ..tokens import TokenInfo
from .normed import OUTPUT_GATE, NormedMechanism


@register("retention", OUTPUT_GATE)
class Retention(NormedMechanism):
    """RetNet's retention: S_s = (1 - 2^(-5-h)) S_(s-1) + k_s v_s^T in head h = 0, 1, ..

    Sun et al., 2023, arXiv:2307.08621, equations 6 to 8, without its rotation: positions enter by the embeddings.
    """

    rates: Tensor

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        rates = torch.log1p(-torch.exp2(-5.0 - torch.arange(num_heads)))
        self.register_buffer("rates", rates.view(num_heads, 1, 1))

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        return Written(k, v, self.rates.to(k.dtype).expand(*k.shape[:3], 1))

    def kernel_recurrence(self) -> KernelRecurrence:
        return KernelRecurrence("plain", -self.rates.flatten())
