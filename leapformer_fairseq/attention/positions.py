"""Functions of positions: sinusoidal embeddings and rotations."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Embeddings (m, width) of positions (m,): sines of decreasing frequency, then cosines, then a 0 if width is odd.

    Vaswani et al., 2017, arXiv:1706.03762, section 3.5, in fairseq's layout.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half, device=positions.device) * (-math.log(10_000) / max(1, half - 1)))
    angles = positions.unsqueeze(1) * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, width % 2))


def rotation(positions: Tensor, dims: int, theta: float) -> Tensor:
    """Cosine and sine of the angle of each of the `dims` / 2 pairs at positions (...): (..., dims / 2, 2).

    Pair i rotates by position * theta^(-2 i / dims) (Su et al., 2021, arXiv:2104.09864, eq. 14-16). Computed every
    time, in float64: in a buffer, a model in half precision would round the frequencies.
    """
    exponents = torch.arange(0, dims, 2, dtype=torch.float64, device=positions.device) / dims
    angle = positions.unsqueeze(-1) * theta**-exponents
    return torch.stack([angle.cos(), angle.sin()], -1)


@functools.lru_cache(maxsize=8)
def rotation_at(position: int, dims: int, theta: float) -> Tensor:
    """The rotation at one position, on the CPU; cached, since every layer of a step needs the same one."""
    return rotation(torch.tensor(position), dims, theta)


def rotate(x: Tensor, by: Tensor) -> Tensor:
    """Vectors (..., D) whose leading pairs of neighbouring dimensions are rotated `by` (..., pairs, 2)."""
    (cos, sin), dims = by.unbind(-1), 2 * by.shape[-2]
    even, odd = x[..., 0:dims:2], x[..., 1:dims:2]
    rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([rotated, x[..., dims:]], -1)
