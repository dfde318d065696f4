"""Sparsefinder in blocks, version 1: each block of queries attends to the blocks of keys with the highest scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..options import Option
from ..registry import register
from .blocks import ATTENDED, SIZE, ProjectedBlocks, top
from .distance import squared_distances
from .fitted import DIMENSIONS, FILE, block_prefix
from .kmeans import CENTROIDS
from .pattern import COMMON

SCORE = Option(
    "sparsefinder_block_score",
    "dot",
    "sparsefinder-block1: how blocks are scored: dot products (the paper), or by centroids (released code)",
    ("dot", "released"),
)
NEAREST = 2  # centroids of a block in the released score


@register("sparsefinder-block1", *COMMON, FILE, DIMENSIONS, SIZE, ATTENDED, CENTROIDS, SCORE)
class Block1(ProjectedBlocks):
    """Entmax over the blocks of keys with the highest dot products (Treviso et al., 2022, section 6.1, version 1).

    Quadratic in the number of blocks. The released code scores by whether the two nearest centroids of both blocks
    intersect, and then by sigmoid(-z), where z is the dot product of their distances to all centroids.
    """

    centroids: Tensor

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.by_centroids = self.chosen.sparsefinder_block_score == "released"
        if self.by_centroids:
            self.register_buffer("centroids", first_centroids(self, self.chosen.sparsefinder_centroids), False)

    def parts(self) -> dict[str, str]:
        return {**super().parts(), **(centroid_part(self) if self.by_centroids else {})}

    def _choose_among(self, q: Tensor, k: Tensor, blocks: Tensor) -> Tensor:
        scores = self._by_centroids(q, k) if self.by_centroids else q @ k.mT
        return top(scores.masked_fill(~blocks[:, None, None], -torch.inf), self.attended)

    def _by_centroids(self, q: Tensor, k: Tensor) -> Tensor:
        of_q, of_k = (squared_distances(x, self.centroids.to(x.dtype).unsqueeze(0)).sqrt() for x in (q, k))
        shared = top(-of_q, NEAREST).float() @ top(-of_k, NEAREST).float().mT > 0
        z = of_q @ of_k.mT
        return shared * (z.amax(-1, keepdim=True) + 1) - z  # in the order of shared + sigmoid(-z), which rounds


def first_centroids(mechanism: ProjectedBlocks, count: int) -> Tensor:
    """Random ones, (H, c, z * r), until those that were fitted are adopted."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(mechanism.num_heads, count, mechanism.size * mechanism.dims, generator=generator)


def centroid_part(mechanism: ProjectedBlocks) -> dict[str, str]:
    """Where the fitted ones are."""
    return {"centroids": f"{block_prefix(mechanism.size)}centroids.{mechanism.chosen.sparsefinder_centroids}"}
