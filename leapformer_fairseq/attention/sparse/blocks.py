"""Sparsefinder with edges between blocks of tokens, so that only the scores of chosen blocks are computed.

Shapes: B batch, H heads, T tokens, D head dimension, r projected dimensions, z tokens of a block, N blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..capabilities import DECODER_CROSS, DECODER_SELF, Capabilities
from ..mechanism import Inputs
from ..ops.blocks import attend_chosen, chosen_blocks, in_blocks, in_order, of_tokens, real_first
from ..ops.precision import accumulated, without_autocast
from ..options import Option
from ..registry import register
from .fitted import DIMENSIONS, FILE, MISSING, Projected, block_prefix
from .pattern import COMMON, Pattern, real_keys
from .predicted import CENTROIDS, squared_distances

SIZE = Option("sparsefinder_block_size", 16, "sparsefinder-block1, -block2: tokens of a block", least=1)
ATTENDED = Option("sparsefinder_blocks", 4, "sparsefinder-block1, -block2: blocks that are chosen for a block", least=1)
WHOLE = "blocks are chosen among those of the whole text; take a pattern of tokens, as sparsefinder-distance"
WINDOW = 3  # blocks


class Blocked(Pattern):
    """A pattern over blocks of z tokens; a subclass implements `_choose`.

    In addition to the chosen blocks, a block sees its neighbours, the first and the last block, and the first and the
    last block see all (Treviso et al., 2022, section 6.1, after BigBird). A block that is chosen twice counts once.
    """

    capabilities = Capabilities(
        constant_state=False,
        append=False,
        incremental=False,
        prefixes=False,
        unsupported={DECODER_SELF: WHOLE, DECODER_CROSS: WHOLE},
    )

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size, self.attended = self.chosen.sparsefinder_block_size, self.chosen.sparsefinder_blocks

    def _choose(self, q: Tensor, k: Tensor, real: Tensor, blocks: Tensor) -> Tensor:
        """The chosen blocks, (B, H, N, M), given the arguments of `select`; `blocks`, (B or 1, M), have real keys."""
        raise NotImplementedError

    @torch.no_grad()
    def select(self, q: Tensor, k: Tensor, real: Tensor, around: bool = True) -> Tensor:
        """The graph of blocks, (B, H, N, M), for queries (B, H, T, D) and keys (B, H, S, D).

        `real`, (B or 1, S), marks the keys that are not padding; padding must come last, in self-attention (T = S) also
        among the queries. Without `around`, the graph lacks neighbours and ends: it has the chosen blocks only.
        """
        of_keys = self._in_blocks(real).any(-1)
        of_queries = self._in_blocks(_real_queries(q, real)).any(-1)
        chosen = self._choose(q, k, real, of_keys)
        if not around:
            return chosen & of_keys[:, None, None, :]
        query, key = (torch.arange(x.shape[1], device=q.device) for x in (of_queries, of_keys))
        near = (query.unsqueeze(1) - key).abs() <= WINDOW // 2
        whole = _ends(query, of_queries)[:, None, :, None] | _ends(key, of_keys)[:, None, None, :]
        return (chosen | near | whole) & of_keys[:, None, None, :]

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        real = real_keys(seen)[:, 0, 0]
        order = real_first(real)
        at = (real.long().cumsum(1) - 1).clamp_min(0) // self.size
        itself = self.same_tokens(q, k)
        graph = self.select(in_order(q, order) if itself else q, in_order(k, order), real.gather(1, order))
        rows = at if itself else torch.arange(q.shape[2], device=q.device).unsqueeze(0) // self.size
        return of_tokens(graph, rows, at)

    def _in_segments(self, x: Inputs) -> Tensor:
        cut_across = self.chosen.sparse_window or self.chosen.sparse_global != "none"
        if x.mask is not None or cut_across:
            return super()._in_segments(x)
        with without_autocast(x.q.device):
            keep, itself = x.key.keep, self.same_tokens(x.q, x.k)
            if keep is None:
                real = torch.ones(1, x.k.shape[2], dtype=torch.bool, device=x.k.device)
                return self.attend(x.q, x.k, x.v, self.select(x.q, x.k, real), real)
            order = real_first(keep)
            k, v, real = in_order(x.k, order), in_order(x.v, order), keep.gather(1, order)
            q = in_order(x.q, order) if itself else x.q
            out = self.attend(q, k, v, self.select(q, k, real), real)
            return in_order(out, order.argsort(dim=1)) if itself else out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, graph: Tensor, real: Tensor, ends: bool = True) -> Tensor:
        """Output (B, H, T, E) over a graph of blocks; with `ends`, the first and the last real block see all keys.

        Any other block sees at most `--sparsefinder-blocks` blocks, and with `ends` those of the window and the ends.
        """
        count, tokens = graph.shape[3], q.shape[2]
        most = min(count, self.attended + (WINDOW + 2 if ends else 0))
        chosen, used = chosen_blocks(graph, most)
        queries, keys, values = (in_blocks(x, self.size) for x in (q, k, v))
        out = attend_chosen(queries, keys, values, self._in_blocks(real), chosen, used, self._weigh)
        if ends and most < count:
            out = self._with_ends(out, queries, k, v, real, _real_queries(q, real))
        return out.flatten(2, 3)[:, :, :tokens].to(v.dtype)

    def _with_ends(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor, real_queries: Tensor) -> Tensor:
        """`out`, (B, H, N, z, E), after replacing the first and the last real block of queries, which see all keys."""
        last = (real_queries.sum(1, keepdim=True) - 1).clamp_min(0) // self.size
        which = torch.cat([torch.zeros_like(last), last], 1).expand(len(q), -1)
        # The last block is not added a second time if it is also the first.
        once = torch.cat([torch.ones_like(last), (last > 0).long()], 1)[:, None, :, None, None]
        at = which[:, None, :, None, None]
        rows = q.gather(2, at.expand(-1, q.shape[1], -1, *q.shape[3:]))
        weights = self._of_scores(self._scores(accumulated(rows.flatten(2, 3)), accumulated(k)), real[:, None, None])
        whole = (F.dropout(weights, self.dropping()) @ accumulated(v)).view(*rows.shape[:4], -1) * once
        at = at.expand_as(whole)
        return out.scatter(2, at, 0.0).scatter_add(2, at, whole.to(out.dtype))

    def _weigh(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        scores = self._scores(accumulated(q), accumulated(k))
        visible = visible.expand(scores.shape)
        weights = self._of_scores(scores.flatten(2, 3), visible.flatten(2, 3))
        return F.dropout(weights, self.dropping()).view_as(scores)

    def _in_blocks(self, real: Tensor) -> Tensor:
        """(B or 1, T) as (B or 1, N, z), filled up with False."""
        return F.pad(real, (0, -real.shape[1] % self.size)).unflatten(1, (-1, self.size))


class ProjectedBlocks(Blocked, Projected):
    """Blocks are chosen by their representations: the concatenated projections of their tokens."""

    capabilities = replace(Blocked.capabilities, missing=MISSING)

    def parts(self) -> dict[str, str]:
        return {buffer: block_prefix(self.size) + name for buffer, name in super().parts().items()}

    def _cached(self, k: Tensor) -> Tensor:
        return k  # blocks never decode from a cache

    def _choose(self, q: Tensor, k: Tensor, real: Tensor, blocks: Tensor) -> Tensor:
        self.check_fitted()
        queries, keys = self.project_queries(q), self.project_keys(k).where(real[:, None, :, None], 0)
        if self.same_tokens(q, k):
            queries = queries.where(real[:, None, :, None], 0)
        of_queries, of_keys = (in_blocks(x, self.size).flatten(3) for x in (queries, keys))
        return self._choose_among(of_queries, of_keys, blocks)

    def _choose_among(self, q: Tensor, k: Tensor, blocks: Tensor) -> Tensor:
        """The chosen blocks, (B, H, N, M), given representations q (B, H, N, z * r) and k (B, H, M, z * r).

        `blocks`, (B or 1, M), have real keys.
        """
        raise NotImplementedError


def top(nearness: Tensor, count: int) -> Tensor:
    """True at the `count` highest values along the last dimension."""
    places = nearness.topk(min(count, nearness.shape[-1]), -1).indices
    return torch.zeros_like(nearness, dtype=torch.bool).scatter(-1, places, True)


def _real_queries(q: Tensor, real: Tensor) -> Tensor:
    """Which queries are real, (B or 1, T): in self-attention the same as the keys, in cross-attention all."""
    return real if q.shape[2] == real.shape[1] else real.new_ones(1, q.shape[2])


def _ends(at: Tensor, real: Tensor) -> Tensor:
    """True at the first and the last real block, (B or 1, N)."""
    return (at == 0) | (at == real.sum(1, keepdim=True) - 1)


SCORE = Option(
    "sparsefinder_block_score",
    "dot",
    "sparsefinder-block1: how blocks are scored: dot products (the paper), or by centroids (released code)",
    ("dot", "released"),
)
NEAREST = 2  # centroids per block in the released score


@register("sparsefinder-block1", *COMMON, FILE, DIMENSIONS, SIZE, ATTENDED, CENTROIDS, SCORE)
class Block1(ProjectedBlocks):
    """Entmax over the blocks of keys with the highest dot products (Treviso et al., 2022, section 6.1, version 1).

    Quadratic in the number of blocks. The released code prefers blocks that share one of their two nearest centroids,
    then those with the higher sigmoid(-z), where z is the dot product of two blocks' distances to all centroids.
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
        return shared * (z.amax(-1, keepdim=True) + 1) - z  # the order of shared + sigmoid(-z), but not its rounding


