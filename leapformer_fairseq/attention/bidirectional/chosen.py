"""Softmax over keys that are chosen by position: only their scores are computed.

Shapes: B batch, H heads, T tokens, D head dimension, E value dimension, z tokens of a block, N blocks, m units chosen.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.blocks import gathered, in_blocks
from .base import Bidirectional, real


@dataclass(frozen=True)
class Chosen:
    """What the blocks of queries look at.

    units: units of keys, (B or 1, H or 1, N, m); unit u is the tokens from u * `tokens` on.
    used:  (B or 1, H or 1, N, z or 1, m), False where a query does not look: no unit is used twice.
    whole: queries that look at all keys, (B or 1, g), and `once`, (B or 1, g), False at repetitions of the first.
    """

    units: Tensor
    used: Tensor
    tokens: int = 1
    whole: Tensor | None = None
    once: Tensor | None = None


class ChosenKeys(Bidirectional):
    """A subclass says what is chosen, for blocks of `size` queries."""

    size: int

    @abstractmethod
    def choose(self, lengths: Tensor, count: int) -> Chosen:
        """For sequences of `lengths`, (B or 1,), of `count` tokens with padding; keys at padding do not count."""

    def edges(self, lengths: Tensor, count: int) -> Tensor:
        """True where a query looks at a key, (B or 1, H or 1, T, T)."""
        chosen = self.choose(lengths, count)
        columns, visible = self._columns(chosen, lengths)
        columns, visible = torch.broadcast_tensors(columns.unsqueeze(-2), visible)
        edges = torch.zeros(*visible.shape[:-1], count, device=lengths.device)
        edges = edges.scatter_add(-1, columns.clamp_max(count - 1), visible.float()) > 0
        edges = edges.expand(-1, -1, -1, self.size, -1).flatten(2, 3)[:, :, :count]
        if chosen.whole is None:
            return edges
        every = torch.zeros(len(chosen.whole), edges.shape[2], dtype=torch.bool, device=lengths.device)
        every = every.scatter(1, chosen.whole, True)[:, None, :, None]
        return edges | (every & real(lengths, count)[:, None, None])

    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        edges = self.edges(lengths, k.shape[2])
        scores = (q @ k.mT * self.head_dim**-0.5).masked_fill(~edges, torch.finfo(q.dtype).min)
        return F.dropout(scores.softmax(-1) * edges, dropout)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        count = k.shape[2]
        chosen = self.choose(lengths, count)
        _, visible = self._columns(chosen, lengths)
        keys, values = (self._gathered(x, chosen) for x in (k, v))
        out = _softmax(in_blocks(q, self.size), keys, values, visible, self.dropping())
        out = out.flatten(2, 3)[:, :, :count]
        return out if chosen.whole is None else self._with_whole(out, q, k, v, lengths, chosen)

    def _columns(self, chosen: Chosen, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The keys that are chosen, (B or 1, H or 1, N, m * tokens), and whether a query of the block sees them."""
        within = torch.arange(chosen.tokens, device=lengths.device)
        columns = (chosen.units.unsqueeze(-1) * chosen.tokens + within).flatten(-2)
        used = chosen.used.repeat_interleave(chosen.tokens, -1)
        return columns, used & (columns < lengths[:, None, None, None]).unsqueeze(-2)

    def _gathered(self, x: Tensor, chosen: Chosen) -> Tensor:
        blocks = in_blocks(x, chosen.tokens)
        units = chosen.units.clamp_max(blocks.shape[2] - 1)
        return gathered(blocks, units.expand(len(x), x.shape[1], -1, -1))

    def _with_whole(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, chosen: Chosen) -> Tensor:
        """`out`, (B, H, T, E), with the queries that look at all."""
        assert chosen.whole is not None and chosen.once is not None
        at = chosen.whole[:, None, :, None].expand(len(q), q.shape[1], -1, -1)
        rows = q.gather(2, at.expand(-1, -1, -1, q.shape[3]))
        visible = real(lengths, k.shape[2])[:, None, None]
        found = F.scaled_dot_product_attention(rows, k, v, visible, self.dropping())
        at = at.expand_as(found)
        return out.scatter(2, at, 0.0).scatter_add(2, at, found * chosen.once[:, None, :, None])


def _softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, dropout: float) -> Tensor:
    """Output (B, H, N, z, E) of q (B, H, N, z, D), k (B, H, N, m, D), v, for `visible` (B or 1, H or 1, N, z or 1, m).

    A query that sees nothing, padding, sees all here: softmax over nothing is NaN.
    """
    heads, blocks = q.shape[1:3]
    visible = (visible | ~visible.any(-1, keepdim=True)).expand(-1, heads, -1, -1, -1)
    q, k, v, visible = (x.flatten(1, 2) for x in (q, k, v, visible))
    return F.scaled_dot_product_attention(q, k, v, visible, dropout).unflatten(1, (heads, blocks))
