"""The cosine re-weighting that cosFormer and LeaPformer share: the weight cos(pi/2 (p - r)) as a dot product.

cos(a - b) = cos a cos b + sin a sin b, so mapped rows are [x cos(pi p / 2), x sin(pi p / 2)], twice as wide (Qin et al.,
2022, arXiv:2202.08791, eq. 10-13; Agostinelli et al., 2024, arXiv:2405.13046, eq. 6-8).
"""
from __future__ import annotations

import math

import torch
from torch import Tensor


def cos_reweight(x: Tensor, proportion: Tensor) -> Tensor:
    """x (B, H, T, D) >= 0 with a proportion in [0, 1] per row, broadcastable to (B, H, T, 1): (B, H, T, 2 D)."""
    angle = proportion * (math.pi / 2)
    return torch.cat([x * angle.cos(), x * angle.sin()], -1)
