"""Covering arrays hold every pair, and nothing that is impossible."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from . import covering as module
from .covering import covering, each_with_one, pairwise

FACTORS = [
    [f"mechanism{i}" for i in range(20)],
    ["reference", "scan", "step"],
    ["causal", "none", "wait-3"],
    [True, False],
]


def pairs(rows):
    return {(a, b, row[a], row[b]) for row in rows for a, b in combinations(range(len(row)), 2)}


@pytest.mark.parametrize("factors", (FACTORS, FACTORS[:2], FACTORS[:1]), ids=len)
def test_every_pair_in_few_rows(factors):
    rows = list(product(*factors))
    chosen = pairwise(rows)
    assert pairs(chosen) == pairs(rows) and {row[0] for row in chosen} == set(factors[0])
    assert len(chosen) <= 1.2 * len(factors[0]) * len(factors[1] if factors[1:] else [0])
    assert chosen == pairwise(rows)  # the same in every worker


def test_impossible_rows_are_left_out():
    def where(form, mask):
        return (form, mask) != ("step", "none")

    mark = covering(where, form=FACTORS[1], mask=FACTORS[2])
    assert set(mark.args[1]) == {row for row in product(*FACTORS[1:3]) if row != ("step", "none")}


def test_the_full_tier_has_all_rows(monkeypatch):
    monkeypatch.setattr(module, "whole_products", False)
    factors = {"mechanism": FACTORS[0], "form": FACTORS[1], "mask": FACTORS[2]}
    assert len(covering(**factors).args[1]) < 80
    monkeypatch.setattr(module, "whole_products", True)
    assert covering(**factors).args[1] == list(product(*factors.values()))


def test_values_without_a_hash():
    rows = list(product([{"a": 1}, {"a": 2}], [[1], [2]]))
    assert pairwise(rows) == rows


def test_every_value_has_one_of_the_others(monkeypatch):
    monkeypatch.setattr(module, "whole_products", False)
    assert each_with_one("abc", [1, 2]) == [("a", 1), ("b", 2), ("c", 1)]
    assert each_with_one("ab", [(1, 3), (2, 4)]) == [("a", 1, 3), ("b", 2, 4)]
    monkeypatch.setattr(module, "whole_products", True)
    assert each_with_one("ab", [1, 2]) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
