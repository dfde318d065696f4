"""Covering arrays: tests over several factors try every pair of values instead of every combination.

Faults that need three particular values at once are rare (the fuzzers draw those); all combinations of five factors
are thousands of cases. `--all` restores the whole product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

whole_products = False  # set by conftest.py for --all


def covering(
    where: Callable[..., bool] | None = None, ids: Callable[[Any], Any] | None = None, /, **factors: Sequence[Any]
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` over `factors`: rows that contain every pair of values of every two factors.

    where: whether a combination is possible, called with the factors by name; pairs without any possible row are
    dropped.
    """
    rows = _possible(where, factors)
    chosen = rows if whole_products else pairwise(rows)
    values = chosen if len(factors) > 1 else [row[0] for row in chosen]
    return pytest.mark.parametrize(",".join(factors), values, ids=ids)


def in_turn(where: Callable[..., bool] | None = None, /, **factors: Sequence[Any]) -> pytest.MarkDecorator:
    """As `covering`, but each value of the first factor comes once, with the others' values in turn."""
    rows = _possible(where, factors)
    alike = [[row for row in rows if row[0] is value] for value in next(iter(factors.values()))]
    chosen = rows if whole_products else [own[place % len(own)] for place, own in enumerate(alike) if own]
    return pytest.mark.parametrize(",".join(factors), chosen)


def _possible(where: Callable[..., bool] | None, factors: Mapping[str, Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The whole product, without the combinations that `where` excludes."""
    rows = product(*factors.values())
    return [row for row in rows if where is None or where(**dict(zip(factors, row, strict=True)))]


def pairwise(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A small subset of `rows`, in their order, that has every pair of values which occurs in two of their columns.

    Greedy: the next row is one of those with the most pairs that are still missing. Deterministic.
    """
    coded = _as_numbers(rows)
    columns = list(combinations(range(len(rows[0])), 2)) if rows else []
    pairs = [{(a, b, row[a], row[b]) for a, b in columns} or {row} for row in coded]
    missing = set().union(*pairs)
    chosen: list[int] = []
    # Buckets by an upper bound of what a row adds, which only falls: most rows are never looked at twice.
    bound = [len(one) for one in pairs]
    by_bound: dict[int, list[int]] = {}
    for at in range(len(rows) - 1, -1, -1):
        by_bound.setdefault(bound[at], []).append(at)
    gain = max(by_bound, default=0)
    while missing and gain:
        bucket = by_bound.get(gain, [])
        if not bucket:
            gain -= 1
            continue
        at = bucket.pop()
        adds = len(pairs[at] & missing)
        if adds == gain:
            chosen.append(at)
            missing -= pairs[at]
        elif adds:
            by_bound.setdefault(adds, []).append(at)
    return [rows[at] for at in sorted(chosen)]


def _as_numbers(rows: Sequence[tuple[Any, ...]]) -> list[tuple[int, ...]]:
    """The rows with each value replaced by its place among those of its column: values need not be hashable."""
    seen: list[list[Any]] = [[] for _ in rows[0]] if rows else []
    coded = []
    for row in rows:
        for values, value in zip(seen, row, strict=True):
            if not any(value is other for other in values):
                values.append(value)
        coded.append(tuple(next(i for i, other in enumerate(v) if other is x) for v, x in zip(seen, row, strict=True)))
    return coded


def shared_out(values: Sequence[Any], place: int, among: int = 3) -> list[Any]:
    """The part of `values` for one of several tests that run all values through like code; with --all, all of them.

    Tests at the places 0 to `among` - 1 see every value once.
    """
    return list(values) if whole_products else list(values[place::among])


def each_with_one(values: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every value with one of `others`, in turn; with --all, with all of them.

    For what runs a part that is tested by itself, for instance every mechanism, in several surroundings.
    """
    rows = [other if isinstance(other, tuple) else (other,) for other in others]
    if whole_products:
        return [(value, *other) for value in values for other in rows]
    return [(value, *rows[i % len(rows)]) for i, value in enumerate(values)]


def kept(values: Iterable[Any], *always: Any) -> list[Any]:
    """`values` for parametrize, of which all but `always` belong to the full tier; a tuple is of several arguments."""
    return [
        value
        if value in always
        else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.full)
        for value in values
    ]
