"""The cosine reweighting of cosFormer and LeaPformer, and the network that computes LeaPformer's proportions.

Similarities are multiplied by cos(pi/2 (p - r)), where p and r in [0, 1] are the proportions of a query and a key. For
all pairs this product is computed as it is written. Since cos(a - b) = cos a cos b + sin a sin b, it also equals a dot
product of features [x cos(pi p / 2), x sin(pi p / 2)], twice as wide, which can be summed in a state (Qin et al., 2022,
arXiv:2202.08791, eq. 10-13; Agostinelli et al., 2024, arXiv:2405.13046, eq. 7-9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..ops import dispatch
from ..ops.precision import right_angle, without_autocast
from .base import Features


class ProportionNetwork(nn.Module):
    """The LeaP module: one proportion in (0, 1) per token, (B, H, T, D) to (B, H, T, 1).

    Linear(D, D / factor), ReLU, Linear(D / factor, 1), sigmoid; with factor = D there is no hidden layer. All heads
    share one network unless `heads` is given. Initialised like nn.Linear. (LeaPformer, arXiv:2405.13046, section 3.3.)
    """

    def __init__(self, head_dim: int, factor: int, heads: int | None = None) -> None:
        super().__init__()
        widths = [head_dim, 1] if factor == head_dim else [head_dim, head_dim // factor, 1]
        lead = () if heads is None else (heads,)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in pairwise(widths):
            bound = n_in**-0.5
            self.weights.append(torch.empty(*lead, n_in, n_out).uniform_(-bound, bound))
            self.biases.append(torch.empty(*lead, 1, n_out).uniform_(-bound, bound))
        self.shared = heads is None

    def forward(self, x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ weight.to(x.dtype) + bias.to(x.dtype)
            x = x.relu() if i + 1 < len(self.weights) else x.sigmoid()
        return x

    @property
    def hidden(self) -> int:
        return self.weights[0].shape[-1] if len(self.weights) > 1 else 0

    def packed(self) -> Tensor:
        sides = (part._parameters.values() for part in (self.weights, self.biases))  # indexing a list is slower
        layers = [part for pair in zip(*sides, strict=True) for part in pair if part is not None]
        return torch.cat([part.reshape(1 if self.shared else len(part), -1) for part in layers], 1)

    def halves(self, x: Tensor) -> Tensor:
        """cos(pi/2 p) and sin(pi/2 p), (B, H, T, 2), for a graph: few operators on rows, one of them a cosine.

        sin(pi/2 p) = cos(pi/2 (1 - p)), and 1 - sigmoid(z) = sigmoid(-z).
        """
        batch, heads, count, _ = x.shape
        alone = dispatch.is_one(count)
        # One product for all heads; between networks of heads are zeros.
        rows = x if self.shared or alone else x.transpose(1, 2)
        rows = rows.reshape(-1, x.shape[3] if self.shared else heads * x.shape[3])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            last = i + 1 == len(self.weights)
            if last:
                weight, bias = torch.cat([weight, -weight], -1), torch.cat([bias, -bias], -1)
            weight = weight if self.shared else torch.block_diag(*weight)
            rows = torch.addmm(bias.reshape(1, -1), rows, weight)
            rows = rows.sigmoid() if last else rows.relu()
        rows = (rows * right_angle(x.dtype)).cos()
        if self.shared or alone:
            return rows.view(-1, heads, count, 2)
        return rows.view(batch, count, heads, 2).transpose(1, 2)


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
