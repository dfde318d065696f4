"""`leapformer bench sparse`: what is measured is what it says, and wrong blocks are not measured."""

from __future__ import annotations

import json

import pytest
import torch

from leapformer_fairseq.attention.ops import blocks
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies.benchmarks import measure, sparse

CPU = measure.Place(torch.device("cpu"))


def test_results_beside_both_baselines(tmp_path, monkeypatch):
    monkeypatch.setattr(sparse, "SECONDS", 0.2)
    monkeypatch.setattr(sparse, "QUICK_CASES", ((96, 2),))
    assert main(["bench", "sparse", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "sparse.json").read_text())
    for section, base in (("sorted", sparse.SORTED), ("softmax", sparse.SOFTMAX)):
        rows = {row["mechanism"]: row for row in found[section]}
        assert rows[base]["ratio"] == 1 and rows["sparsefinder-block1"]["selection_ms"] > 0
        assert rows[sparse.RANDOM]["selection_ms"] == 0
        assert {row["case"] for row in found[section]} == {"2 of 3 blocks"}
    assert "in the pattern" in (tmp_path / "sparse.md").read_text()


def test_all_systems_are_entmax_over_as_many_blocks_as_they_say(monkeypatch):
    graphs = []
    real = sparse.Blocked.attend
    monkeypatch.setattr(
        sparse.Blocked, "attend", lambda self, *x, **more: graphs.append((x[3], more["ends"])) or real(self, *x, **more)
    )
    torch.manual_seed(1)
    for call in sparse.systems(list(sparse.MECHANISMS_MEASURED), 12 * sparse.SIZE, 3, CPU).values():
        with torch.no_grad():
            call()
    assert len(graphs) == 1 + 2 * len(sparse.MECHANISMS_MEASURED)
    for graph, ends in graphs:
        rows = graph.sum(-1)
        assert bool((rows <= (8 if ends else 3)).all(0)[:, 1:-1].all())
        assert ends or int(rows.max()) == 3


@pytest.mark.parametrize("name", sparse.MECHANISMS_MEASURED)
def test_wrong_blocks_are_a_disagreement(name, monkeypatch):
    assert sparse.disagreement(name) is None
    real = blocks.gathered
    monkeypatch.setattr(blocks, "gathered", lambda x, chosen: real(x, chosen.roll(1, -2)))
    assert "differ from the masked matrix" in (sparse.disagreement(name) or "")


def test_what_has_no_blocks_is_not_measured(capsys):
    assert main(["bench", "sparse", "--quick", "--mechanisms", "softmax"]) == 2
    assert "it has no blocks; choose from: entmax-bigbird-blocks, sparsefinder-block1" in capsys.readouterr().err
