"""Baseline in the manner of the Routing Transformer: each centroid takes its nearest queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.precision import accumulated
from ..options import Option
from ..registry import register
from .fitted import FILE, Fitted
from .pattern import COMMON, COUNTS, real_keys

CENTROIDS = Option("routing_centroids", 4, "entmax-routing: centroids of a head", least=1)


@register("entmax-routing", *COMMON, FILE, CENTROIDS)
class Routing(Fitted):
    """Entmax over the pairs that a centroid took both of (Roy et al., 2021, arXiv:2003.05997).

    Each of c centroids takes the ceil(n / c) queries, and keys, that are nearest by cosine (Treviso et al., 2022,
    appendix C.2), so who is taken changes with later tokens.
    """

    centroids: Tensor
    capabilities = replace(Fitted.capabilities, incremental=False, prefixes=False)
    grids = {
        "section5": tuple({"routing_centroids": c} for c in COUNTS),
        "c2": tuple({"routing_centroids": c} for c in (2, 4, 6, 8, 10)),
        "released": tuple({"routing_centroids": c} for c in (2, 4, 6, 8, 10, 12)),
        "small": tuple({"routing_centroids": c} for c in (2, 4, 8)),
    }

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        count = self.chosen.routing_centroids
        start = torch.randn(num_heads, count, head_dim, generator=torch.Generator().manual_seed(count))
        self.register_buffer("centroids", F.normalize(start, dim=-1), persistent=False)

    def parts(self) -> dict[str, str]:
        return {"centroids": f"routing.{self.chosen.routing_centroids}"}

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        real = real_keys(seen).mT  # (B or 1, 1, S, 1)
        queries = self._taken(q, real if self.same_tokens(q, k) else None)
        return (queries.float() @ self._taken(k, real).float().mT) > 0

    def _taken(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Which centroid took whom, (B, H, T, c)."""
        nearness = F.normalize(accumulated(x), dim=-1) @ self.centroids.to(accumulated(x).dtype).mT
        count = torch.full((1, 1, 1, 1), x.shape[2], device=x.device)
        if real is not None:
            count, nearness = real.sum(2, keepdim=True), nearness.masked_fill(~real, -torch.inf)
        ranks = nearness.argsort(dim=2, descending=True, stable=True).argsort(dim=2)
        return ranks < -(-count // self.chosen.routing_centroids)
