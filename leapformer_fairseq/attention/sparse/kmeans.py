"""Sparsefinder by clustering: an edge where query and key share one of their nearest centroids."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..options import Option
from ..registry import register
from .distance import squared_distances
from .fitted import DIMENSIONS, FILE, Projected
from .pattern import COMMON, COUNTS

CENTROIDS = Option("sparsefinder_centroids", 8, "sparsefinder-kmeans, -block2: centroids of a head", least=1)
NEAREST = Option("sparsefinder_nearest", 1, "sparsefinder-kmeans: centroids that a query and a key belong to")


@register("sparsefinder-kmeans", *COMMON, FILE, DIMENSIONS, CENTROIDS, NEAREST)
class KMeans(Projected):
    """Entmax over the pairs that share a bucket (Treviso et al., 2022, arXiv:2109.12188, section 4, eq. 6).

    The centroids are those of projected queries and keys together. A query, and a key, is in the buckets of its nearest
    centroids. The buckets of keys are kept beside them.
    """

    centroids: Tensor
    grids = {
        "section5": tuple(
            {"sparsefinder_centroids": c, "sparsefinder_nearest": n} for n in (1, 2) for c in COUNTS if n < c
        ),
        "c2": tuple(
            {"sparsefinder_centroids": c, "sparsefinder_nearest": n}
            for n in (1, 2)
            for c in (2, 4, 6, 8, 10, 12)
            if n < c
        ),
        "small": tuple({"sparsefinder_centroids": c} for c in (2, 4, 8)),
    }

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        count, nearest = self.chosen.sparsefinder_centroids, self.chosen.sparsefinder_nearest
        if not 1 <= nearest <= count:
            raise LeapformerError(
                f"{NEAREST.flag} {nearest} of {CENTROIDS.flag} {count}: give at least 1, and no more than there are"
            )
        start = torch.randn(num_heads, count, self.dims, generator=torch.Generator().manual_seed(count))
        self.register_buffer("centroids", start, persistent=False)

    def parts(self) -> dict[str, str]:
        return {**super().parts(), "centroids": f"centroids.{self.chosen.sparsefinder_centroids}"}

    def buckets(self, x: Tensor) -> Tensor:
        """The nearest centroids of projected queries or keys (B, H, T, r), (B, H, T, nearest)."""
        centroids = self.centroids.to(x.dtype).unsqueeze(0)
        distances = squared_distances(x, centroids)
        return distances.topk(self.chosen.sparsefinder_nearest, -1, largest=False).indices

    def _cached(self, k: Tensor) -> Tensor:
        return torch.cat([k, self.buckets(self.project_keys(k)).to(k.dtype)], -1)

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        of_queries, of_keys = self.buckets(self.project_queries(q)), k[..., self.head_dim :]
        pairs = product(of_queries.unbind(-1), of_keys.unbind(-1))
        return reduce(torch.logical_or, (a.unsqueeze(-1) == b.unsqueeze(-2) for a, b in pairs))
