"""Figure 1: circles stand where their row is, their areas are memory, and no name covers another."""

from __future__ import annotations

import pytest

from leapformer_fairseq.scoring.pictures.scores import LARGEST, tradeoff_figure
from leapformer_fairseq.studies.lra import composite
from tests.scoring.pictures.images import overlapping


@pytest.mark.parametrize("paper", ["leapformer", "luna"])
def test_rows_of_the_papers(paper):
    found = composite.published("paper", paper)
    figure = tradeoff_figure(found.content())
    (axes,), rows = figure.finish().axes, sorted(found.rows.items(), key=lambda row: -row[1].accuracy)
    baseline = found.rows["softmax"]
    for circle, (_, row) in zip(axes.collections, rows, strict=True):
        assert circle.get_offsets().tolist() == [[row.speed / baseline.speed, row.accuracy]]
        assert circle.get_sizes().tolist() == [pytest.approx(LARGEST * row.memory / baseline.memory)]
    assert {text.get_text() for text in axes.texts} == set(found.titles.values())
    assert overlapping(figure.drawing) == [] and "area: peak memory" in axes.get_title("left").replace("\n", " ")


def test_without_memory_all_circles_are_equal():
    rows = {name: {"speed": 1.0, "accuracy": 50.0, "memory": None} for name in ("softmax", "a", "b")}
    (axes,) = tradeoff_figure({"source": "t", "rows": rows}).finish().axes
    assert len({tuple(circle.get_sizes()) for circle in axes.collections}) == 1 and axes.get_title("left") == "t"
