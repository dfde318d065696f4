"""Vectors brought to one length, with fewer passes over them than autograd's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .precision import without_autocast


def unit(x: Tensor, share: float, least: float | Tensor) -> Tensor:
    """x / sqrt(share |x|^2 + least) of vectors (.., D): of length one with a share of 1, of unit RMS with 1 / D.

    `least` is a number, or one for each vector, (.., 1).
    """
    return _Unit.apply(x, share, least)


def _factor(x: Tensor, share: float, least: float | Tensor) -> Tensor:
    return (share * torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() + least).rsqrt()


class _Unit(torch.autograd.Function):
    """`unit`. Its gradient can itself be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, share: float, least: float | Tensor) -> Tensor:
        return x * _factor(x, share, least)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float | Tensor], output: Tensor) -> None:
        x, ctx.share, least = inputs
        ctx.least = None if isinstance(least, Tensor) else least
        ctx.save_for_backward(x, *([least] if isinstance(least, Tensor) else []))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None]:
        x, *given = ctx.saved_tensors
        with without_autocast(grad.device):
            factor = _factor(x, ctx.share, given[0] if given else ctx.least)
            along = (x * grad).sum(-1, keepdim=True)
            to_x = torch.addcmul(grad, x, -ctx.share * factor.square() * along) * factor
            return to_x, None, -0.5 * factor.pow(3) * along if given else None
