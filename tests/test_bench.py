"""The attention benchmark: what it writes, what it refuses, and that its measuring instruments measure."""

import json
import time

import pytest
import torch

from leapformer_fairseq.attention import forms
from leapformer_fairseq.benchmarks import attention, measure, tables
from leapformer_fairseq.cli.main import main

CPU = torch.device("cpu")
TINY = [attention.Case("causal", 24, 24), attention.Case("bidirectional", 24, 24), attention.Case("wait-k", 8, 60)]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(attention, "QUICK_CASES", TINY)
    monkeypatch.setattr(attention, "SECONDS", 0.1)
    peaks = {"sdpa": 2 * measure.MIB}
    monkeypatch.setattr(measure, "in_fresh_process", lambda _, name, *arguments: peaks.get(name, 3 * measure.MIB))


@pytest.fixture
def wrong_gradients(monkeypatch):
    right = forms.Chunks.gradients

    def gradients(self, grad, grad_after):
        dq, dk, dv, first = right(self, grad, grad_after)
        return dq, dk * 1.001, dv, first

    monkeypatch.setattr(forms.Chunks, "gradients", gradients)


def test_quick_writes_both_files(tiny, tmp_path, capsys):
    out = tmp_path / "deep" / "er"
    assert (
        main(["bench", "attention", "--quick", "--out", str(out), "--mechanisms", "leap", "rope", "--device", "cpu"])
        == 0
    )
    found = json.loads((out / "attention.json").read_text())
    assert found["options"] == {"seed": 1, "quick": True, "devices": "cpu"} and found["environment"]["threads"] == 1
    assert found["signature"].endswith("seed:1|quick:True|devices:cpu") and "CPU time" in found["method"]

    rows = {(row["case"], row["mechanism"], row["form"]): row for row in found["times"]}
    timed = [("sdpa", "sdpa"), *(("leap", form) for form in ("auto", "parallel", "chunkwise", "recompute"))]
    timed += [("rope", form) for form in ("auto", "parallel", "chunkwise")]
    assert set(rows) == {(str(case), *form) for case in TINY for form in timed}
    for row in rows.values():
        assert 0 < row["forward_ms"] < row["forward_backward_ms"]
        assert (row["device"], row["batch"]) == ("cpu", 2048 // row["keys"])
    assert rows["causal 24", "sdpa", "sdpa"]["ratio"] == 1
    assert [(row["mechanism"], row["form"]) for row in found["steps"]] == [
        (n, "step") for n in ("softmax", "leap", "rope")
    ]
    assert [(row["mechanism"], row["ratio"]) for row in found["memory"]] == [("sdpa", 1), ("leap", 1.5), ("rope", 1.5)]

    report, printed = (out / "attention.md").read_text(), capsys.readouterr()
    assert found["signature"] in report and "| causal 24" in report and "wait-k 8/60" in printed.out
    assert "cpu: causal 24" in printed.err, "progress"


def test_a_mechanism_with_a_wrong_form_is_refused(tiny, tmp_path, capsys, wrong_gradients):
    out = tmp_path / "bench"
    arguments = ["bench", "attention", "--quick", "--out", str(out), "--mechanisms", "leap"]
    assert main(arguments) == 1
    assert not out.exists()
    error = capsys.readouterr().err
    assert error.startswith(
        "leapformer: error: leap is not measured: its chunkwise form differs from the parallel one by"
    )


def test_the_others_are_still_measured(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(attention, "disagreement", {"leap": "it is wrong", "relu": None}.get)
    arguments = ["bench", "attention", "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "relu"]
    assert main(arguments) == 1
    assert "error: leap is not measured: it is wrong\n" in capsys.readouterr().err
    assert {row["mechanism"] for row in json.loads((tmp_path / "attention.json").read_text())["times"]} == {
        "sdpa",
        "relu",
    }


@pytest.mark.parametrize("name", attention.MECHANISMS_MEASURED)
def test_registered_mechanisms_agree(name):
    assert attention.disagreement(name) is None


def test_a_nan_is_a_disagreement(monkeypatch):
    monkeypatch.setattr(forms, "normalize", lambda sums, floor: sums[..., :-1] * float("nan"))
    assert "nan" in (attention.disagreement("relu") or "")


def test_user_errors(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["bench", "attention", "--mechanisms", "sofmax"]) == 2
    assert "unknown attention mechanism 'sofmax'; choose from: cosformer" in capsys.readouterr().err
    assert main(["bench", "attention", "--device", "abacus"]) == 2
    assert "--device abacus is not here; choose from: cpu" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made(tiny, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["bench", "attention", "--quick", "--mechanisms", "relu", "--out", str(tmp_path / "file")]
    assert main(arguments) == 2
    assert "cannot be made: " in capsys.readouterr().err


def test_aims_belong_to_measured_cases():
    assert set(attention.AIMS) <= set(attention.CASES)
    assert attention.AIMS_MECHANISM in attention.MECHANISMS_MEASURED


def test_missed_aims_are_listed():
    common = {"mechanism": "leap", "case": "causal 512"}
    times = [
        {**common, "ratio": 1.5, "aim": 1.6},
        {**common, "ratio": 1.7, "aim": 1.6},
        {**common, "ratio": 0.1, "aim": None},
    ]
    memory = [
        {**common, "peak_mib": 1.0, "ratio": 1.3, "aim": 1.2},
        {**common, "peak_mib": 1.0, "ratio": 1.1, "aim": 1.2},
    ]
    assert tables.missed({"times": times, "steps": [], "memory": memory}) == [
        "leap, causal 512, speed: 1.50, aim at least 1.6",
        "leap, causal 512, memory: 1.30, aim at most 1.2",
    ]


def test_medians_take_turns_and_ignore_the_first_round():
    order = []

    def call(name, values):
        order.append(name)
        return (values.pop(0), 1.0)

    slow, fast = [100.0, 3.0, 5.0, 4.0], [100.0, 1.0, 1.0, 2.0]
    found = measure.medians({"slow": lambda: call("slow", slow), "fast": lambda: call("fast", fast)}, seconds=0)
    assert found == {"slow": (4.0, 1.0), "fast": (1.0, 1.0)}
    assert order == ["slow", "fast"] * 4


def test_the_clock_counts_work_and_not_waiting():
    start = measure.clock(CPU)
    time.sleep(0.2)
    waited = measure.clock(CPU) - start
    assert waited < 0.1


def test_one_thread_is_undone():
    before = torch.get_num_threads()
    with measure.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def grow(mebibytes):
    with measure.peak_growth(CPU) as growth:
        for _ in range(2):
            torch.ones(mebibytes * measure.MIB, dtype=torch.uint8)
    return growth()


def test_memory_of_attention_is_at_least_its_results():
    case = attention.Case("causal", 16384, 16384)
    peak = measure.in_fresh_process(attention.peak_above_inputs, "relu", case, "cpu")
    if peak is None:
        pytest.skip("this system does not tell the peak of a process")
    # The output and the gradients of q, k and v in float32. Large, because what the process held before is used first.
    results = 4 * case.queries * attention.HEADS * attention.HEAD_DIM * 4
    assert 0.9 * results < peak < 3 * results


def test_peak_growth_of_a_fresh_process():
    """Peaks, not sums; and nothing of what the process that asks has ever held."""
    held = torch.ones(300 * measure.MIB, dtype=torch.uint8)
    grown = measure.in_fresh_process(grow, 64)
    if grown is None:
        pytest.skip("this system does not tell the peak of a process")
    assert len(held) and 60 < grown / measure.MIB < 75
