"""The baselines in Sparsefinder's paper: windows, global and random tokens, hashing, nearest centroids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import ENCODER_SELF, Capabilities
from ..ops.precision import accumulated
from ..ops.random import hashed
from ..options import Option
from ..registry import register
from .blocks import ATTENDED, SIZE, Blocked, top
from .fitted import DIMENSIONS, FILE, Fitted, Projected
from .pattern import COMMON, SEED, SELF_ONLY, Pattern, at_ends, near, positions, real_keys


@register("entmax-window", *COMMON)
class Window(Pattern):
    """Entmax over the pairs of `--sparse-window` and `--sparse-global` only (Treviso et al., 2022, section 5)."""

    capabilities = Capabilities(constant_state=False, append=False, prefixes=False, unsupported=SELF_ONLY)

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        return torch.zeros_like(seen)


GLOBALS = Option("longformer_globals", 4, "entmax-longformer: random global tokens of a head", least=0)


@register("entmax-longformer", *COMMON, SEED, GLOBALS)
class Longformer(Pattern):
    """Entmax over a window and the rows and columns of random global tokens (Beltagy et al., 2020, arXiv:2004.05150).

    Global tokens are random, as in Treviso et al., 2022, section 5, and different in each head. Every token has a
    random number, and the lowest are global, so a later token may displace an earlier one.
    """

    capabilities = Capabilities(
        constant_state=False, append=False, incremental=False, prefixes=False, unsupported=SELF_ONLY
    )

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        query, key = positions(seen)
        head = torch.arange(self.num_heads, device=q.device)[:, None, None]
        drawn = hashed(self.chosen.sparse_seed, head, key).masked_fill(~real_keys(seen), 2**32)
        count = min(self.chosen.longformer_globals, drawn.shape[-1])
        last = drawn.kthvalue(count, -1, keepdim=True).values if count > 0 else drawn.new_full((), -1)
        return (drawn <= last) | (hashed(self.chosen.sparse_seed, head, query) <= last)


RANDOM = Option("bigbird_random", 4, "entmax-bigbird: random keys of a query", least=0)
BIGBIRD_WINDOW = 3  # always there, even if --sparse-window is smaller


@register("entmax-bigbird", *COMMON, SEED, RANDOM)
class BigBird(Pattern):
    """Entmax over a window of at least 3, the first and the last token, and random keys (Zaheer et al., 2020).

    (arXiv:2007.14062, with blocks of one token as in Treviso et al., 2022, section 5.) In a decoder the last token is
    not global, because every new token becomes the last; and a query's random keys precede it, so that they remain
    the same however long the text becomes.
    """

    capabilities = Capabilities(constant_state=False, append=False, prefixes=False, unsupported=SELF_ONLY)

    def depends_on_later_tokens(self) -> bool:
        return self.block == ENCODER_SELF

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        query, key = positions(seen)
        head = torch.arange(self.num_heads, device=q.device)[:, None, None]
        drawn = hashed(self.chosen.sparse_seed, head, query, key).masked_fill(~seen, 2**32)
        count = min(self.chosen.bigbird_random, drawn.shape[-1])
        edges = near(seen, BIGBIRD_WINDOW) | at_ends(seen, last=self.block == ENCODER_SELF)
        return edges if count == 0 else edges | (drawn <= drawn.kthvalue(count, -1, keepdim=True).values)


@register("entmax-bigbird-blocks", *COMMON, SEED, SIZE, ATTENDED)
class BigBirdBlocks(Blocked):
    """Entmax over random blocks, a window and the first and last block (Zaheer et al., 2020, arXiv:2007.14062).

    The baseline of Treviso et al., 2022, section 6.1. Random blocks differ between heads.
    """

    def _choose(self, q: Tensor, k: Tensor, real: Tensor, blocks: Tensor) -> Tensor:
        sizes = self.num_heads, -(-q.shape[2] // self.size), -(-k.shape[2] // self.size)
        head, row, column = (torch.arange(size, device=q.device) for size in sizes)
        drawn = hashed(self.chosen.sparse_seed, head[:, None, None], row[:, None], column)
        return top(-drawn.double().masked_fill(~blocks[:, None, None], torch.inf), self.attended)


BUCKETS = Option("reformer_buckets", 8, "entmax-reformer: buckets of a head, an even number")


@register("entmax-reformer", *COMMON, FILE, DIMENSIONS, SEED, BUCKETS)
class Reformer(Projected):
    """Entmax over the pairs in the same bucket of one round of hashing (Kitaev et al., 2020, arXiv:2001.04451).

    The hash of x is argmax [x R; -x R] with a random R (their section 2). As in Sparsefinder's released code, x are
    queries and keys after Sparsefinder's projection to few dimensions.
    """

    rotation: Tensor

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        buckets = self.chosen.reformer_buckets
        if buckets < 2 or buckets % 2:
            raise LeapformerError(f"{BUCKETS.flag} {buckets}: give an even number from 2")
        generator = torch.Generator().manual_seed(self.chosen.sparse_seed)
        rotation = torch.randn(num_heads, self.dims, buckets // 2, generator=generator)
        self.register_buffer("rotation", rotation, persistent=False)

    def buckets(self, x: Tensor) -> Tensor:
        """The hashes (B, H, T) of projected queries or keys (B, H, T, r)."""
        turned = x @ self.rotation.to(x.dtype)
        return torch.cat([turned, -turned], -1).argmax(-1)

    def _cached(self, k: Tensor) -> Tensor:
        return torch.cat([k, self.buckets(self.project_keys(k)).unsqueeze(-1).to(k.dtype)], -1)

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        return self.buckets(self.project_queries(q)).unsqueeze(-1) == k[..., self.head_dim].unsqueeze(-2)


CENTROIDS = Option("routing_centroids", 4, "entmax-routing: centroids of a head", least=1)


@register("entmax-routing", *COMMON, FILE, CENTROIDS)
class Routing(Fitted):
    """Entmax over the pairs of which a centroid takes both (Roy et al., 2021, arXiv:2003.05997).

    Each of c centroids takes the ceil(n / c) queries and the ceil(n / c) keys that are nearest to it by cosine
    (Treviso et al., 2022, appendix C.2). Later tokens therefore change which ones it takes.
    """

    centroids: Tensor
    capabilities = replace(Fitted.capabilities, incremental=False, prefixes=False)

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
        """Which queries or keys x (B, H, T, D) each centroid takes, (B, H, T, c); padding, not `real`, comes last."""
        nearness = F.normalize(accumulated(x), dim=-1) @ self.centroids.to(accumulated(x).dtype).mT
        count = torch.full((1, 1, 1, 1), x.shape[2], device=x.device)
        if real is not None:
            count, nearness = real.sum(2, keepdim=True), nearness.masked_fill(~real, -torch.inf)
        ranks = nearness.argsort(dim=2, descending=True, stable=True).argsort(dim=2)
        return ranks < -(-count // self.chosen.routing_centroids)
