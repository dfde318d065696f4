"""Choose the blocks that keep the teacher's attention: greedily replace the one that costs least."""

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
    """A step: the block that is replaced, and the distance to the teacher with all blocks replaced so far."""

    block: str
    distance: float


def measured(pair: Pair, batches: Iterable[Any], plans: Sequence[Names]) -> list[float]:
    """Return the distance per token to the teacher's predictions for each plan, a set of replaced blocks.

    The teacher's predictions for a batch are computed once and compared with all plans.
    """
    totals, tokens = [0.0] * len(plans), 0.0
    with torch.no_grad():
        for batch in batches:
            expected = pair.predicted(pair.teacher.model, batch)
            for i, plan in enumerate(plans):
                for block in pair.blocks:
                    block.put(block.student if block.name in plan else block.teacher)
                divergence = distance(expected, pair.predicted(pair.student, batch), batch)
                totals[i] += float(divergence.total)
            tokens += float(divergence.tokens)
    return [total / tokens for total in totals]


def choose(pair: Pair, batches: Sequence[Any], before: Sequence[Swap] = ()) -> Iterator[Swap]:
    """Yield the steps from no replaced block to all; each replaces the block that leaves the smallest distance.

    `before` are the steps already taken. Raises LeapformerError if a distance is not finite.
    """
    done = frozenset(swap.block for swap in before)
    while left := [block.name for block in pair.blocks if block.name not in done]:
        distances = measured(pair, batches, [done | {name} for name in left])
        wrong = [name for name, value in zip(left, distances, strict=True) if not math.isfinite(value)]
        if wrong:
            raise LeapformerError(
                f"with {wrong[0]} replaced the distance is no number; align with a lower --align-rate"
            )
        least, name = min(zip(distances, left, strict=True))
        done |= {name}
        yield Swap(name, least)


def kept(swaps: Sequence[Swap], count: int, largest: float | None = None) -> Names:
    """Return the blocks that keep the teacher's attention: the last `count` of `swaps`.

    With `largest`, keep as few as possible with a distance of at most `largest`, whatever `count` is.
    """
    if largest is not None:
        count = len(swaps) - max((i + 1 for i, swap in enumerate(swaps) if swap.distance <= largest), default=0)
    return frozenset(swap.block for swap in swaps[len(swaps) - count :])
