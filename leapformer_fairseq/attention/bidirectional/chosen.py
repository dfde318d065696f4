"""Softmax over keys that are chosen by position: only their scores are computed.

Keys are chosen in units, for each block of queries.

Shapes: B batch, H heads, T tokens, D head dimension, E value dimension, z tokens of a block, N blocks, m chosen units.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..ops.blocks import gathered, in_blocks
from ..ops.random import hashed
from ..options import Option
from ..registry import register
from .base import Bidirectional, real


@dataclass(frozen=True)
class Chosen:
    """The keys that each block of queries sees.

    units:  indices of units, (B or 1, H or 1, N, m).
    used:   (B or 1, H or 1, N, z or 1, m), True where a query sees the unit. No query sees the same unit twice.
    tokens: tokens of a unit; unit u begins at token u * `tokens`.
    whole:  indices of queries that see all keys instead, (B or 1, g).
    once:   (B or 1, g), False at fillers of `whole`, which repeat query 0.
    """

    units: Tensor
    used: Tensor
    tokens: int = 1
    whole: Tensor | None = None
    once: Tensor | None = None


class ChosenKeys(Bidirectional):
    """Softmax over chosen keys; a subclass chooses them for each block of `size` queries."""

    size: int

    @abstractmethod
    def choose(self, lengths: Tensor, count: int) -> Chosen:
        """Choose keys in sequences of `lengths` (B or 1,), `count` with padding, which may be chosen and is masked."""

    def edges(self, lengths: Tensor, count: int) -> Tensor:
        """True where a query sees a key, (B or 1, H or 1, T, T)."""
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
        """The chosen keys, (B or 1, H or 1, N, m * tokens), and True where a query of the block sees them.

        The second is (B or 1, H or 1, N, z or 1, m * tokens), and False at padding.
        """
        within = torch.arange(chosen.tokens, device=lengths.device)
        columns = (chosen.units.unsqueeze(-1) * chosen.tokens + within).flatten(-2)
        used = chosen.used.repeat_interleave(chosen.tokens, -1)
        return columns, used & (columns < lengths[:, None, None, None]).unsqueeze(-2)

    def _gathered(self, x: Tensor, chosen: Chosen) -> Tensor:
        """The chosen tokens of x (B, H, T, D): (B, H, N, m * tokens, D)."""
        blocks = in_blocks(x, chosen.tokens)
        units = chosen.units.clamp_max(blocks.shape[2] - 1)
        return gathered(blocks, units.expand(len(x), x.shape[1], -1, -1))

    def _with_whole(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, chosen: Chosen) -> Tensor:
        """`out` (B, H, T, E), with the outputs of the queries in `chosen.whole` replaced."""
        assert chosen.whole is not None and chosen.once is not None
        at = chosen.whole[:, None, :, None].expand(len(q), q.shape[1], -1, -1)
        rows = q.gather(2, at.expand(-1, -1, -1, q.shape[3]))
        visible = real(lengths, k.shape[2])[:, None, None]
        replaced = F.scaled_dot_product_attention(rows, k, v, visible, self.dropping())
        at = at.expand_as(replaced)
        return out.scatter(2, at, 0.0).scatter_add(2, at, replaced * chosen.once[:, None, :, None])


def _softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, dropout: float) -> Tensor:
    """Output (B, H, N, z, E) of q (B, H, N, z, D), k (B, H, N, m, D), v, for `visible` (B or 1, H or 1, N, z or 1, m).

    A query that sees no key (padding) is shown all: a softmax over nothing is NaN.
    """
    heads, blocks = q.shape[1:3]
    visible = (visible | ~visible.any(-1, keepdim=True)).expand(-1, heads, -1, -1, -1)
    q, k, v, visible = (x.flatten(1, 2) for x in (q, k, v, visible))
    return F.scaled_dot_product_attention(q, k, v, visible, dropout).unflatten(1, (heads, blocks))


LOCAL_SIZE = Option("local_block_size", 50, "local: tokens of a block", least=1)


@register("local", LOCAL_SIZE)
class Local(ChosenKeys):
    """Softmax within blocks of tokens: the baseline of Long Range Arena (Tay et al., 2021, arXiv:2011.04006)."""

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size = self.chosen.local_block_size

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        blocks = torch.arange(-(-count // self.size), device=lengths.device)
        units = blocks[None, None, :, None]
        return Chosen(units, torch.ones_like(units, dtype=torch.bool).unsqueeze(-2), self.size)


LONGFORMER_WINDOW = Option(
    "longformer_window", 512, "longformer: width of the window, even: a token sees tokens at most half of it away"
)


@register("longformer", LONGFORMER_WINDOW)
class Longformer(ChosenKeys):
    """Softmax over a window of w + 1 tokens; the first token is global (Beltagy et al., 2020, arXiv:2004.05150).

    Global attention has no projections of its own.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        width = self.chosen.longformer_window
        if width < 2 or width % 2:
            raise LeapformerError(f"{LONGFORMER_WINDOW.flag} {width}: give an even number from 2")
        self.size = width // 2

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        z = self.size
        query = torch.arange(-(-count // z) * z, device=lengths.device).view(-1, z)
        key = query[:, :1] + torch.arange(-z, 2 * z, device=lengths.device)
        used = ((query.unsqueeze(-1) - key.unsqueeze(-2)).abs() <= z) & (key > 0).unsqueeze(-2)
        first = torch.zeros_like(query[:, :1])
        units = torch.cat([first, key.clamp_min(0)], 1)
        used = torch.cat([torch.ones_like(used[..., :1]), used], -1)
        whole = lengths.new_zeros(1, 1)
        return Chosen(units[None, None], used[None, None], 1, whole, whole == 0)


SPARSE_SIZE = Option("sparse_transformer_block_size", 128, "sparse-transformer: tokens of a block", least=1)
SUMMARY = Option(
    "sparse_transformer_summary", 32, "sparse-transformer: last tokens of a block that all blocks see", least=1
)


@register("sparse-transformer", SPARSE_SIZE, SUMMARY)
class SparseTransformer(ChosenKeys):
    """Softmax over a token's block and the last c tokens of every block (Child et al., 2019, arXiv:1904.10509, 4.3).

    For encoders, so the blocks are those before and after the token. All heads have both parts of the pattern.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size = self.chosen.sparse_transformer_block_size
        self.summary = self.chosen.sparse_transformer_summary
        if self.summary > self.size:
            raise LeapformerError(
                f"{SUMMARY.flag} {self.summary}: a block has only {self.size} tokens ({SPARSE_SIZE.flag})"
            )

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        z, c = self.size, self.summary
        start = torch.arange(0, count, z, device=lengths.device)
        block = start.unsqueeze(1) + torch.arange(z, device=lengths.device)
        last = block[:, z - c :].flatten().expand(len(start), -1)
        elsewhere = last // z != (start // z).unsqueeze(1)
        units = torch.cat([block, last], 1)
        used = torch.cat([torch.ones_like(block, dtype=torch.bool), elsewhere], 1)
        return Chosen(units[None, None], used[None, None, :, None])


BIGBIRD_SIZE = Option("bigbird_block_size", 64, "bigbird: tokens of a block", least=1)
BIGBIRD_RANDOM = Option(
    "bigbird_random_blocks",
    3,
    "bigbird: random blocks that a block sees beside 3 neighbouring and 2 global",
    least=0,
)
BIGBIRD_SEED = 1


@register("bigbird", BIGBIRD_SIZE, BIGBIRD_RANDOM)
class BigBird(ChosenKeys):
    """Softmax over a token's block, its neighbours, random blocks, and the first and last block, which see all tokens.

    Zaheer et al., 2020, arXiv:2007.14062, section 2 and appendix D. Each head draws its own random blocks, which stay
    the same during training.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size = self.chosen.bigbird_block_size
        self.random = self.chosen.bigbird_random_blocks

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        row = torch.arange(-(-count // self.size), device=lengths.device).view(-1, 1)
        last = ((lengths - 1).clamp_min(0) // self.size).view(-1, 1, 1, 1)
        around = torch.cat([row - 1, row, row + 1], 1)
        random, drawn = self._drawn(row, last)
        parts = (
            (torch.zeros_like(row), row > 1),
            (around, (around >= 0) & (around < len(row))),
            (last, (last - row).abs() > 1),
            (random, drawn),
        )
        blocks, used = (
            torch.cat([part[i].expand(len(last), self.num_heads, len(row), -1) for part in parts], -1) for i in (0, 1)
        )
        ends = torch.cat([torch.zeros_like(last), last], 1).flatten(2)  # (B or 1, 2, 1)
        whole = ends * self.size + torch.arange(self.size, device=row.device)
        once = (whole < lengths.view(-1, 1, 1)) & torch.cat([ends[:, :1] >= 0, ends[:, 1:] > 0], 1)
        whole, once = whole.flatten(1), once.flatten(1)
        return Chosen(blocks.clamp(0, len(row) - 1), used.unsqueeze(-2), self.size, whole.where(once, 0), once)

    def _drawn(self, row: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Random blocks (B or 1, H, N, r) that are neither neighbours nor global, and False where there are fewer."""
        column, head = row.mT, torch.arange(self.num_heads, device=row.device).view(-1, 1, 1)
        free = ((row - column).abs() > 1) & (column > 0) & (column < last)
        drawn, order = hashed(BIGBIRD_SEED, head, row, column).masked_fill(~free, 2**32).sort(dim=-1)
        return order[..., : self.random], drawn[..., : self.random] < 2**32
