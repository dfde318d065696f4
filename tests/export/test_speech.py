"""Exported text to speech: what PyTorch says, where the pre-net drops the same units."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.export.check import compared_synthesis
from leapformer_fairseq.export.synthesis import Phonemes, SpeechStep
from leapformer_fairseq.export.write import quantize
from leapformer_fairseq.runtime.__main__ import main as runtime
from leapformer_fairseq.runtime.folder import MODEL, SELF, Folder
from leapformer_fairseq.runtime.spoken import Manner, Script
from leapformer_fairseq.runtime.voice import ExportedVoice, kept
from leapformer_fairseq.support.errors import LeapformerError

from ..exported import LENGTHS, MELS, synthesizer, voice, write_voice
from ..models.tiny import make_tts


@pytest.mark.parametrize("plan", ["leap", "relu", "rope", "simple-gla-conv", "delta", "hedgehog", "with lengths"])
def test_steps_equal_the_decoders(plan):
    """In float64, for two sentences of which one is padded."""
    options = {"encoder_self_attention": "softmax", "decoder_cross_attention": "leap"}
    if plan == "with lengths":
        plan, options = "cosformer", {"encoder_self_attention": "softmax", **LENGTHS}
    model = make_tts(plan, **options).requires_grad_(False)
    tokens, frames = torch.tensor([[5, 6, 7, 8, 2], [9, 8, 2, 1, 1]]), torch.randn(5, 2, 1, 12, dtype=torch.double)
    source, step = Phonemes(model), SpeechStep(model.decoder)
    read = source(tokens)
    own = [torch.zeros(2, *shape, dtype=torch.double) for shape in step.layers.shapes[SELF].values()]
    encoded, memory = model.forward_encoder(tokens, torch.tensor([5, 3])), dict[str, object]()
    units = torch.ones(len(model.decoder.prenet[0].layers), 2, 1, 16, dtype=torch.double)
    for t, given in enumerate(frames, 1):
        with torch.no_grad():
            _, end, extra = model.decoder(given, encoded, memory, torch.full((2,), t))
        with torch.enable_grad():  # as in the graph
            found, ended, own = step(given, torch.full((2, 1), t), units, own, read)
        assert float((found - extra["feature_out"]).abs().max()) < 1e-10
        assert float((ended - end[:, :, 0].sigmoid()).abs().max()) < 1e-10


@pytest.fixture(scope="module")
def made() -> tuple[Any, ExportedVoice]:
    """A model of three speakers with dropout, whose frames were normalised, and its voice."""
    return voice()


@pytest.fixture
def exported(made) -> ExportedVoice:
    return made[1]


@pytest.fixture
def alone(exported, tmp_path) -> Path:
    """The folder of the same voice as if it had one speaker, whose name nobody knows."""
    path = shutil.copytree(exported.folder.path, tmp_path / "alone")
    replace(exported.folder, path=path, speaking=replace(exported.speaking, speakers=None)).write()
    return path


def same(model, voice):
    """Whether random sentences are spoken alike."""
    found = compared_synthesis(model, voice, 5, max_steps=9)
    return found.equal == 5 and found.error < 2e-4


def test_speech_is_pytorchs(made):
    """Of all speakers, with predicted lengths."""
    model, voice = made
    assert same(model, voice)
    assert not same(synthesizer(seed=1).float(), voice)
    assert voice.say([5, 6, 7, 8, 2], Manner(max_steps=2), np.random.default_rng(0)).predicted == 6.5
    assert not same(synthesizer(length_ratio=5.0).float(), voice)
    model.encoder.embed_speaker.weight.data.mul_(2)
    assert not same(model, voice)
    model.encoder.embed_speaker.weight.data.div_(2)


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{}, {"encoder_transformer_layers": 2, "decoder_transformer_layers": 2}], ids=["1", "2"]
)
def test_voices_of_one_speaker(options, tmp_path):
    model = synthesizer(speakers=0, decoder_cross_attention="leap", length_predictor=None, **options)
    write_voice(model, tmp_path)
    assert same(model, ExportedVoice(Folder.read(tmp_path)))


def test_several_speakers(exported, tmp_path, capsys):
    """By name on the command line and in a manifest."""
    command = ["tts", "--path", str(exported.folder.path), "--max-steps", "2", "--eos-threshold", "0.99"]
    said = {}
    for name in ("ann", "bob"):
        out = tmp_path / name
        assert main([*command, "--phonemes", "w1 w2", "--speaker", name, "--out", str(out)]) == 0
        said[name] = np.load(out / "mel" / "0001.npy")
    assert not np.allclose(said["ann"], said["bob"])
    (tmp_path / "config.yaml").write_text("audio_root: /somewhere\n")
    for name in ("bob", "dan"):
        (tmp_path / "test.tsv").write_text(f"id\taudio\tn_frames\ttgt_text\tspeaker\n0001\tx.npy\t4\tw1 w2\t{name}\n")
        given = ["--subset", "test", "--data", str(tmp_path), "--out", str(tmp_path / f"list_{name}")]
        assert main([*command, *given]) == (0 if name == "bob" else 2)
    assert np.array_equal(np.load(tmp_path / "list_bob" / "mel" / "0001.npy"), said["bob"])
    assert "does not know the speaker 'dan'" in capsys.readouterr().err
    for options, message in (
        (["--phonemes", "w1", "--speaker", "dan"], "--speaker dan: the model knows ann, bob, cid"),
        (["--subset", "test", "--speaker", "bob"], "leave it out"),
    ):
        assert main([*command, *options, "--out", str(tmp_path / "no")]) == 2
        assert message in capsys.readouterr().err


def test_units_are_dropped_and_the_rest_made_up_for(exported):
    rng = np.random.default_rng(0)
    drawn = np.concatenate([kept(exported.speaking, rng) for _ in range(500)], 1)
    assert drawn.shape == (2, 500, 1, 16) and set(np.unique(drawn)) == {0.0, np.float32(4 / 3)}
    assert abs(float(drawn.mean()) - 1) < 0.02


def test_what_is_said_depends_on_seed_and_place_only(exported):
    scripts, manner = [Script(name, "w1 w2 w9") for name in "abc"], Manner(0.99, max_steps=4)
    said = {script.id: one.frames for script, one in exported.speak(scripts, manner)}
    assert said["a"].shape == (8, 6) and not np.array_equal(said["a"], said["b"])
    ((script, one),) = exported.speak(scripts, manner, done={"a", "c"})
    assert script.id == "b" and np.array_equal(one.frames, said["b"])
    ((_, other),) = exported.speak(scripts, Manner(0.99, max_steps=4, seed=2), done={"a", "c"})
    assert not np.array_equal(other.frames, said["b"])
    raw = exported.say(exported.numbers(scripts[1]), manner, np.random.default_rng([1, 1]))
    np.testing.assert_allclose(said["b"], raw.frames * 2 + np.arange(6), rtol=1e-5)


def test_the_commands_need_neither_torch_nor_fairseq(exported, tmp_path):
    code = (
        "import sys\nfor name in ('torch', 'fairseq', 'onnx'): sys.modules[name] = None\n"
        "from leapformer_fairseq.runtime.__main__ import main\n"
        f"sys.exit(main([{str(exported.folder.path)!r}, '--phonemes', 'w1 w2', '--out', {str(tmp_path)!r}, "
        "'--max-steps', '3', '--eos-threshold', '0.99']))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    samples, rate = soundfile.read(tmp_path / "wav" / "0001.wav")
    assert rate == 8000 and len(samples) == 5 * 20
    assert main(["tts", "--path", str(exported.folder.path), "--phonemes", "w1 w2", "--out", str(tmp_path / "again"),
                 "--max-steps", "3", "--eos-threshold", "0.99"]) == 0  # fmt: skip
    assert np.array_equal(samples, soundfile.read(tmp_path / "again" / "wav" / "0001.wav")[0])
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["model"]["checkpoint"] == "model" and about["features"] == MELS.features()
    assert "secret" not in (exported.folder.path / MODEL).read_text()


def test_a_manifest_needs_its_data(exported, alone, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("audio_root: /somewhere\n")
    header = ("id", "audio", "n_frames", "tgt_text", "speaker", "recording")
    with (tmp_path / "test.tsv").open("w") as file:
        csv.writer(file, delimiter="\t").writerows([header, ("one", "x.npy", "4", "w1 w2", "ann", "wav/one.wav")])
    options = ["--out", str(tmp_path / "out"), "--max-steps", "2"]
    command = ["tts", "--path", str(alone), *options]
    assert (
        main(["tts", "--path", str(exported.folder.path), *options, "--subset", "test", "--data", str(tmp_path)]) == 0
    )
    assert "/somewhere/wav/one.wav" in (tmp_path / "out" / "manifest.tsv").read_text()
    capsys.readouterr()
    assert runtime([str(alone), *options, "--subset", "test"]) == 2
    assert "--subset is an option of `leapformer tts`; pip install" in capsys.readouterr().err
    for options, message in (
        (["--subset", "test"], "give --data, too"),
        (["--subset", "test", "--data", str(tmp_path / "no")], "cannot be read"),
        (["--phonemes", "w1", "--speaker", "ann"], "the model knows one speaker"),
        (["--phonemes", "w1 x"], "does not know the phoneme 'x'"),
        (["--phonemes", "w1", "--model-overrides", "{'length_predictor': 'oracle'}"], "stays as it is"),
    ):
        assert main([*command, *options]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_8_bits(exported, tmp_path):
    shutil.copytree(exported.folder.path, tmp_path, dirs_exist_ok=True)
    folder = Folder.read(tmp_path)
    folder = quantize(folder)
    before, after = (
        voice.say([5, 6, 2], Manner(max_steps=3), np.random.default_rng(0)).frames
        for voice in (exported, ExportedVoice(folder))
    )
    assert 0 < np.abs(after - before).max() < 0.3 * np.abs(before).max()


def test_what_cannot_be_exported(tmp_path):
    for plan, options, message in (
        ("cosformer", {"length_predictor": "oracle"}, "--length-predictor oracle needs the targets"),
        ("cosformer", {"length_ratio": 0.0}, "the ratio of target and source lengths is unknown"),
    ):
        with pytest.raises(LeapformerError, match=message):
            write_voice(make_tts(plan, **({**LENGTHS, **options} if options else {})), tmp_path)
