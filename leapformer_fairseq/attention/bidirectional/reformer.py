"""Reformer: tokens attend to tokens in the same bucket of a random hash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..ops.blocks import in_blocks
from ..options import Option
from ..registry import register
from .base import Bidirectional, real

HASHES = Option("lsh_hashes", 2, "reformer: rounds of hashing", least=1)
BUCKETS = Option("lsh_buckets", 64, "reformer: buckets of a round, an even number")
CHUNK = Option("lsh_chunk", 64, "reformer: tokens of a chunk, after they are sorted by bucket", least=1)
SEED = 1
ITSELF = 1e5  # subtracted from a token's score with itself, so that it attends to itself only if it sees no other


@register("reformer", HASHES, BUCKETS, CHUNK)
class Reformer(Bidirectional):
    """Softmax over tokens that share a bucket in some round, in the same chunk of the sorted tokens or the one before.

    Queries and keys are the same vectors, the keys divided by their norm. A pair that shares a bucket in several rounds
    counts once. (Kitaev et al., 2020, arXiv:2001.04451, section 2 and eq. 5-6.) The hash, argmax [x R; -x R], has a
    fixed R and a fixed number of buckets; the released code draws R for every batch and uses more buckets for longer
    texts.
    """

    rotation: Tensor
    capabilities = replace(Bidirectional.capabilities, unused_projections=("q_proj",))

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.hashes, self.buckets = self.chosen.lsh_hashes, self.chosen.lsh_buckets
        self.chunk = self.chosen.lsh_chunk
        if self.buckets < 2 or self.buckets % 2:
            raise LeapformerError(f"{BUCKETS.flag} {self.buckets}: give an even number from 2")
        generator = torch.Generator().manual_seed(SEED)
        rotation = torch.randn(self.hashes, num_heads, head_dim, self.buckets // 2, generator=generator)
        self.register_buffer("rotation", rotation)

    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        visible = torch.zeros(1, dtype=torch.bool, device=k.device)
        for bucket, chunk, _ in self._rounds(k, lengths):
            visible = visible | _pairs(bucket, bucket, chunk, chunk)
        visible = visible & real(lengths, k.shape[2])[:, None, None]
        scores = self._scores(k, k) - ITSELF * torch.eye(k.shape[2], device=k.device, dtype=k.dtype)
        weights = scores.masked_fill(~visible, torch.finfo(k.dtype).min).softmax(-1)
        return F.dropout(weights * visible, dropout)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        rounds, outputs, totals = self._rounds(k, lengths), [], []
        for i, (_, _, order) in enumerate(rounds):
            back = order.argsort(dim=-1)
            out, total = self._round(i, rounds, _taken(k, order), _taken(v, order), lengths)
            outputs.append(_taken(out, back))
            totals.append(_taken(total, back))
        shares = torch.stack(totals).softmax(0)
        return (torch.stack(outputs) * shares).sum(0) * real(lengths, k.shape[2])[:, None, :, None]

    def _rounds(self, k: Tensor, lengths: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each round the bucket and the chunk of every token, and the tokens sorted by bucket, all (B, H, T)."""
        is_real, rounds = real(lengths, k.shape[2])[:, None], []
        for rotation in self.rotation.to(k.dtype):
            rotated = k.detach() @ rotation
            bucket = torch.cat([rotated, -rotated], -1).argmax(-1).where(is_real, self.buckets)  # padding comes last
            order = bucket.argsort(dim=-1, stable=True)
            rounds.append((bucket, order.argsort(dim=-1) // self.chunk, order))
        return rounds

    def _round(
        self, i: int, rounds: list[tuple[Tensor, Tensor, Tensor]], k: Tensor, v: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Output (B, H, T, E) of round i and the logarithm of the sum of exp(scores), (B, H, T, 1).

        k and v, and the results, are in the order of the round. Pairs of earlier rounds are left out.
        """
        order, count = rounds[i][2], k.shape[2]

        def with_previous(x: Tensor) -> Tensor:
            return torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], 3)

        def blocks(x: Tensor) -> Tensor:
            return in_blocks(x.gather(-1, order).unsqueeze(-1), self.chunk)

        is_real = in_blocks(real(lengths, count)[:, None, :, None].expand(len(k), k.shape[1], -1, -1), self.chunk)
        visible = with_previous(is_real).mT.expand(-1, -1, -1, self.chunk, -1)
        for j, (bucket, chunk, _) in enumerate(rounds[: i + 1]):
            at, where = blocks(bucket), blocks(chunk)
            pairs = _pairs(at[..., 0], with_previous(at)[..., 0], where[..., 0], with_previous(where)[..., 0])
            visible = visible & (pairs if j == i else ~pairs)
        keys, values = (in_blocks(x, self.chunk) for x in (k, v))
        scores = self._scores(keys, with_previous(keys))
        itself = torch.eye(self.chunk, 2 * self.chunk, device=k.device, dtype=k.dtype).roll(self.chunk, 1)
        scores = (scores - ITSELF * itself).masked_fill(~visible, torch.finfo(k.dtype).min)
        weights = F.dropout(scores.softmax(-1), self.dropping())
        out, total = weights @ with_previous(values), scores.logsumexp(-1, keepdim=True)
        return out.flatten(2, 3)[:, :, :count], total.flatten(2, 3)[:, :, :count]

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ F.normalize(k, dim=-1).mT


def _pairs(bucket: Tensor, key_bucket: Tensor, chunk: Tensor, key_chunk: Tensor) -> Tensor:
    """Whether a query sees a key in a round, (.., T, S), given their buckets and chunks, (.., T) and (.., S)."""
    before = chunk.unsqueeze(-1) - key_chunk.unsqueeze(-2)
    return (bucket.unsqueeze(-1) == key_bucket.unsqueeze(-2)) & ((before == 0) | (before == 1))


def _taken(x: Tensor, order: Tensor) -> Tensor:
    """The tokens of x (B, H, T, D) in an order (B, H, T) for each head."""
    return x.gather(2, order.unsqueeze(-1).expand_as(x))
