"""Rotary positions: pairs of neighbouring dimensions are rotated by angles that grow with the position.

The dot product of two rotated rows depends on the distance of their positions only (Su et al., 2021, arXiv:2104.09864,
eq. 14-16).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def rotation(positions: Tensor, dims: int, theta: float) -> Tensor:
    """Cosine and sine of the angle of each of the `dims` / 2 pairs at positions (...), (..., dims / 2, 2).

    In float64, and anew each time: kept as a buffer, a model in half precision would round the frequencies.
    """
    exponents = torch.arange(0, dims, 2, dtype=torch.float64, device=positions.device) / dims
    angle = positions.unsqueeze(-1) * theta**-exponents
    return torch.stack([angle.cos(), angle.sin()], -1)


@functools.lru_cache(maxsize=8)
def rotation_at(position: int, dims: int, theta: float) -> Tensor:
    """The rotation at one position; remembered, since all layers ask for the same one after the other."""
    return rotation(torch.tensor(position), dims, theta)


def rotate(x: Tensor, by: Tensor) -> Tensor:
    """Rows (..., D) with their leading pairs rotated `by` (..., pairs, 2); the dimensions after them stay."""
    (cos, sin), dims = by.unbind(-1), 2 * by.shape[-2]
    even, odd = x[..., 0:dims:2], x[..., 1:dims:2]
    rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([rotated, x[..., dims:]], -1)
