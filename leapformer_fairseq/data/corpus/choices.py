"""Finite sets of possibilities that know their size, can be sampled and can be listed.

A grammar built from these three nodes is counted exactly by its own structure: a leaf counts its items, `AnyOf` adds,
`Combine` multiplies. Sampling walks the same structure and is even over the items of a leaf, so a small branch (seven
weekdays) is not drowned by a large one (366 dates), and word frequencies stay flat.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np


class Choices(Protocol):
    """What all nodes answer. `size` is the number of ways to choose, which is the length of the iteration."""

    @property
    def size(self) -> int: ...

    def sample(self, rng: np.random.Generator) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class OneOf:
    """One of the given items, each equally likely."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = tuple(items)

    @property
    def size(self) -> int:
        return len(self.items)

    def sample(self, rng: np.random.Generator) -> Any:
        return self.items[int(rng.integers(len(self.items)))]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class AnyOf:
    """A choice out of one of the branches; a branch is taken in proportion to its weight, whatever its size."""

    def __init__(self, *weighted: tuple[float, Choices]) -> None:
        self.branches = tuple(branch for _, branch in weighted)
        weights = np.array([weight for weight, _ in weighted], dtype=np.float64)
        self._upper = np.cumsum(weights / weights.sum())

    @property
    def size(self) -> int:
        return sum(branch.size for branch in self.branches)

    def sample(self, rng: np.random.Generator) -> Any:
        index = int(np.searchsorted(self._upper, rng.random(), side="right"))
        return self.branches[min(index, len(self.branches) - 1)].sample(rng)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.branches)


class Combine:
    """`make(a, b, ...)` of one independent choice out of every part."""

    def __init__(self, make: Callable[..., Any], *parts: Choices) -> None:
        self.make, self.parts = make, parts

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)

    def sample(self, rng: np.random.Generator) -> Any:
        return self.make(*[part.sample(rng) for part in self.parts])

    def __iter__(self) -> Iterator[Any]:
        return (self.make(*values) for values in itertools.product(*self.parts))
