"""Sinusoidal positions (Vaswani et al., 2017, arXiv:1706.03762, section 3.5), in fairseq's layout."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Embeddings (m, width) of any positions (m,): sines of falling frequency, then cosines, a zero if width is odd."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=positions.device) * (-math.log(10_000) / max(1, half - 1)))
    angles = positions.unsqueeze(1) * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, width % 2))
