"""Sparsefinder in blocks, version 2: each centroid takes its nearest blocks of queries and of keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import register
from .block1 import centroid_part, first_centroids
from .blocks import ATTENDED, SIZE, ProjectedBlocks, top
from .distance import squared_distances
from .fitted import DIMENSIONS, FILE
from .kmeans import CENTROIDS
from .pattern import COMMON


@register("sparsefinder-block2", *COMMON, FILE, DIMENSIONS, SIZE, ATTENDED, CENTROIDS)
class Block2(ProjectedBlocks):
    """Entmax over the blocks that share a centroid (Treviso et al., 2022, section 6.1, version 2).

    Each centroid takes as many blocks of queries, and of keys, as are attended to. A block of queries attends to the
    keys of the first centroid that took it; one that none took, to the first block. Not quadratic in the blocks.
    """

    centroids: Tensor

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.register_buffer("centroids", first_centroids(self, self.chosen.sparsefinder_centroids), False)

    def parts(self) -> dict[str, str]:
        return {**super().parts(), **centroid_part(self)}

    def _choose_among(self, q: Tensor, k: Tensor, blocks: Tensor) -> Tensor:
        all_queries = blocks if self.same_tokens(q, k) else blocks.new_ones(1, q.shape[2])
        queries, keys = self._taken(q, all_queries), self._taken(k, blocks)  # (B, H, c, N) and (.., M)
        first = queries.byte().argmax(2)  # (B, H, N), the lowest number of those that took it
        chosen = keys.gather(2, first.unsqueeze(-1).expand(-1, -1, -1, keys.shape[3]))
        lost = torch.zeros_like(blocks).index_fill(1, torch.zeros(1, dtype=torch.long, device=q.device), True)
        return torch.where(queries.any(2).unsqueeze(-1), chosen, lost[:, None, None])

    def _taken(self, x: Tensor, real: Tensor) -> Tensor:
        """Which centroid takes which block."""
        distances = squared_distances(self.centroids.to(x.dtype).unsqueeze(0).expand(len(x), -1, -1, -1), x)
        return top(-distances.masked_fill(~real[:, None, None], torch.inf), self.attended)
