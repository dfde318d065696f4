"""The benchmark of whole targets; CTranslate2, where it is installed, does what fairseq does."""

from __future__ import annotations

import json

import pytest
import torch
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies.benchmarks import ctranslate, decode, measure, targets

CPU = measure.Place(torch.device("cpu"))


def test_what_is_written(monkeypatch, tmp_path):
    make = decode.make
    small = {"layers": 1, "width": 32, "ffn": 32}
    monkeypatch.setattr(targets, "make", lambda name, place, **options: make(name, place, **small, **options))
    monkeypatch.setattr(targets, "WIDTH", 32)
    monkeypatch.setattr(targets, "SECONDS", 0.1)
    monkeypatch.setattr(measure, "exports", lambda place: False)  # `bench decode` exports in its test
    command = ["bench", "targets", "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "--device", "cpu"]
    assert main(command) == 0
    rows = json.loads((tmp_path / "targets.json").read_text())["targets"]
    times = {row["mechanism"]: row["ms"] for row in rows}
    assert {"fairseq", "softmax", "leap"} <= set(times) and min(times.values()) > 0
    assert (targets.CTRANSLATE2 in times) == ctranslate.is_installed()
    prompts = json.loads((tmp_path / "targets.json").read_text())["prompts"]
    assert {row["mechanism"] for row in prompts} == {"fairseq", "softmax", *targets.READERS}
    assert all(row["ratio"] == pytest.approx(times["fairseq"] / row["ms"]) for row in rows)


@pytest.mark.skipif(not ctranslate.is_installed(), reason="CTranslate2 is not installed")
def test_ctranslate2_has_the_weights_of_fairseq():
    """Without a beam, since CTranslate2 does not count the end of targets that were cut."""
    torch.manual_seed(3)
    decoder = decode.make("fairseq", CPU, layers=2, width=32, ffn=48)
    made, encoder = ctranslate.translator(decoder)
    model, words = TransformerModelBase(decoder.cfg, encoder, decoder), decoder.dictionary
    generator = SequenceGenerator([model], words, beam_size=1, max_len_a=0, max_len_b=9, min_len=9)
    for source in ctranslate.texts(words, 5, 7):
        tokens = torch.tensor([[*(words.index(word) for word in source), words.eos()]])
        sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([8])}}
        best = generator.generate([model], sample)[0][0]["tokens"]
        ends = [[*source, words.eos_word]]
        assert ctranslate.translate(made, ends, 1, 9) == [words.string(best).split()]
