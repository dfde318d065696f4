"""Sparsity, recall and precision of graphs that can be counted by hand."""

from __future__ import annotations

import pytest
import torch

from leapformer_fairseq.attention import CAUSAL
from leapformer_fairseq.studies.sparsefinder.measures import Measures, measure, measure_windows
from leapformer_fairseq.studies.sparsefinder.report import best_at, front, thinned, with_gold


def graph(text):
    """Rows of x and . as (1, T, S)."""
    return torch.tensor([[letter == "x" for letter in row] for row in text.split()]).unsqueeze(0)


def test_by_hand_over_all_pairs():
    gold = graph("xx. .x. ..x")
    predicted = graph("x.x .x. x..")
    found = measure(predicted, gold, torch.ones(3, 3, dtype=torch.bool))
    assert [float(x) for x in found] == pytest.approx([1 - 4 / 9, 2 / 4, 2 / 4, 1 / 3])


def test_by_hand_over_the_causal_pairs():
    """The denominator is n (n + 1) / 2, and an edge to a later token does not count."""
    gold = graph("x.. xx. x.x")
    predicted = graph("xxx xx. ..x")
    found = measure(predicted, gold, CAUSAL.mask(3, 3))
    assert [float(x) for x in found] == pytest.approx([1 - 4 / 6, 4 / 5, 4 / 4, 2 / 3])


def test_queries_without_an_edge_do_not_count_as_exact():
    gold, predicted = graph("x. .."), graph("x. ..")
    assert float(measure(predicted, gold, torch.ones(2, 2, dtype=torch.bool)).exact) == 1


def test_an_empty_prediction():
    gold = graph("x. .x")
    found = measure(torch.zeros_like(gold), gold, torch.ones(2, 2, dtype=torch.bool))
    assert [float(x) for x in found] == [1, 0, 1, 0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 5, 17])
def test_windows_are_counted_as_if_they_were_drawn(causal, queries):
    keys = 17
    seen = CAUSAL.after(keys - queries).mask(queries, keys) if causal else torch.ones(queries, keys, dtype=torch.bool)
    gold = (torch.rand(3, queries, keys) < 0.2) & seen
    gold[:, :, 0] = True
    predicted = torch.rand(3, queries, keys) < 0.1
    windows = (0, 1, 3, 7, 33, 512)
    found = measure_windows(predicted, gold, seen, windows)
    away = (torch.arange(keys - queries, keys).unsqueeze(1) - torch.arange(keys)).abs()
    for i, window in enumerate(windows):
        with_window = predicted | ((away <= window // 2) & (window > 0))
        expected = measure(with_window, gold, seen)
        for name in Measures._fields:
            torch.testing.assert_close(getattr(found, name)[i], getattr(expected, name), rtol=0, atol=1e-12)
    assert (found.recall[-1] == 1).all() and (found.sparsity[-1] == 0).all()


def row(sparsity, recall):
    return {"sparsity": sparsity, "recall": recall}


def test_a_front_holds_what_nothing_beats():
    rows = [row(0.9, 0.2), row(0.5, 0.9), row(0.5, 0.8), row(0.8, 0.2), row(0.7, 0.6), row(0.6, 0.6), row(0.1, 1.0)]
    assert front(rows, "recall") == [row(0.1, 1.0), row(0.5, 0.9), row(0.7, 0.6), row(0.9, 0.2)]
    perplexity = [{"sparsity": s, "ppl": p} for s, p in ((0.9, 9.0), (0.5, 4.0), (0.6, 4.0), (0.7, 9.5))]
    assert [one["ppl"] for one in front(perplexity, "ppl", larger=False)] == [4.0, 9.0]


def test_recall_at_a_sparsity_is_the_best_of_at_least_that():
    rows = [row(0.95, 0.3), row(0.85, 0.7), row(0.81, 0.6), row(0.7, 0.9)]
    assert best_at(rows, 0.8) == 0.7 and best_at(rows, 0.6) == 0.9 and best_at(rows, 0.99) is None


def test_a_thinned_front_keeps_its_ends():
    rows = [row(i / 10, 1 - i / 10) for i in range(11)]
    assert thinned(rows, 20) == rows
    few = thinned(rows, 4)
    assert len(few) == 4 and few[0] == rows[0] and few[-1] == rows[-1]


def test_the_point_at_the_gold_sparsity_is_among_those_that_are_scored():
    rows = [row(0.1, 1.0), row(0.5, 0.9), row(0.7, 0.6), row(0.9, 0.2)]
    few = thinned(rows, 2)
    assert with_gold(few, rows, 0.6) == [rows[0], rows[3], rows[2]]
    assert with_gold(few, rows, 0.8) == with_gold(few, rows, 0.95) == few
    assert with_gold([], rows, 0.6) == []
