"""Figure 1: circles stand where their row is, their areas are memory, and no name covers another."""

from __future__ import annotations

from itertools import combinations

import pytest

from leapformer_fairseq.scoring.pictures.lra import LARGEST, tradeoff_figure
from leapformer_fairseq.studies.lra import composite


@pytest.mark.parametrize("paper", ["leapformer", "luna"])
def test_rows_of_the_papers(paper):
    found = composite.published("paper", paper)
    points = found.points()
    figure = tradeoff_figure(points, found.source)
    (axes,) = figure.axes
    for circle, (_, speed, accuracy, memory) in zip(axes.collections, points, strict=True):
        assert circle.get_offsets().tolist() == [[speed, accuracy]]
        assert circle.get_sizes().tolist() == [pytest.approx(LARGEST * memory)]
    assert {text.get_text() for text in axes.texts} == {name for name, *_ in points}
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert "area: peak memory" in axes.get_title()


def test_without_memory_all_circles_are_equal():
    figure = tradeoff_figure([("a", 1.0, 50.0, None), ("b", 2.0, 40.0, None)], "t")
    sizes = {tuple(circle.get_sizes()) for circle in figure.axes[0].collections}
    assert len(sizes) == 1 and figure.axes[0].get_title() == "t"
