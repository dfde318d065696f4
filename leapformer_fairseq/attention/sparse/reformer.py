"""Baseline in the manner of Reformer: an edge where query and key have the same hash."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..options import Option
from ..registry import register
from .fitted import DIMENSIONS, FILE, Projected
from .pattern import COMMON, COUNTS, SEED

BUCKETS = Option("reformer_buckets", 8, "entmax-reformer: buckets of a head, an even number")


@register("entmax-reformer", *COMMON, FILE, DIMENSIONS, SEED, BUCKETS)
class Reformer(Projected):
    """Entmax over the pairs in the same bucket of one round of hashing (Kitaev et al., 2020, arXiv:2001.04451).

    The hash of x is argmax [x R; -x R] with a random R (their section 2), of queries and keys in the few dimensions of
    Sparsefinder's projections, as in its released code.
    """

    rotation: Tensor
    grids = {
        "section5": tuple({"reformer_buckets": b} for b in COUNTS),
        "c2": tuple({"reformer_buckets": b} for b in (2, 4, 6, 8, 10, 12)),
        "released": tuple({"reformer_buckets": b} for b in (2, 4, 6, 8, 10, 14, 18, 22, 26, 30)),
        "small": tuple({"reformer_buckets": b} for b in (2, 4, 8)),
    }

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        buckets = self.chosen.reformer_buckets
        if buckets < 2 or buckets % 2:
            raise LeapformerError(f"{BUCKETS.flag} {buckets}: give an even number from 2")
        generator = torch.Generator().manual_seed(self.chosen.sparse_seed)
        rotation = torch.randn(num_heads, self.dims, buckets // 2, generator=generator)
        self.register_buffer("rotation", rotation, persistent=False)

    def buckets(self, x: Tensor) -> Tensor:
        """The hash of projected queries or keys (B, H, T, r), (B, H, T)."""
        turned = x @ self.rotation.to(x.dtype)
        return torch.cat([turned, -turned], -1).argmax(-1)

    def _cached(self, k: Tensor) -> Tensor:
        return torch.cat([k, self.buckets(self.project_keys(k)).unsqueeze(-1).to(k.dtype)], -1)

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        return self.buckets(self.project_queries(q)).unsqueeze(-1) == k[..., self.head_dim].unsqueeze(-2)
