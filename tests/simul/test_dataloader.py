"""What SimulEval is given to read."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
import soundfile

pytest.importorskip("simuleval")
from simuleval.data.dataloader import build_dataloader  # noqa: E402

import leapformer_fairseq.simul.agent  # noqa: E402, F401
from leapformer_fairseq.support.errors import LeapformerError  # noqa: E402


def lists(folder, wavs, references):
    (folder / "source").write_text("\n".join(map(str, wavs)) + "\n", encoding="utf-8")
    (folder / "target").write_text("\n".join(references) + "\n", encoding="utf-8")
    return Namespace(
        source=folder / "source", target=folder / "target", tgt_lang=None, source_type="speech", target_type="text"
    )


def wav(path, samples, rate=16_000):
    soundfile.write(path, samples, rate)
    return path


def test_samples_are_those_of_the_file(tmp_path):
    samples = np.linspace(-0.5, 0.5, 400, dtype=np.float32)
    loader = build_dataloader(lists(tmp_path, [wav(tmp_path / "a.wav", samples)], ["ein Satz"]))
    item = loader[0]
    np.testing.assert_allclose(item["source"], samples, atol=1e-4)
    assert isinstance(item["source"], list) and item["target"] == "ein Satz"


def test_a_file_is_decoded_once_for_all_questions(tmp_path, monkeypatch):
    from leapformer_fairseq.simul import dataloader

    calls = []
    monkeypatch.setattr(dataloader, "read_speech", lambda name: calls.append(name) or np.zeros(3))
    loader = build_dataloader(lists(tmp_path, ["a.wav", "b.wav"], ["x", "y"]))
    for index in (0, 0, 0, 1, 1):
        loader[index]
    assert calls == ["a.wav", "b.wav"]


def truncated(path):
    wav(path, np.zeros(4000))
    path.write_bytes(path.read_bytes()[:20])
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: p, "no audio file"),
        (truncated, "cannot be read"),
        (lambda p: wav(p, np.zeros((400, 2))), "2 channels"),
        (lambda p: wav(p, np.zeros(400), 8000), "8000 Hz"),
        (lambda p: wav(p, np.zeros(0)), "no samples"),
    ],
)
def test_a_bad_file_is_named_with_the_reason(tmp_path, make, reason):
    path = make(tmp_path / "bad.wav")
    loader = build_dataloader(lists(tmp_path, [path], ["x"]))
    with pytest.raises(LeapformerError, match=rf"bad\.wav.*{reason}|{reason}.*bad\.wav"):
        loader[0]


def test_lists_of_different_length_are_refused(tmp_path):
    with pytest.raises(LeapformerError, match="lists 1 recordings, --target 2 references"):
        build_dataloader(lists(tmp_path, ["a.wav"], ["x", "y"]))
