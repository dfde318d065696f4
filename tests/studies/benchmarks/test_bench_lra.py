"""`leapformer bench lra`: all rows train, what is measured is what it says, and wrong mechanisms are not measured."""

from __future__ import annotations

import json

import pytest
import torch

from leapformer_fairseq.attention import Mechanism, find
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.modules import MechanismAttention
from leapformer_fairseq.studies.benchmarks import lra, measure
from leapformer_fairseq.studies.lra import composite, protocols
from leapformer_fairseq.support.errors import LeapformerError
from tests.compiler import needs_compiler
from tests.covering import shared_out

CPU = measure.Place(torch.device("cpu"))
PROTOCOLS = protocols.LEAPFORMER, protocols.LUNA


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tables_reach_the_longest_text(protocol):
    for name, row in lra.rows(protocol).items():
        limits = [value for option, value in row.train.items() if option.endswith("-max-length")]
        assert all(limit >= lra.LENGTHS[-1] for limit in limits), name


def test_the_rows_of_both_papers_with_the_models_of_each():
    """The first has Luna's rows, too, all with LeaPformer's model; the axis of Luna's figure 1 is of Luna's."""
    both, luna = (lra.measured(protocol) for protocol in PROTOCOLS)
    assert {"leap", "cosformer", "luna-16", "sinkhorn"} <= set(both) and "leap" not in luna
    assert {"softmax", lra.MATERIALISED, "luna-16", "luna-128", "luna-256", "performer", "local"} <= set(luna)
    sizes = {}
    for protocol in PROTOCOLS:
        for name in ("softmax", "luna-16"):
            model = lra.system(name, "text", CPU, protocol).model
            layer = model.encoder.layers[0]
            sizes[protocol, name] = len(model.encoder.layers), layer.embed_dim, layer.normalize_before
            assert model.args.attention_dropout == 0 and model.args.max_positions == lra.LENGTHS[-1]
    assert sizes == {
        ("leapformer", "softmax"): (2, 64, True),
        ("leapformer", "luna-16"): (2, 64, True),
        ("luna", "softmax"): (4, 256, True),
        ("luna", "luna-16"): (4, 256, False),
    }


def test_cases_of_luna_are_of_its_text_task_alone():
    cases = [case.about for case in lra.cases(["softmax"], [CPU], False, "luna")]
    assert len(cases) == 2 * len(lra.LENGTHS) and not any("pathfinder" in case for case in cases)
    assert any("pathfinder" in case.about for case in lra.cases(["softmax"], [CPU], False))


def test_the_enlarged_cosformer_and_s4d_are_timed():
    """So that our runs of tables 8 and 9 have an RCPmem, too."""
    enlarged = {"cosformer-total", "cosformer-body", "s4d"}
    assert enlarged <= set(lra.measured())
    widths = {name: lra.system(name, "text", CPU).model.encoder.layers[0].fc1.out_features for name in sorted(enlarged)}
    assert widths == {"cosformer-body": 143, "cosformer-total": 200, "s4d": 128}


@pytest.mark.full
def test_results_beside_softmax_and_cosformer(tmp_path, monkeypatch):
    monkeypatch.setattr(lra, "SECONDS", 0.2)
    monkeypatch.setattr(lra, "QUICK_LENGTHS", (24, 48))
    measured = measure.in_fresh_process  # one of eight: a new process takes seconds
    monkeypatch.setattr(
        measure,
        "in_fresh_process",
        lambda *call: measured(*call) if call[1:3] == (lra.MATERIALISED, 24) else 2**20,
    )
    names = [lra.BASELINE, lra.MATERIALISED, lra.COSFORMER, lra.LEAP]
    options = ["--quick", "--device", "cpu", "--mechanisms", *names, "--out", str(tmp_path)]
    assert main(["bench", "lra", *options]) == 0
    found = json.loads((tmp_path / "lra.json").read_text())
    for section, base in (("softmax", lra.BASELINE), ("cosformer", lra.COSFORMER), ("memory", lra.MATERIALISED)):
        rows = {(row["length"], row["mechanism"]): row for row in found[section]}
        assert rows.keys() == {(length, name) for length in (24, 48) for name in names}
        assert all(rows[length, base]["ratio"] == 1 for length in (24, 48))
    assert "tasks" not in found, "not in quick runs"
    assert found["cases_left"] == 0
    assert "times as fast as softmax" in (tmp_path / "lra.md").read_text()
    bench = composite.read_bench(tmp_path / "lra.json")
    assert bench.length == 48 and bench.speeds.keys() == bench.memory.keys() == set(names)
    assert bench.protocol == found["options"]["protocol"] == "leapformer"


