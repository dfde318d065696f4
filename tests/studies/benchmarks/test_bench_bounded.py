"""The benchmark of bounded memories: what it writes, and that what it compares with is the same function."""

from __future__ import annotations

import json

import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies.benchmarks import bounded, measure

CPU = measure.Place(torch.device("cpu"))
NAMES = ["abc-mlp", "abc-cluster", "luna"]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(bounded, "QUICK_CASES", (16, 24))
    monkeypatch.setattr(bounded, "LONGEST_CUMULATIVE", 16)
    monkeypatch.setattr(bounded, "SECONDS", 0.1)
    monkeypatch.setattr(bounded, "TOKENS", 48)
    peaks = {"sdpa": 2 * measure.MIB}
    monkeypatch.setattr(measure, "in_fresh_process", lambda _, name, *arguments: peaks.get(name, 3 * measure.MIB))


def test_it_writes_both_files(tiny, tmp_path, capsys):
    assert main(["bench", "bounded", "--quick", "--out", str(tmp_path), "--mechanisms", *NAMES, "--device", "cpu"]) == 0
    found = json.loads((tmp_path / "bounded.json").read_text())
    assert found["benchmark"] == "bounded" and found["environment"]["threads"] == 1
    timed = [(row["length"], row["mechanism"]) for row in found["times"]]
    assert timed == [(n, name) for n in (16, 24) for name in ("sdpa", "abc-mlp", "luna")], "a cluster is not causal"
    assert [(row["length"], row["mechanism"]) for row in found["cumulative"]] == [
        (16, name) for name in ("cumulative sums", "abc-mlp", "luna")
    ]
    times = {(row["length"], row["mechanism"]): row for row in found["times"]}
    for length in (16, 24):
        base, own = times[length, "sdpa"], times[length, "abc-mlp"]
        assert base["ratio"] == 1 and own["ratio"] == pytest.approx(base["ms"] / own["ms"])
    memory = {(row["length"], row["mechanism"]): row["ratio"] for row in found["memory"]}
    assert memory[16, "cumulative sums"] == 1.5 and (24, "cumulative sums") not in memory
    report = (tmp_path / "bounded.md").read_text()
    assert found["signature"] in report and "times as fast as cumulative sums" in report
    assert "Forward and backward" in capsys.readouterr().out


def test_the_cumulative_sums_are_the_same_function_with_the_same_gradients(monkeypatch):
    monkeypatch.setattr(bounded, "TOKENS", 140)
    mechanism = bounded.make("abc-mlp").double()
    inputs = [x.double().detach().requires_grad_() for x in bounded._inputs(70, CPU)]
    grad = torch.randn_like(inputs[0])
    results = []
    for attend in (lambda *qkv: bounded.cumulative(mechanism, *qkv), lambda *qkv: bounded._causal(mechanism, *qkv)):
        out = attend(*inputs)
        results.append([out, *torch.autograd.grad(out, [*inputs, *mechanism.parameters()], grad)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_cumulative_sums_hold_a_memory_for_every_prefix():
    """What they are slow for: a tensor of size N x n x d; the mechanism makes none."""
    kept = {}
    for name in (bounded.CUMULATIVE, "abc-mlp"):
        sizes = []
        system, inputs = bounded.system(name, CPU), bounded._inputs(512, CPU)
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=sizes: to.append(x.numel()) or x, lambda x: x):
            system.attend(*inputs)
        kept[name] = max(sizes)
    whole = 512 * bounded.SLOTS * bounded.HEAD_DIM * bounded.HEADS * len(bounded._inputs(512, CPU)[0])
    assert kept[bounded.CUMULATIVE] >= whole and kept["abc-mlp"] < whole / 8


def test_aims_are_asked_of_the_learned_control_alone():
    times = {"sdpa": 2.0, "cumulative sums": 30.0, "abc-mlp": 1.0, "luna": 4.0}
    against_softmax = bounded.compared(times, "sdpa", 4096, CPU, bounded.AIMS)
    assert [(row["mechanism"], row["ratio"], row["aim"]) for row in against_softmax] == [
        ("sdpa", 1.0, None), ("abc-mlp", 2.0, 1.0), ("luna", 0.5, None),
    ]  # fmt: skip
    against_sums = bounded.compared(times, "cumulative sums", 1024, CPU, bounded.CUMULATIVE_AIMS)
    assert [row["aim"] for row in against_sums] == [None, 10.0, None]
    assert bounded.compared({"sdpa": 1.0}, "cumulative sums", 1024, CPU, {}) == []
    assert bounded.compared(times, "sdpa", 4096, measure.Place.parse("cpu bfloat16"), bounded.AIMS)[1]["aim"] is None
