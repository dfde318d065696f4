"""The layout of tokens in onnxruntime's operators of attention, whose heads are side by side."""

from __future__ import annotations

from torch import Tensor

from . import dispatch


def packed(x: Tensor) -> Tensor:
    """Tokens (B, H, T, D) as (B, T, H D)."""
    if dispatch.is_one(x.shape[2]):  # fewer changes of layout
        return x.reshape(-1, 1, x.shape[1] * x.shape[3])
    return x.transpose(1, 2).flatten(2)


def unpacked(x: Tensor, heads: int, count: int, width: int) -> Tensor:
    """`count` tokens (B, T, H D) of this `width` D as (B, H, T, D)."""
    if dispatch.is_one(count):
        return x.reshape(-1, heads, 1, width)
    return x.unflatten(2, (heads, -1)).transpose(1, 2)
