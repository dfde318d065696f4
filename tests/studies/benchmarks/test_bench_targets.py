"""The benchmark of whole targets: what it writes, and that systems with the same weights write the same."""

from __future__ import annotations

import json

import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies.benchmarks import decode, measure, targets

SMALL = {"LAYERS": 1, "WIDTH": 32, "FFN": 32, "WORDS": 40, "LONGEST": 64}
CASE = targets.Case(2, 1, 9, 7)


@pytest.fixture
def small(monkeypatch):
    make = decode.make
    sizes = {"layers": 1, "width": 32, "ffn": 32}
    monkeypatch.setattr(targets, "make", lambda name, place, **options: make(name, place, **sizes, **options))
    monkeypatch.setattr(targets, "SECONDS", 0.1)
    for name, value in SMALL.items():
        monkeypatch.setattr(targets, name, value)
    made = targets.in_torch, targets.exported, targets.model_of
    for function in made:
        function.cache_clear()
    yield
    for function in made:
        function.cache_clear()


def test_what_is_written(small, monkeypatch, tmp_path):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(measure, "exports", lambda place: False)  # `bench decode` exports in its test
    command = ["bench", "targets", "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "--device", "cpu"]
    monkeypatch.setattr(targets, "QUICK_PROMPTS", ())
    assert main(command) == 0
    found = json.loads((tmp_path / "targets.json").read_text())
    times = {row["mechanism"]: row["ms"] for row in found["targets"]}
    assert list(times) == ["fairseq", "softmax", "leap", "CTranslate2", "CTranslate2 (8 bits)"]
    assert min(times.values()) > 0
    assert all(row["ratio"] == pytest.approx(times["fairseq"] / row["ms"]) for row in found["targets"])


def test_so_many_threads_measure(monkeypatch, tmp_path):
    def cases(names, places, quick, threads):
        seen = lambda: {"ms": float(torch.get_num_threads()), "ratio": float(threads)}  # noqa: E731
        yield measure.Case(
            "a case", lambda: {"targets": [{"device": "cpu", "case": "x", "mechanism": "fairseq", **seen()}]}
        )

    monkeypatch.setattr(targets, "cases", cases)
    monkeypatch.setattr(targets, "disagreement", lambda name: None)
    assert main(["bench", "targets", "--out", str(tmp_path), "--threads", "2"]) == 0
    found = json.loads((tmp_path / "targets.json").read_text())
    assert found["environment"]["threads"] == 2 and "|threads:2|" in found["signature"]
    assert (found["targets"][0]["ms"], found["targets"][0]["ratio"]) == (2, 2)
    assert main(["bench", "targets", "--out", str(tmp_path), "--threads", "0"]) == 2


def test_prompts(small, monkeypatch):
    monkeypatch.setattr(measure, "exports", lambda place: False)
    rows = targets.prompts(20, measure.Place(torch.device("cpu")), 0.01)
    assert {row["mechanism"] for row in rows} == {"fairseq", "softmax", *targets.READERS}
    assert all(row["ratio"] == pytest.approx(rows[0]["ms"] / row["ms"]) for row in rows)


def test_systems_with_the_same_weights_write_the_same(small, monkeypatch):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(measure, "exports", lambda place: False)
    torch.manual_seed(3)
    sources = targets.texts(CASE)
    for weights in targets.model_of("fairseq").parameters():
        torch.nn.init.normal_(weights)  # else it repeats a word
    systems = {**targets.exported(1), **targets.in_torch(())}
    expected = systems["fairseq"](sources, CASE)
    assert [len(text) for text in expected] == [9, 9] and expected[0] != expected[1]
    assert systems["softmax"](sources, CASE) == expected == systems["CTranslate2"](sources, CASE)


@pytest.mark.full
def test_exported_models_write_what_the_model_writes(small):
    torch.manual_seed(3)
    sources = targets.texts(CASE)
    for weights in targets.model_of("leap").parameters():
        torch.nn.init.normal_(weights)
    exported = targets.exported(1)["leap (exported)"]
    assert exported(sources, CASE) == targets.in_torch(("leap",))["leap"](sources, CASE)


def test_from_which_length_on_leap_is_faster(monkeypatch):
    times = {
        "leap (exported)": [4, 3, 2, 2], "CTranslate2": [1, 3, 3, 5],
        "leap (8 bits)": [1, 1, 4, 9], "CTranslate2 (8 bits)": [2, 2, 2, 2],
    }  # fmt: skip
    counts = (10, 20, 50, 100)
    rows = lambda case, *_: [  # noqa: E731
        {"mechanism": name, "target": case.target, "ms": ms[counts.index(case.target)]} for name, ms in times.items()
    ]
    monkeypatch.setattr(targets, "_rows", rows)
    monkeypatch.setattr(targets, "exported", lambda threads: {})
    found = targets.lengths(1, counts, 1.0, 1)["crossings"]
    assert [(row["mechanism"], row["tokens"]) for row in found] == [("leap (exported)", 50), ("leap (8 bits)", "none")]


def test_slow_rounds_are_not_repeated():
    calls = iter(range(9))
    assert measure.medians({"one": lambda: (float(next(calls)),)}, 0.0, once=0.0) == {"one": (0.0,)}
    assert measure.medians({"one": lambda: (float(next(calls)),)}, 0.0) == {"one": (3.0,)}
