"""Sparse Sinkhorn attention: a block sees itself, and the block that a learned soft sorting puts in its place."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.blocks import in_blocks
from ..options import Option
from ..registry import register
from .base import Bidirectional, real

SIZE = Option("sinkhorn_block_size", 50, "sinkhorn: tokens of a block", least=1)
LENGTH = Option(
    "sinkhorn_max_length", 1024, "sinkhorn: longest sequence, which its sorting network has weights for", least=1
)
ITERATIONS, TEMPERATURE = 8, 0.75


@register("sinkhorn", SIZE, LENGTH)
class Sinkhorn(Bidirectional):
    """Softmax over a block of K and the same block of R K, where the doubly stochastic R softly sorts the blocks.

    The logits of R are a linear map, for each head, of the mean key of each block; Sinkhorn's iterations normalise
    them. Tay et al., 2020, arXiv:2002.11296, section 3; without noise.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size, self.longest = self.chosen.sinkhorn_block_size, self.chosen.sinkhorn_max_length
        self.sorting = nn.Parameter(torch.empty(num_heads, head_dim, -(-self.longest // self.size)))
        nn.init.normal_(self.sorting, std=head_dim**-0.5)

    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        weights, sorting, kept = self._parts(q, k, lengths, dropout)
        unsorted_weights, sorted_weights = weights.split(self.size, -1)  # (B, H, N, z, z)
        itself = torch.eye(weights.shape[2], device=q.device, dtype=q.dtype)
        shares = (sorting.unsqueeze(-1) * kept.unsqueeze(2)) / _total(sorting, kept).unsqueeze(-2)  # (B, H, N, N, z)
        blocks = unsorted_weights.unsqueeze(-2) * itself[:, None, :, None]
        blocks = blocks + sorted_weights.unsqueeze(-2) * shares.unsqueeze(-3)
        return blocks.flatten(-2).flatten(2, 3)[:, :, : q.shape[2], : q.shape[2]]

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        weights, sorting, kept = self._parts(q, k, lengths, self.dropping())
        values = in_blocks(v, self.size)
        out = weights @ torch.cat([values, _mixed(sorting, values, kept)], -2)
        return out.flatten(2, 3)[:, :, : q.shape[2]]

    def _parts(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of a block and of its sorted block (B, H, N, z, 2 z); R (B, H, N, N); 1 at real tokens (.., N, z)."""
        count = k.shape[2]
        if count > self.longest:
            raise self.refusal(
                f"sinkhorn can read {self.longest} tokens and got {count}; cut the text, or train with a larger "
                f"{LENGTH.flag}"
            )
        is_real = F.pad(real(lengths, count), (0, -count % self.size)).unflatten(1, (-1, self.size))[:, None]
        kept, keys = is_real.to(k.dtype), in_blocks(k, self.size)
        sorting = self._sorting(keys, kept)
        # In a sequence shorter than a block, the last places hold no token in any block.
        seen = torch.cat([is_real, real(lengths, self.size)[:, None, None].expand_as(is_real)], -1)
        scores = in_blocks(q, self.size) @ torch.cat([keys, _mixed(sorting, keys, kept)], -2).mT * self.head_dim**-0.5
        scores = scores.masked_fill(~seen.unsqueeze(-2), torch.finfo(q.dtype).min)
        return F.dropout(scores.softmax(-1), dropout), sorting, kept

    def _sorting(self, keys: Tensor, kept: Tensor) -> Tensor:
        """R (B, H, N, N) of keys (B, H, N, z, D): for blocks with real tokens, rows sum to one and columns almost."""
        means = (keys * kept.unsqueeze(-1)).sum(-2) / kept.sum(-1, keepdim=True).clamp_min(1)
        logits = means @ self.sorting[..., : keys.shape[2]].to(keys.dtype) / TEMPERATURE
        used = kept[..., 0] > 0
        both = used.unsqueeze(-1) & used.unsqueeze(-2)
        for i in range(2 * ITERATIONS):
            logits = logits.masked_fill(~both, torch.finfo(keys.dtype).min / 4)
            logits = logits - logits.logsumexp(-2 + i % 2, keepdim=True)
        return logits.exp() * both


def _mixed(sorting: Tensor, blocks: Tensor, kept: Tensor) -> Tensor:
    """Means (B, H, N, z, D) over blocks, weighted by the rows of R; only real tokens count."""
    sums = torch.einsum("bhnm,bhmzd->bhnzd", sorting, blocks * kept.unsqueeze(-1))
    return sums / _total(sorting, kept).unsqueeze(-1)


def _total(sorting: Tensor, kept: Tensor) -> Tensor:
    """The total weight of real tokens at each place of a block, (B, H, N, z), above 0."""
    return (sorting @ kept).clamp_min(torch.finfo(sorting.dtype).tiny)
