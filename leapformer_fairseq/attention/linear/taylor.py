"""Based: the softmax kernel, approximated by the first terms of its Taylor series."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.linear import by_head
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism

DIM = Option(
    "taylor_dim",
    16,
    "taylor: dimension d to which queries and keys are projected, for 1 + d + d (d + 1) / 2 features",
    least=1,
)


@register("taylor", NORMALIZER_FLOOR, DIM)
class Taylor(LinearMechanism):
    """Similarity 1 + z + z^2 / 2, z = (W_q q) . (W_k k) / sqrt(d): exp(z) to second order, at least 1/2.

    W_q and W_k are learned for each head. Arora et al., 2024, arXiv:2402.18668, section 4.1.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.dim: int = self.chosen.taylor_dim
        self.features = 1 + self.dim + self.dim * (self.dim + 1) // 2
        self.query_map, self.key_map = (nn.Parameter(torch.empty(num_heads, self.dim, head_dim)) for _ in range(2))
        for weight in (self.query_map, self.key_map):
            nn.init.kaiming_uniform_(weight.view(-1, head_dim), a=math.sqrt(5))

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(self._terms(by_head(x, self.query_map)))

    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(self._terms(by_head(x, self.key_map)))

    def _terms(self, x: Tensor) -> Tensor:
        """Features [1, x_i / d^(1/4), x_i^2 / sqrt(2 d), x_i x_j / sqrt(d) for i < j] of projected x."""
        first, second = torch.triu_indices(self.dim, self.dim, 1, device=x.device)
        squares = x.square() * (2 * self.dim) ** -0.5
        products = x[..., first] * x[..., second] * self.dim**-0.5
        return torch.cat([torch.ones_like(x[..., :1]), x * self.dim**-0.25, squares, products], -1)
