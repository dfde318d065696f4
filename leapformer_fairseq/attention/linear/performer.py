"""Performer: the softmax kernel, estimated with random features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism

FEATURES = Option("performer_features", 128, "performer: random features of a head", least=1)
SEED = 1


@register("performer", NORMALIZER_FLOOR, FEATURES)
class Performer(LinearMechanism):
    """FAVOR+: phi_f(x) = exp(w_f . x - |x|^2 / 2) of x / D^(1/4), with random orthogonal w_f.

    The expected similarity is exp(q . k / sqrt(D)). Choromanski et al., 2021, arXiv:2009.14794, lemma 1 and section
    2.4. The w_f are drawn once, stay fixed in training, and are saved with the model.
    """

    projection: Tensor

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.features = self.chosen.performer_features
        self.register_buffer("projection", orthogonal_rows(self.features, head_dim))

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        logits = self._projected(x)
        # A factor common to a query's features cancels in the ratio: the largest becomes 1, and |x|^2 is left out.
        return Features((logits - logits.amax(-1, keepdim=True).detach()).exp())

    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features((self._projected(x) - self._scaled(x).square().sum(-1, keepdim=True) / 2).exp())

    def _projected(self, x: Tensor) -> Tensor:
        return self._scaled(x) @ self.projection.to(x.dtype).t()

    def _scaled(self, x: Tensor) -> Tensor:
        return x * self.head_dim**-0.25


def orthogonal_rows(count: int, dim: int) -> Tensor:
    """Normally distributed vectors (count, dim), the same in every call; each group of `dim` is orthogonal."""
    generator = torch.Generator().manual_seed(SEED)
    groups = []
    for _ in range(-(-count // dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
        groups.append(q * r.diagonal().sign())  # Q alone is not uniformly distributed, which biases the features
    norms = torch.randn(count, dim, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(groups)[:count] * norms
