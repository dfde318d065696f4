"""Who may see whom: visible prefixes of the keys, and which rows of a batch are real.

Shapes: B batch, T queries, S keys. Keep masks are True where a row is real (fairseq's padding masks are the opposite).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import LeapformerError


@dataclass(frozen=True)
class Visible:
    """Query t (from 0) sees the first g(t) = min(S, ratio * (t + lagging)) keys.

    One description for causal attention (`CAUSAL`: lagging 1, ratio 1) and for wait-k cross-attention with a fixed
    pre-decision ratio (Ma et al., 2019, arXiv:1810.08398; Ma et al., 2020, arXiv:2011.02048), where `lagging` is k and
    `ratio` counts encoder frames per decision. Bidirectional attention is `None` instead.
    """

    lagging: int = 1
    ratio: int = 1

    def __post_init__(self) -> None:
        if self.lagging < 1:
            raise LeapformerError(f"lagging k is {self.lagging}; a query must see something, choose k >= 1")
        if self.ratio < 1:
            raise LeapformerError(f"pre-decision ratio is {self.ratio}; choose at least 1 encoder frame per decision")

    @property
    def shared(self) -> int:
        """Number of keys (before the limit S) that every query sees; query t sees `ratio * (t + 1)` more."""
        return (self.lagging - 1) * self.ratio

    def counts(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """g(t) for t = 0 .. queries - 1, shape (T,)."""
        steps = torch.arange(queries, device=device) + self.lagging
        return (steps * self.ratio).clamp_max(keys)

    def mask(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """True where the query may see the key, shape (T, S)."""
        return torch.arange(keys, device=device) < self.counts(queries, keys, device).unsqueeze(-1)


CAUSAL = Visible()


@dataclass(frozen=True)
class Blocks:
    """Self-attention while rows arrive, block by block: a query sees its own block and what is left of those before.

    size:  rows of a block; with 1 it is causal attention.
    ahead: further rows that are read with a block, the first ones of the next, so that the block sees what comes. Rows
           come with those copies, `size` + `ahead` a block; no other block sees them.
    past:  rows before a block that are still seen where each is kept (softmax); None is all of them. Mechanisms with a
           state of constant size always see what is left of all.
    """

    size: int = 1
    ahead: int = 0
    past: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1 or self.ahead < 0 or (self.past is not None and self.past < 0):
            raise LeapformerError(
                f"blocks of {self.size} rows, {self.ahead} ahead, {self.past} past: give at least 1, and none below 0"
            )

    @property
    def rows(self) -> int:
        """Rows that are read together."""
        return self.size + self.ahead

    def with_all_past(self) -> Blocks:
        """The same for a mechanism with a state, which keeps all that was added to it."""
        return replace(self, past=None)

    def mask(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """True where the query may see the key, shape (T, S)."""
        (query, _), (key, place) = (self._places(count, device) for count in (queries, keys))
        distance = query.unsqueeze(1) * self.size - (key * self.size + place)  # from the first row of the block
        before = (key < query.unsqueeze(1)) & (place < self.size)
        if self.past is not None:
            before = before & (distance <= self.past)
        return before | (key == query.unsqueeze(1))

    def _places(self, count: int, device: torch.device | None) -> tuple[Tensor, Tensor]:
        """The block of every row and its place there."""
        rows = torch.arange(count, device=device)
        return rows // self.rows, rows % self.rows


class Packed(NamedTuple):
    """A packed sequence (Luna): rows (B, l, C), and `keep` (B, l), False for those that are out of use, or None."""

    rows: Tensor
    keep: Tensor | None = None


@dataclass(frozen=True)
class Rows:
    """One side of an attention: where each row of a (B, T) batch stands in its own sequence.

    positions: (B or 1, T), from 1 for the first real row, so left padding does not shift a sequence.
    lengths:   (B or 1,) lengths, true or predicted, or None while the sequence is still being written.
    keep:      (B, T), True for real rows, or None when all are.
    inputs:    (B, T, C), what the rows were projected from, for mechanisms that ask for it (`needs_inputs`).
    packed:    the packed sequence that the layer before handed on, for mechanisms that have one (`packs`).
    """

    positions: Tensor
    lengths: Tensor | None = None
    keep: Tensor | None = None
    inputs: Tensor | None = None
    packed: Packed | None = None

    @classmethod
    def whole(cls, count: int, keep: Tensor | None = None, device: torch.device | None = None) -> Rows:
        """Rows of complete sequences of `count` columns, padded on either side where `keep` is False."""
        if keep is None:
            return cls(torch.arange(1, count + 1, device=device).unsqueeze(0), torch.tensor([count], device=device))
        return cls(keep.long().cumsum(1), keep.sum(1), keep)

    @classmethod
    def following(cls, seen: Tensor, count: int, keep: Tensor | None = None) -> Rows:
        """`count` more rows of sequences of unknown length of which `seen`, (B,), real rows came before."""
        columns = torch.ones(1, count, dtype=torch.long, device=seen.device) if keep is None else keep.long()
        steps = columns.cumsum(1)
        return cls(seen.unsqueeze(1) + steps, None, keep)

    def of_length(self, lengths: Tensor | None) -> Rows:
        """The same rows for a block that knows other lengths, (B or 1,): predicted ones, or none."""
        return replace(self, lengths=lengths)

    def without_lengths(self) -> Rows:
        """The same rows for a block that must not know how long the sequence will become."""
        return self.of_length(None)

    def narrow(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop` (columns)."""
        columns = slice(start, stop)
        keep = None if self.keep is None else self.keep[:, columns]
        inputs = None if self.inputs is None else self.inputs[:, columns]
        return replace(self, positions=self.positions[:, columns], keep=keep, inputs=inputs)
