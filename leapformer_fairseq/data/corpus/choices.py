"""Finite sets of possibilities that can be counted, sampled and enumerated.

A grammar built from these three nodes is counted exactly: a leaf counts its items, `AnyOf` adds, `Combine` multiplies.
Sampling follows the same structure, so a small branch (seven weekdays) is not drowned out by a large one (366 dates).
The items of a leaf follow Zipf's law, as words do in real text.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

# Item r of a list is drawn in proportion to 1 / r ** EXPONENT. This is steeper than in running text (about 1), so that
# a few thousand utterances, and minutes of training, cover most of the test set.
EXPONENT = 1.6


class Choices(Protocol):
    """The interface of all nodes; `size` is the number of choices, and the length of the iteration over them."""

    @property
    def size(self) -> int: ...

    def sample(self, rng: np.random.Generator) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class OneOf:
    """One of the given items; earlier ones are more frequent."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = tuple(items)
        self._upper = _upper_bounds(np.arange(1.0, len(self.items) + 1) ** -EXPONENT)

    @property
    def size(self) -> int:
        return len(self.items)

    def sample(self, rng: np.random.Generator) -> Any:
        return self.items[_draw(self._upper, rng)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class AnyOf:
    """A choice from one branch, which is selected in proportion to its weight, regardless of its size."""

    def __init__(self, *weighted: tuple[float, Choices]) -> None:
        self.branches = tuple(branch for _, branch in weighted)
        self._upper = _upper_bounds([weight for weight, _ in weighted])

    @property
    def size(self) -> int:
        return sum(branch.size for branch in self.branches)

    def sample(self, rng: np.random.Generator) -> Any:
        return self.branches[_draw(self._upper, rng)].sample(rng)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.branches)


class Combine:
    """`make(a, b, ...)` of one independent choice from every part."""

    def __init__(self, make: Callable[..., Any], *parts: Choices) -> None:
        self.make, self.parts = make, parts

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)

    def sample(self, rng: np.random.Generator) -> Any:
        return self.make(*[part.sample(rng) for part in self.parts])

    def __iter__(self) -> Iterator[Any]:
        return (self.make(*values) for values in itertools.product(*self.parts))


def _upper_bounds(weights: ArrayLike) -> list[float]:
    """The end of each weight's share of [0, 1)."""
    shares = np.array(weights, dtype=np.float64)
    return np.cumsum(shares / shares.sum()).tolist()


def _draw(upper: list[float], rng: np.random.Generator) -> int:
    """The index of a share, drawn in proportion to its size."""
    # `min`: the last bound may be rounded to slightly less than 1.
    return min(bisect_right(upper, rng.random()), len(upper) - 1)