def test_what_was_measured_before_an_interruption_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(lra, "SECONDS", 0.2)
    monkeypatch.setattr(lra, "QUICK_LENGTHS", (24,))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(lra, "_memory", interrupted)
    options = ["--quick", "--device", "cpu", "--mechanisms", lra.BASELINE, lra.LEAP, "--out", str(tmp_path)]
    assert main(["bench", "lra", *options]) == 130
    found = json.loads((tmp_path / "lra.json").read_text())
    assert [row["mechanism"] for row in found["softmax"]] == [lra.BASELINE, lra.LEAP] and "memory" not in found
    with pytest.raises(LeapformerError, match=r"lra.json was interrupted, 1 cases are left; measure it again"):
        composite.read_bench(tmp_path / "lra.json")
    report = (tmp_path / "lra.md").read_text()
    assert "times as fast as softmax" in report and "Peak memory" not in report
    assert "1 of 2 cases are measured" in report


@pytest.mark.parametrize(
    ("name", "protocol"),
    [*((name, "leapformer") for name in shared_out([*lra.measured()], 0)), ("luna-16", "luna")],
)
def test_every_row_trains_a_step(name, protocol):
    measured = lra.system(name, "text", CPU, protocol)
    tokens, target = lra.inputs("text", 2, 70, CPU)
    before = [x.clone() for x in measured.model.parameters() if x.requires_grad]
    lra.train(measured, tokens, target)
    after = [x for x in measured.model.parameters() if x.requires_grad]
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_materialised_softmax_is_softmax_with_all_weights(monkeypatch):
    """The same function; the weights are made where it says so, and only there."""
    models, calls = [], []
    real = Mechanism._reference
    monkeypatch.setattr(Mechanism, "_reference", lambda self, x: calls.append(1) or real(self, x))
    tokens, _ = lra.inputs("text", 2, 40, CPU)
    for name in (lra.BASELINE, lra.MATERIALISED):
        models.append(lra.system(name, "text", CPU).model.eval())
    models[1].load_state_dict(models[0].state_dict())
    plain, made = models[0]([tokens]), None
    assert not calls
    made = models[1]([tokens])
    layers = sum(isinstance(module, MechanismAttention) for module in models[1].modules())
    assert len(calls) == layers == 2
    torch.testing.assert_close(made, plain, atol=1e-5, rtol=1e-5)


def test_no_row_runs_its_layers_again():
    """The same policy for all: the paper's softmax alone did."""
    for name in lra.measured():
        assert not lra.system(name, "text", CPU).model.args.checkpoint_activations


@pytest.mark.parametrize("kernel", [pytest.param(True, marks=needs_compiler), False])
def test_a_wrong_training_form_is_a_disagreement(monkeypatch, request, kernel):
    names = (lra.COSFORMER,) if kernel else (lra.COSFORMER, "linformer", "bigbird")
    form = "_whole" if kernel else "_in_segments"
    if not kernel:
        request.getfixturevalue("in_pytorch")
    assert all(lra.disagreement(name) is None for name in names)
    mechanisms = [find(lra._mechanism(name)[0]) for name in names]
    for mechanism in mechanisms:
        real = getattr(mechanism, form)
        monkeypatch.setattr(mechanism, form, lambda self, x, real=real: real(self, x) * 1.001)
    for name in names:
        assert "its training form differs from its reference by" in (lra.disagreement(name) or "")


def test_what_is_no_row_is_not_measured(capsys):
    assert main(["bench", "lra", "--quick", "--mechanisms", "linformer-3"]) == 2
    assert "--mechanisms linformer-3: choose from softmax, softmax, materialised" in capsys.readouterr().err
    assert main(["bench", "lra", "--quick", "--protocol", "luna", "--mechanisms", "leap"]) == 2
    assert "--mechanisms leap: choose from softmax, softmax, materialised, local" in capsys.readouterr().err