def first_centroids(mechanism: ProjectedBlocks, count: int) -> Tensor:
    """Random centroids, (H, c, z * r), until fitted ones are adopted."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(mechanism.num_heads, count, mechanism.size * mechanism.dims, generator=generator)


def centroid_part(mechanism: ProjectedBlocks) -> dict[str, str]:
    """The name of the fitted centroids in an entry (see `Fitted.parts`)."""
    return {"centroids": f"{block_prefix(mechanism.size)}centroids.{mechanism.chosen.sparsefinder_centroids}"}


@register("sparsefinder-block2", *COMMON, FILE, DIMENSIONS, SIZE, ATTENDED, CENTROIDS)
class Block2(ProjectedBlocks):
    """Entmax over the blocks that share a centroid (Treviso et al., 2022, section 6.1, version 2).

    Each centroid takes its nearest `--sparsefinder-blocks` blocks of queries and as many of keys. A block of queries
    sees the blocks of keys of the first centroid that takes it, or the first block if none does. Not quadratic in the
    number of blocks.
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
        first = queries.byte().argmax(2)  # (B, H, N), the lowest index of a centroid that took the block
        chosen = keys.gather(2, first.unsqueeze(-1).expand(-1, -1, -1, keys.shape[3]))
        lost = torch.zeros_like(blocks).index_fill(1, torch.zeros(1, dtype=torch.long, device=q.device), True)
        return torch.where(queries.any(2).unsqueeze(-1), chosen, lost[:, None, None])

    def _taken(self, x: Tensor, real: Tensor) -> Tensor:
        """Which blocks x (B, H, N, z * r) each centroid takes, (B, H, c, N)."""
        distances = squared_distances(self.centroids.to(x.dtype).unsqueeze(0).expand(len(x), -1, -1, -1), x)
        return top(-distances.masked_fill(~real[:, None, None], torch.inf), self.attended)
