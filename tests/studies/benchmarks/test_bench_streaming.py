"""The benchmark of streaming: what it writes, and that it translates as an agent does."""

from __future__ import annotations

import json

import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.simul.engine import IncrementalEngine, RecomputeEngine
from leapformer_fairseq.studies.benchmarks import measure, streaming

CPU = measure.Place(torch.device("cpu"))
SIZES = {"encoder_layers": 2, "decoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24}


@pytest.fixture
def tiny(monkeypatch):
    sizes = {**SIZES, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    make = streaming.make

    def small(system, place):
        return make(streaming.System(system.mechanism, {**system.encoder, **sizes}), place)

    monkeypatch.setattr(streaming, "make", small)
    monkeypatch.setattr(streaming, "SECONDS", 0.1)
    monkeypatch.setattr(streaming, "LONGEST_ANEW", 2.0)


@pytest.mark.full
def test_it_writes_both_files(tiny, tmp_path, capsys):
    command = ["bench", "streaming", "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "--device", "cpu"]
    assert main(command) == 0
    found = json.loads((tmp_path / "streaming.json").read_text())
    systems = [f"{name}, {way}" for name in ("softmax", "leap") for way in ("anew", "causal", "chunks")]
    systems.append("leap, chunks, exported")
    times = {(row["length"], row["mechanism"]): row for row in found["utterances"]}
    assert [name for length, name in times if length == 1.4] == systems
    assert [name for length, name in times if length == 2.8] == [name for name in systems if "anew" not in name]
    base, own = times[1.4, streaming.BASE], times[1.4, "leap, causal"]
    assert own["ratio"] == pytest.approx(base["seconds"] / own["seconds"]) and own["per_second"] > 0
    assert times[2.8, "leap, causal"]["ratio"] is None
    grown = {row["mechanism"]: row["ratio"] for row in found["growth"]}
    expected = times[2.8, "leap, chunks"]["per_second"] / times[1.4, "leap, chunks"]["per_second"]
    assert grown["leap, chunks"] == pytest.approx(expected) and grown[streaming.BASE] == 1
    assert [row["mechanism"] for row in found["tokens"]] == [name for name in systems if "anew" not in name]
    report = (tmp_path / "streaming.md").read_text()
    assert found["signature"] in report and "times as fast as softmax encoded anew" in report
    assert "A token" in capsys.readouterr().out


def test_a_translation_is_an_agents(tiny):
    """Every frame is fed, a token is written after each arrival from the third on, and three at the end."""
    for name, kind in (("leap, anew", RecomputeEngine), ("leap, causal", IncrementalEngine)):
        model = streaming.make(streaming.systems_of(["leap"])[name], CPU)
        engine = streaming.translate(streaming.begin(model), streaming.noise(1.4))
        assert type(engine) is kind and engine.n_frames == 140 and engine.finished
        assert engine.n_tokens == 140 // 28 - 2 + 3
        assert engine.times.encoder_passes == (3 if kind is RecomputeEngine else 4)  # the last frames, and their end


@pytest.mark.full
def test_the_exported_system_translates_alike(tiny):
    model = streaming.make(streaming.systems_of(["leap"])[streaming.EXPORTED], CPU)
    frames = streaming.noise(2.1)
    engines = [streaming.translate(one(model), frames) for one in (streaming.begin, streaming.begin_exported)]
    assert engines[0].tokens == engines[1].tokens and engines[1].n_frames == 210


def test_growth_and_tokens_are_aimed_at_from_above():
    rows = [
        {"mechanism": name, "length": length, "per_second": cost}
        for name, costs in (("leap, causal", (1.0, 1.3)), ("leap, anew", (1.0, 9.0)))
        for length, cost in zip((5.6, 60.2), costs, strict=True)
    ]
    found = streaming.growth(rows, CPU)
    assert [(row["ratio"], row["aim"]) for row in found] == [(1.3, 1.1), (9.0, None)]
    from leapformer_fairseq.studies.benchmarks.tables import missed

    assert missed({"growth": found}) == ["leap, causal, longest to shortest, cost: 1.30, aim at most 1.1"]
