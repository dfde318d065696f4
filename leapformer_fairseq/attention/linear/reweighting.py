"""The cosine reweighting of cosFormer and LeaPformer.

Similarities are multiplied by cos(pi/2 (p - r)), where p and r in [0, 1] are the proportions of a query and a key. For
all pairs this product is computed as it is written. Since cos(a - b) = cos a cos b + sin a sin b, it also equals a dot
product of features [x cos(pi p / 2), x sin(pi p / 2)], twice as wide, which can be summed in a state (Qin et al., 2022,
arXiv:2202.08791, eq. 10-13; Agostinelli et al., 2024, arXiv:2405.13046, eq. 7-9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from ..ops import dispatch
from ..ops.precision import right_angle, without_autocast
from .base import Features


@dataclass(frozen=True)
class CosReweighted(Features):
    """Features x >= 0 (B, H, T, D), reweighted by the `proportion` of each token, broadcastable to (B, H, T, 1)."""

    proportion: Tensor = field(kw_only=True)

    @property
    def count(self) -> int:
        return 2 * self.x.shape[-1]

    def expanded(self) -> Tensor:
        if dispatch.is_traced():  # in a graph, writing into slices is slow
            return torch.cat([self.x * half for half in _cos_sin(self.proportion)], -1)
        return _CosReweight.apply(self.x, self.proportion)

    def scores(self, keys: Self) -> Tensor:
        return super().scores(keys) * angle(self.proportion - keys.proportion.mT).cos()


class _CosReweight(torch.autograd.Function):
    """Writes both halves of the features into one tensor: concatenating them would cost as much as computing them.

    Its gradients can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, proportion: Tensor) -> Tensor:
        ctx.save_for_backward(x, proportion)
        cos, sin = _cos_sin(proportion)
        out = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
        torch.mul(x, cos, out=out[..., : x.shape[-1]])
        torch.mul(x, sin, out=out[..., x.shape[-1] :])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, proportion = ctx.saved_tensors
        with without_autocast(grad.device):
            cos, sin = _cos_sin(proportion)
            grad_cos, grad_sin = grad.chunk(2, -1)
            grad_x = (grad_cos * cos).addcmul_(grad_sin, sin)
            if not ctx.needs_input_grad[1]:
                return grad_x, None
            grad_angle = ((grad_sin * cos).addcmul_(grad_cos, sin, value=-1) * x).sum(-1, keepdim=True)
            return grad_x, angle(grad_angle).sum_to_size(proportion.shape)


def _cos_sin(proportion: Tensor) -> tuple[Tensor, Tensor]:
    at = angle(proportion)
    return at.cos(), at.sin()


def angle(proportion: Tensor) -> Tensor:
    """pi / 2 times the proportion; in float32 at most pi / 2 (see `right_angle`)."""
    return proportion * right_angle(proportion.dtype)
