"""The picture of a recipe's scores: values read back from the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leapformer_fairseq.scoring.pictures.scores import LONGEST, distinct_options, runs_figure
from leapformer_fairseq.scoring.runs import compare
from tests.scoring.pictures.images import texts


def run(attention: str, bleu: float, seed: int = 1, options: str = "--lr 1", test_set: str = "test") -> dict[str, Any]:
    found = {"attention": attention, "seed": seed, "options": options, "set": test_set, "run": f"{attention}{seed}"}
    return {**found, "scores": {"BLEU": bleu, "chrF": 50.0}, "model": {}}


RUNS = [run("softmax", 30.0), run("leap", 28.0), run("leap", 31.0, seed=2), run("relu/softmax/softmax", 29.0)]


def points(axes: Any) -> dict[str, tuple[float, list[float]]]:
    """{label: (mean, [least, greatest])} of a panel."""
    labels = [label.get_text() for label in axes.get_yticklabels()]
    found = {}
    for container in axes.containers:
        dot, _, (bar,) = container
        (mean,), (place,) = dot.get_data()
        found[labels[place]] = (mean, bar.get_segments()[0][:, 0].tolist())
    return found


def test_dots_are_means_and_bars_reach_from_least_to_greatest() -> None:
    (axes,) = runs_figure(compare(RUNS), "A Title").finish().axes
    assert points(axes) == {
        "softmax": (30.0, [30.0, 30.0]),
        "LeaPformer": (29.5, [28.0, 31.0]),
        "ReLU attention / softmax / softmax": (29.0, [29.0, 29.0]),
    }
    assert [line.get_xdata() for line in axes.lines if line.get_linestyle() == ":"] == [[30.0, 30.0]]
    assert axes.get_xlabel() == "BLEU"


def test_a_panel_for_each_set_and_options_where_they_differ(tmp_path: Path) -> None:
    more = [
        *RUNS,
        run("leap", 20.0, options="--lr 2"),
        *(run(name, 10.0, test_set="other") for name in ("leap", "relu", "elu")),
    ]
    figure = runs_figure(compare(more), "A Title")
    assert "A Title" in figure.save(tmp_path / "runs.svg") and "LeaPformer" in texts(tmp_path / "runs.svg")
    other, test = figure.drawing.axes
    assert (other.get_title("left"), test.get_title("left")) == ("other", "test")
    assert points(other)["LeaPformer"][0] == 10.0 and points(test)["LeaPformer\n--lr 2"][0] == pytest.approx(20.0)
    assert len(runs_figure(compare([*RUNS, *more[-3:-2]]), "A Title").finish().axes) == 1, "one point shows nothing"


def test_a_label_has_the_options_of_its_own_alone() -> None:
    shared, path = "--arch tiny --adam-betas (0.9,0.98)", "a" * 30 + "/softmax-seed1/model/checkpoint_best.pt"
    more = f"{shared} --beam 5 --start {path}"
    rows = compare([run("softmax", 30.0, options=shared), run("t2r", 31.0, options=more)])
    assert distinct_options(rows) == [[], ["--beam 5", f"--start …{path[-LONGEST:]}"]]
