"""The picture of an ablation shows what was measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from leapformer_fairseq.scoring.figure import Figure
from leapformer_fairseq.scoring.pictures.scores import ablation_figure
from leapformer_fairseq.studies.ablation import report
from leapformer_fairseq.studies.ablation.search import Candidate, Result, Slot, replaced
from leapformer_fairseq.studies.ablation.study import BASELINE, COMBINATION, REFUSED, REPLACEMENT, Run, Settings, Study
from tests.scoring.pictures.images import overlapping, texts

ENCODER, DECODER = Slot("encoder-self", 0, 2), Slot("decoder-self", 0, 2)
SOFTMAX = {"encoder-self": ("softmax", "softmax"), "decoder-self": ("softmax", "softmax")}
LOSSES = {(ENCODER, "leap"): 5.1, (ENCODER, "relu"): 5.2, (DECODER, "leap"): 4.9, (DECODER, "relu"): None}


def result(loss: float | None) -> Result | None:
    return None if loss is None else Result(loss, 100.0, 1, 10, 1000, "signature")


@pytest.fixture
def study() -> Study:
    training = SimpleNamespace(metric="loss", args=SimpleNamespace(arch="a"), command=lambda *_: [])
    runs = [Run(SOFTMAX, BASELINE, result=result(5.0))]
    for (slot, mechanism), loss in LOSSES.items():
        candidate = Candidate(slot, mechanism)
        runs.append(Run(replaced(SOFTMAX, candidate), REPLACEMENT, candidate, result=result(loss)))
    runs[-1].status = REFUSED
    recommended = replaced(replaced(SOFTMAX, Candidate(ENCODER, "relu")), Candidate(DECODER, "leap"))
    runs.append(Run(recommended, COMBINATION, result=result(5.05)))
    return Study(Path("out"), training, Settings(), runs, recommended)


def figure(study: Study) -> Figure:
    content = {"arch": "leapformer_nmt", "metric": "loss", "settings": asdict(study.settings)}
    return ablation_figure({**content, "rows": report.rows(study)})


def lines(study: Study) -> dict[str, list]:
    """Label -> lines; what has no label is ringed."""
    axes = figure(study).panels[0].axes
    found: dict[str, list] = {}
    for line in axes.get_lines():
        found.setdefault("" if line.get_fillstyle() == "none" else line.get_label(), []).append(line)
    return found


def test_every_loss_is_in_its_place(study):
    found = lines(study)
    assert list(found["LeaPformer"][0].get_ydata()) == [5.1, 4.9] and list(found["ReLU attention"][0].get_ydata()) == [
        5.2
    ]
    assert [round(x) for x in found["LeaPformer"][0].get_xdata()] == [0, 1]
    assert found["LeaPformer"][0].get_xdata()[0] < found["ReLU attention"][0].get_xdata()[0]
    assert list(found["baseline softmax"][0].get_ydata()) == [5.0, 5.0]
    axes = figure(study).panels[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["encoder-self", "decoder-self", "recommended"]


def test_what_is_recommended_is_marked(study):
    found = lines(study)
    assert sorted(ring.get_ydata()[0] for ring in found[""]) == [4.9, 5.2]
    (star,) = found["recommended: ReLU attention / LeaPformer"]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2, 5.05)
    assert not any(label.startswith("given up") for label in found)


def test_a_combination_that_was_given_up_is_marked_as_such(study):
    study.recommended = study.runs[2].plan
    (star,) = lines(study)["given up: ReLU attention / LeaPformer"]
    assert star.get_ydata()[0] == 5.05
    study.recommended = None
    assert "" not in lines(study), "no rings"


def test_groups_of_layers_are_named(study):
    study.settings = Settings(layer_groups=2)
    axes = figure(study).panels[0].axes
    assert axes.get_xticklabels()[0].get_text() == "encoder-self\nlayers 1–2"


def test_it_can_be_drawn_at_any_time(study, tmp_path):
    assert overlapping(figure(study).finish()) == []
    assert figure(study).save(tmp_path / "whole.svg") and "baseline softmax" in texts(tmp_path / "whole.svg")
    for run in study.runs:
        run.result = None
    assert figure(study).save(tmp_path / "empty.svg").startswith("No picture") and len(list(tmp_path.iterdir())) == 1
