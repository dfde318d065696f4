"""The proportion network of LeaPformer, and the angle that a proportion stands for."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn


def right_angle(dtype: torch.dtype) -> float:
    """pi / 2, the angle of a proportion of 1, rounded down in float32.

    Rounded to the nearest it is a little more than pi / 2 and its cosine negative: between proportions of 1 and 0, and
    trained networks do go there, the similarities would be negative, too, and their sum no normalizer.
    """
    return math.pi / 2 if dtype == torch.float64 else 1.5707962512969971


FEW = 16_384  # numbers of a decoding step, for which transposing is not worth while


class ProportionNetwork(nn.Module):
    """The LeaP module: one proportion in (0, 1) per token, (B, H, T, D) to (B, H, T, 1).

    Linear(D, D / factor), ReLU, Linear(D / factor, 1), sigmoid; with factor = D there is no hidden layer. The heads
    share it unless `heads` is given. Initialised as nn.Linear. (LeaPformer, arXiv:2405.13046, section 3.3.)
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
        last = len(self.weights) - 1
        if self.shared and x.numel() < FEW:
            tokens = x.reshape(-1, x.shape[-1])
            for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                tokens = torch.addmm(bias.to(x.dtype), tokens, weight.to(x.dtype))
                tokens = tokens.relu() if i < last else tokens.sigmoid()
            return tokens.view(*x.shape[:3], 1)
        # Tokens become columns: with so few outputs a matrix product is more than twice as fast this way round, and
        # with a contiguous weight so is that of its gradient.
        columns = x.flatten(0, 2).t() if self.shared else x.mT
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            columns = (weight.to(x.dtype).mT.contiguous() @ columns).add_(bias.to(x.dtype).mT)
            if i < last:
                columns = columns.relu_()
        return columns.sigmoid().view(*x.shape[:3], 1)
