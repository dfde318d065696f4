"""Sparse Sinkhorn attention: a block sees itself, and a mixture of blocks that is learned to be almost one of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
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
    """Softmax over a block and R K, where R is a sorting of blocks: doubly stochastic, by Sinkhorn's iterations.

    Logits of R are a linear map, for each head, of the mean key of a block. Tay et al., 2020, arXiv:2002.11296, section
    3; without noise.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size, self.longest = self.chosen.sinkhorn_block_size, self.chosen.sinkhorn_max_length
        self.sorting = nn.Parameter(torch.empty(num_heads, head_dim, -(-self.longest // self.size)))
        nn.init.normal_(self.sorting, std=head_dim**-0.5)

    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        weights, sorting, kept = self._parts(q, k, lengths, dropout)
        own, of_sorted = weights.split(self.size, -1)  # (B, H, N, z, z)
        itself = torch.eye(weights.shape[2], device=q.device, dtype=q.dtype)
        shares = (sorting.unsqueeze(-1) * kept.unsqueeze(2)) / _total(sorting, kept).unsqueeze(-2)  # (B, H, N, N, z)
        found = own.unsqueeze(-2) * itself[:, None, :, None] + of_sorted.unsqueeze(-2) * shares.unsqueeze(-3)
        return found.flatten(-2).flatten(2, 3)[:, :, : q.shape[2], : q.shape[2]]

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        weights, sorting, kept = self._parts(q, k, lengths, self.dropping())
        values = in_blocks(v, self.size)
        out = weights @ torch.cat([values, _mixed(sorting, values, kept)], -2)
        return out.flatten(2, 3)[:, :, : q.shape[2]]

    def _parts(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of a block and of what is sorted to it (B, H, N, z, 2 z), R (B, H, N, N), real tokens (.., N, z)."""
        count = k.shape[2]
        if count > self.longest:
            raise LeapformerError(
                f"sinkhorn can read {self.longest} tokens and got {count}; cut the text, or train with a larger "
                f"{LENGTH.flag}"
            )
        is_real = F.pad(real(lengths, count), (0, -count % self.size)).unflatten(1, (-1, self.size))[:, None]
        kept, keys = is_real.to(k.dtype), in_blocks(k, self.size)
        sorting = self._sorting(keys, kept)
        # Of a sequence that is shorter than a block, some places hold no token in any block.
        seen = torch.cat([is_real, real(lengths, self.size)[:, None, None].expand_as(is_real)], -1)
        scores = in_blocks(q, self.size) @ torch.cat([keys, _mixed(sorting, keys, kept)], -2).mT * self.head_dim**-0.5
        scores = scores.masked_fill(~seen.unsqueeze(-2), torch.finfo(q.dtype).min)
        return F.dropout(scores.softmax(-1), dropout), sorting, kept

    def _sorting(self, keys: Tensor, kept: Tensor) -> Tensor:
        """R, (B, H, N, N), of keys (B, H, N, z, D): rows of blocks with real tokens sum to one, columns almost."""
        means = (keys * kept.unsqueeze(-1)).sum(-2) / kept.sum(-1, keepdim=True).clamp_min(1)
        logits = means @ self.sorting[..., : keys.shape[2]].to(keys.dtype) / TEMPERATURE
        used = kept[..., 0] > 0
        both = used.unsqueeze(-1) & used.unsqueeze(-2)
        for i in range(2 * ITERATIONS):
            logits = logits.masked_fill(~both, torch.finfo(keys.dtype).min / 4)
            logits = logits - logits.logsumexp(-2 + i % 2, keepdim=True)
        return logits.exp() * both


def _mixed(sorting: Tensor, blocks: Tensor, kept: Tensor) -> Tensor:
    """Means of real tokens of blocks (B, H, N, z, D) by the rows of R."""
    found = torch.einsum("bhnm,bhmzd->bhnzd", sorting, blocks * kept.unsqueeze(-1))
    return found / _total(sorting, kept).unsqueeze(-1)


def _total(sorting: Tensor, kept: Tensor) -> Tensor:
    """What falls on real tokens of a place in a block, (B, H, N, z)."""
    return (sorting @ kept).clamp_min(torch.finfo(sorting.dtype).tiny)
