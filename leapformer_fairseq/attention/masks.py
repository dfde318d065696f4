"""Which keys a query sees: a prefix (causal, wait-k), chunks (streaming encoders), or, with None, all of them.

Shapes: T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..support.errors import LeapformerError


def whole_from(least: int, *numbers: Any) -> bool:
    """Whether these are whole numbers, such as those of numpy or of a graph, and none is smaller."""
    whole: Any = (int, Integral, torch.SymInt)
    return all(isinstance(number, whole) and number >= least for number in numbers)


@dataclass(frozen=True)
class PrefixMask:
    """Query t (from 0) sees the first g(t) = min(S, ratio * (t + lagging)) keys.

    Causal attention (`CAUSAL`) is lagging 1 and ratio 1. Wait-k cross-attention with a fixed pre-decision ratio has
    lagging k and `ratio` encoder frames per decision (Ma et al., 2019, arXiv:1810.08398; 2020, arXiv:2011.02048).
    """

    lagging: int = 1
    ratio: int = 1

    def __post_init__(self) -> None:
        if not whole_from(1, self.lagging):
            raise LeapformerError(f"lagging k is {self.lagging!r}; a query must see something, choose k >= 1, whole")
        if not whole_from(1, self.ratio):
            raise LeapformerError(f"pre-decision ratio is {self.ratio!r}; choose at least 1 encoder frame per decision")

    @property
    def shared(self) -> int:
        """Number of keys (not limited to S) that every query sees; query t sees `ratio * (t + 1)` more."""
        return (self.lagging - 1) * self.ratio

    def growing(self, queries: int, keys: int) -> int:
        """Number of queries that see more keys than the query before them; all later queries see all keys."""
        return min(queries, -(-max(0, keys - self.shared) // self.ratio))

    def after(self, queries: int) -> PrefixMask:
        """The same mask for the queries that follow the first `queries`."""
        return replace(self, lagging=self.lagging + queries)

    def count(self, query: int, keys: int) -> int:
        """Number of keys that a query sees, g(t)."""
        return min(keys, self.ratio * (query + self.lagging))

    def mask(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """True where the query may see the key, (T, S)."""
        seen = (torch.arange(queries, device=device) + self.lagging) * self.ratio
        return torch.arange(keys, device=device) < seen.unsqueeze(-1)


CAUSAL = PrefixMask()


@dataclass(frozen=True)
class ChunkMask:
    """Self-attention of a streaming encoder: a query sees its own chunk, its look-ahead, and earlier chunks.

    size:  tokens of a chunk; 1 without look-ahead is causal attention.
    ahead: look-ahead, additional tokens read with each chunk. The sequence contains copies of them, `size` + `ahead`
           tokens per chunk; a copy is seen only by its own chunk.
    past:  number of tokens before a chunk that it sees, for mechanisms that keep every token (softmax); None: all.
           Mechanisms with a state of constant size always see everything written.
    """

    size: int = 1
    ahead: int = 0
    past: int | None = None

    def __post_init__(self) -> None:
        if not whole_from(1, self.size) or not whole_from(0, self.ahead, *(() if self.past is None else (self.past,))):
            raise LeapformerError(
                f"chunks of {self.size!r} tokens, {self.ahead!r} ahead, {self.past!r} past: give whole numbers, at "
                "least 1, and none below 0"
            )

    @property
    def tokens(self) -> int:
        """Tokens read together: a chunk and its look-ahead."""
        return self.size + self.ahead

    def own(self, count: int, device: torch.device | None = None) -> Tensor:
        """True at the tokens of chunks, False at copies for look-ahead, (T,)."""
        return torch.arange(count, device=device) % self.tokens < self.size

    def mask(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """True where the query may see the key, (T, S)."""
        query = (torch.arange(queries, device=device) // self.tokens).unsqueeze(1)
        token = torch.arange(keys, device=device)
        chunk, place = token // self.tokens, token % self.tokens
        before = (chunk < query) & (place < self.size)
        if self.past is not None:  # counted from the first token of the query's chunk
            before = before & (query * self.size - (chunk * self.size + place) <= self.past)
        return before | (chunk == query)


Mask = PrefixMask | ChunkMask | None


def seen(mask: Mask, queries: int, keys: int) -> int:
    """The number of keys, from the first, that at least one of these queries sees."""
    return mask.count(queries - 1, keys) if isinstance(mask, PrefixMask) else keys


def visible(mask: Mask, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """How many keys each query sees, (T,), always the first ones; so chunks must have no look-ahead."""
    if mask is None:
        return torch.full((queries,), keys, device=device)
    query = torch.arange(queries, device=device)
    if isinstance(mask, PrefixMask):
        return ((query + mask.lagging) * mask.ratio).clamp(max=keys)
    return ((query // mask.size + 1) * mask.size).clamp(max=keys)


def numbers_of(mask: Mask) -> list[int]:
    """A mask as numbers, to be saved: none, two or three, by which `mask_of` knows its kind."""
    if mask is None:
        return []
    if isinstance(mask, PrefixMask):
        return [mask.lagging, mask.ratio]
    return [mask.size, mask.ahead, -1 if mask.past is None else mask.past]


def mask_of(numbers: list[int]) -> Mask:
    """The mask of numbers that `numbers_of` returned. Raises LeapformerError for others."""
    if len(numbers) > 3 or len(numbers) == 1:
        raise LeapformerError(f"a mask has two or three numbers, not {numbers}; give those of a mask")
    if not numbers:
        return None
    if len(numbers) == 2:
        return PrefixMask(*numbers)
    size, ahead, past = numbers
    return ChunkMask(size, ahead, None if past == -1 else past)


def with_state(mask: Mask) -> Mask:
    """The mask for a mechanism whose state keeps everything written. Chunks of one token become causal."""
    if not isinstance(mask, ChunkMask):
        return mask
    return CAUSAL if mask.tokens == 1 else replace(mask, past=None)
