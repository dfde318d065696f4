"""Skyformer: a Gaussian kernel in place of softmax, approximated by Nyström's method with sampled tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..ops.random import hashed
from ..options import Option
from ..registry import register
from .base import Bidirectional, real

LANDMARKS = Option("skyformer_landmarks", 128, "skyformer: queries and keys that are sampled", least=1)
RIDGE = Option(
    "skyformer_ridge",
    0.1,
    "skyformer: added to the diagonal before the inverse (0.1 as in the released code)",
    above=0,
)
SEED = 1


@register("skyformer", LANDMARKS, RIDGE)
class Skyformer(Bidirectional):
    """kappa(Q, W) (kappa(W, W) + ridge I)^-1 kappa(W, K) V, kappa(x, y) = exp(-|x - y|^2 / (2 sqrt(D))).

    W are sampled rows of [Q; K]; with all rows and no ridge the result is kappa(Q, K) V. The weights of a query do not
    sum to one. (Chen et al., 2021, arXiv:2111.00035, section 4.) The inverse is exact, while the paper iterates. The
    sample depends only on positions and stays the same during training.
    """

    capabilities = replace(Bidirectional.capabilities, normalized=False)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.landmarks, self.ridge = self.chosen.skyformer_landmarks, self.chosen.skyformer_ridge

    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        of_queries, among, of_keys = self._kernels(q, k, lengths)
        return of_queries @ torch.linalg.solve(among, of_keys)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        of_queries, among, of_keys = self._kernels(q, k, lengths)
        return of_queries @ torch.linalg.solve(among, of_keys @ v)

    def _kernels(self, q: Tensor, k: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """kappa(Q, W), kappa(W, W) + ridge I, kappa(W, K); zero for unused rows of W, and at padded keys."""
        is_real = real(lengths, k.shape[2])
        x = torch.cat([q, k], 2) * self.head_dim**-0.25
        at, used = self._sample(is_real)
        w = x.gather(2, at[:, None, :, None].expand(len(x), x.shape[1], -1, x.shape[3]))
        of_queries, of_keys = x.split(q.shape[2], 2)
        used = used[:, None, :, None].to(x.dtype)
        among = _gaussian(w, w) * used * used.mT + torch.diag_embed(1 - used.squeeze(-1) + self.ridge)
        hidden = is_real[:, None, None].to(x.dtype)
        return _gaussian(of_queries, w) * used.mT, among, _gaussian(w, of_keys) * used * hidden

    def _sample(self, is_real: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of the sampled rows of [Q; K], and True at those in use, both (B or 1, w).

        Not all are in use if a sequence has fewer real rows.
        """
        count = is_real.shape[1]
        side, position = torch.arange(2, device=is_real.device).view(-1, 1), torch.arange(count, device=is_real.device)
        drawn = hashed(SEED, side, position).flatten().masked_fill(~is_real.repeat(1, 2), 2**32)
        drawn, order = drawn.sort(dim=1, stable=True)
        return order[:, : self.landmarks], drawn[:, : self.landmarks] < 2**32


def _gaussian(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x - y|^2 / 2) of all rows x (.., N, D) and y (.., M, D), (.., N, M)."""
    return (x @ y.mT - x.square().sum(-1, keepdim=True) / 2 - y.square().sum(-1).unsqueeze(-2) / 2).exp()
