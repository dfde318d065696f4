"""Sparsefinder: an edge where projected query and key are close, or share a cluster or a bin."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..options import Option
from ..registry import register
from .fitted import DIMENSIONS, FILE, Projected
from .pattern import COMMON, real_keys

THRESHOLD = Option("sparsefinder_threshold", 1.0, "sparsefinder-distance: the largest distance of an edge")
DISTANCE = Option(
    "sparsefinder_distance",
    "euclidean",
    "sparsefinder-distance: what is compared with the threshold; the released code squares the distance",
    ("euclidean", "squared"),
)


@register("sparsefinder-distance", *COMMON, FILE, DIMENSIONS, THRESHOLD, DISTANCE)
class Distance(Projected):
    """Entmax over the pairs with |q' - k'| <= t (Treviso et al., 2022, arXiv:2109.12188, section 4)."""

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        limit = self.chosen.sparsefinder_threshold
        return squared_distances(self.project_queries(q), self._cached_projections(k)) <= (
            limit if self.chosen.sparsefinder_distance == "squared" else limit**2
        )


def squared_distances(q: Tensor, k: Tensor) -> Tensor:
    """|q - k|^2, (B, H, T, S), of q (B, H, T, r) and k (B, H, S, r).

    Differences are squared, because |q|^2 - 2 q k + |k|^2 suffers from cancellation.
    """
    parts = ((a.unsqueeze(-1) - b.unsqueeze(-2)) ** 2 for a, b in zip(q.unbind(-1), k.unbind(-1), strict=True))
    return reduce(torch.add, parts)


CENTROIDS = Option("sparsefinder_centroids", 8, "sparsefinder-kmeans, -block2: centroids of a head", least=1)
NEAREST = Option("sparsefinder_nearest", 1, "sparsefinder-kmeans: centroids that a query and a key belong to")


@register("sparsefinder-kmeans", *COMMON, FILE, DIMENSIONS, CENTROIDS, NEAREST)
class KMeans(Projected):
    """Entmax over the pairs that share a bucket (Treviso et al., 2022, arXiv:2109.12188, section 4, eq. 6).

    Centroids are fitted to projected queries and keys together. A query or a key is in the buckets of its nearest
    centroids. The cache stores each key's buckets with it.
    """

    centroids: Tensor

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
        """The indices (B, H, T, nearest) of the centroids nearest to projected queries or keys (B, H, T, r)."""
        centroids = self.centroids.to(x.dtype).unsqueeze(0)
        distances = squared_distances(x, centroids)
        return distances.topk(self.chosen.sparsefinder_nearest, -1, largest=False).indices

    def _cached(self, k: Tensor) -> Tensor:
        return torch.cat([k, self.buckets(self.project_keys(k)).to(k.dtype)], -1)

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        of_queries, of_keys = self.buckets(self.project_queries(q)), k[..., self.head_dim :]
        pairs = product(of_queries.unbind(-1), of_keys.unbind(-1))
        return reduce(torch.logical_or, (a.unsqueeze(-1) == b.unsqueeze(-2) for a, b in pairs))


BINS = Option("sparsefinder_bins", 4, "sparsefinder-quantize: bins of each projected dimension", least=1)
TOKENS = Option(
    "sparsefinder_bin_tokens",
    0,
    "sparsefinder-quantize: tokens of a bin instead, as the released code counts; 0: --sparsefinder-bins of equal size",
    least=0,
)
BINNING = Option(
    "sparsefinder_binning",
    "fixed",
    "sparsefinder-quantize: bins of equal numbers of tokens (fixed), or of equal width after tanh (dynamic)",
    ("fixed", "dynamic"),
)


@register("sparsefinder-quantize", *COMMON, FILE, DIMENSIONS, BINS, TOKENS, BINNING)
class Quantize(Projected):
    """Entmax over the pairs that share a bin in at least one dimension (Treviso et al., 2022, section 4).

    fixed:   queries and keys are ranked separately in each dimension, and a bin holds ceil(n / bins) consecutive ranks.
             Later tokens change the ranks.
    dynamic: bins divide the range [-1, 1] of tanh(x) into equal widths.
    """

    capabilities = replace(Projected.capabilities, incremental=False, prefixes=False)

    def depends_on_later_tokens(self) -> bool:
        return self.ranked

    @property
    def ranked(self) -> bool:
        """Whether bins hold ranks, instead of values."""
        return bool(self.chosen.sparsefinder_binning == "fixed")

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        q, k = self.project_queries(q), self._cached_projections(k)
        if self.ranked:
            real = real_keys(seen).mT  # (B or 1, 1, S, 1)
            same_tokens = self.same_tokens(q, k)
            bins = (self._by_rank(q, real if same_tokens else None), self._by_rank(k, real))
        else:
            bins = (self._by_value(q), self._by_value(k))
        parts = (a.unsqueeze(-1) == b.unsqueeze(-2) for a, b in zip(*(x.unbind(-1) for x in bins), strict=True))
        return reduce(torch.logical_or, parts)

    def _by_rank(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Bins (B, H, T, r) by rank among the real tokens in each dimension; padding ranks last. None: all are real."""
        count = torch.full((1, 1, 1, 1), x.shape[2], device=x.device)
        if real is not None:
            count = real.sum(2, keepdim=True)
            x = x.masked_fill(~real, torch.inf)
        ranks = x.argsort(dim=2, stable=True).argsort(dim=2)
        tokens = self.chosen.sparsefinder_bin_tokens
        size = -(-count // self.chosen.sparsefinder_bins) if tokens == 0 else torch.full_like(count, tokens)
        return ranks // size.clamp_min(1)

    def _by_value(self, x: Tensor) -> Tensor:
        bins = self.chosen.sparsefinder_bins
        return ((x.tanh() + 1) / 2 * bins).floor().clamp(0, bins - 1)
