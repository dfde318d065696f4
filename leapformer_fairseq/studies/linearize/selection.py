"""Which blocks keep the teacher's attention: one after the other is replaced, each time the one that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...criterions.taught import distance
from ...support.errors import LeapformerError
from .pair import Pair

Names = frozenset[str]


class Swap(NamedTuple):
    """A step of the choice: the block that was replaced, and the distance to the teacher with all so far replaced."""

    block: str
    distance: float


def measured(pair: Pair, batches: Iterable[Any], plans: Sequence[Names]) -> list[float]:
    """The distance to the teacher's predictions, per token, with the blocks of each plan replaced.

    Every plan reads every batch, for which the teacher is asked once.
    """
    totals, tokens = [0.0] * len(plans), 0.0
    with torch.no_grad():
        for batch in batches:
            expected = pair.predicted(pair.teacher.model, batch)
            for i, plan in enumerate(plans):
                for block in pair.blocks:
                    block.put(block.student if block.name in plan else block.teacher)
                found = distance(expected, pair.predicted(pair.student, batch), batch)
                totals[i] += float(found.total)
            tokens += float(found.tokens)
    return [total / tokens for total in totals]


def choose(pair: Pair, batches: Sequence[Any], before: Sequence[Swap] = ()) -> Iterator[Swap]:
    """The order in which blocks are replaced, from none to all: each time the one that leaves the least distance.

    `before` holds the steps that are known. Raises LeapformerError when a distance is no number.
    """
    done = frozenset(swap.block for swap in before)
    while left := [block.name for block in pair.blocks if block.name not in done]:
        found = measured(pair, batches, [done | {name} for name in left])
        wrong = [name for name, value in zip(left, found, strict=True) if not math.isfinite(value)]
        if wrong:
            raise LeapformerError(
                f"with {wrong[0]} replaced the distance is no number; align with a lower --align-rate"
            )
        least, name = min(zip(found, left, strict=True))
        done |= {name}
        yield Swap(name, least)


def kept(swaps: Sequence[Swap], count: int, largest: float | None = None) -> Names:
    """The blocks that stay as in the teacher: the last `count`, or as few as bring the distance to `largest`."""
    if largest is not None:
        count = len(swaps) - max((i + 1 for i, swap in enumerate(swaps) if swap.distance <= largest), default=0)
    return frozenset(swap.block for swap in swaps[len(swaps) - count :])
