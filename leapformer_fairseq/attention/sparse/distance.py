"""Sparsefinder by distances: an edge where query and key are near each other after projection."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from ..options import Option
from ..registry import register
from .fitted import DIMENSIONS, FILE, Projected
from .pattern import COMMON

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

    grids = {
        "section5": tuple({"sparsefinder_threshold": t / 2} for t in range(1, 11)),
        "c2": tuple({"sparsefinder_threshold": t / 2} for t in range(1, 6)),
        "small": tuple({"sparsefinder_threshold": t} for t in (0.5, 1.0, 2.0)),
        "fine": tuple({"sparsefinder_threshold": t / 4} for t in range(1, 21)),
    }

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        limit = self.chosen.sparsefinder_threshold
        return squared_distances(self.project_queries(q), self._kept_projections(k)) <= (
            limit if self.chosen.sparsefinder_distance == "squared" else limit**2
        )


def squared_distances(q: Tensor, k: Tensor) -> Tensor:
    """(B, H, T, S) of (B, H, T, r) and (B, H, S, r), without the cancellation of |q|^2 - 2 q k + |k|^2."""
    parts = ((a.unsqueeze(-1) - b.unsqueeze(-2)) ** 2 for a, b in zip(q.unbind(-1), k.unbind(-1), strict=True))
    return reduce(torch.add, parts)
