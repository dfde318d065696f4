"""`leapformer maps` on checkpoints of tiny untrained models, as fairseq's trainer writes them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.modules.capture import capture, choose
from leapformer_fairseq.scoring.pictures.inputs import Request, examples, load
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import kept
from tests.models.tiny import dictionary
from tests.scoring.pictures.images import texts
from tests.untrained import save_checkpoint

HEADS = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder for all tasks."""
    root = tmp_path_factory.mktemp("maps")
    for name in ("dict.txt", "dict.de.txt", "dict.en.txt"):
        dictionary().save(str(root / name))
    (root / "config.yaml").write_text(yaml.safe_dump({"vocab_filename": "dict.txt"}))
    soundfile.write(root / "a.wav", 0.1 * np.random.default_rng(0).normal(size=8000), 16_000)
    soundfile.write(root / "fast.wav", np.zeros(8000), 44_100)
    for name, audio in (("some", "a.wav"), ("other", "dict.txt"), ("gone", "none.wav")):
        (root / f"{name}.tsv").write_text(f"id\taudio\tn_frames\ttgt_text\nx\t{root}/{audio}\t48\tw1 w2 w3\n")
    return root


@pytest.fixture(scope="module")
def lm(data) -> Path:
    flags = ("--tokens-per-sample", "64", "--decoder-self-attention", "leap,relu")
    return save_checkpoint(data / "lm.pt", data, "leapformer_lm_tiny", *flags, task="language_modeling")


@pytest.fixture(scope="module")
def nmt(data) -> Path:
    flags = ("--source-lang", "de", "--target-lang", "en", "--decoder-self-attention", "softmax")
    return save_checkpoint(data / "nmt.pt", data, "leapformer_nmt_tiny", *flags, task="translation")


@pytest.fixture(scope="module")
def speech(data) -> Path:
    return save_checkpoint(data / "st.pt", data, "leapformer_simulst_tiny", "--waitk-lagging", "2")


def run(*arguments) -> int:
    return main(["maps", *map(str, arguments)])


def test_command_on_a_language_model(lm, tmp_path, capsys):
    (tmp_path / "text").write_text("w1 w2 w3 nonsense\n\nw4 w5\nw6\n")
    out = tmp_path / "deep" / "er"
    assert run("--path", lm, "--input", tmp_path / "text", "--lines", 2, "--max-length", 4, "--out", out) == 0
    names = ["decoder-self_layer1_attention", "decoder-self_layer1_reweighting", "decoder-self_layer2_attention"]
    assert sorted(path.stem for path in out.glob("*.svg")) == [*names, "proportions"]
    for path in out.glob("*.svg"):
        assert texts(path)
    printed, rows = capsys.readouterr(), json.loads((out / "proportions.json").read_text())["rows"]
    assert [(row["layer"], row["mechanism"], row["side"], row["count"]) for row in rows] == [
        (1, "leap", side, HEADS * (4 + 3)) for side in ("query", "key")
    ]
    assert "1 of 4 tokens are not in" in printed.err and "text cut from 5 to 4 tokens" in printed.err
    assert "decoder-self" in printed.out and "below 0.05" in printed.out and f"4 pictures in {out}" in printed.out


@pytest.mark.full
def test_command_on_a_masked_language_model(data, tmp_path, capsys):
    flags = ("--tokens-per-sample", "64", "--encoder-self-attention", "leap,softmax")
    model = save_checkpoint(data / "mlm.pt", data, "leapformer_mlm_tiny", *flags, task="masked_lm")
    assert run("--path", model, "--input", "w1 <mask> w3", "--out", tmp_path) == 0
    names = ["encoder-self_layer1_attention", "encoder-self_layer1_reweighting", "encoder-self_layer2_attention"]
    assert sorted(path.stem for path in tmp_path.glob("*.svg")) == [*names, "proportions"]
    (sentence,) = examples(*load(str(model)), Request("w1 <mask> w3 w4 w5", max_length=5))
    read, same = sentence.axes("encoder-self")
    assert read.tokens == same.tokens == ["<s>", "w1", "<mask>", "w3", "</s>"]
    assert "text cut from 6 to 4 tokens" in sentence.notes
    with pytest.raises(LeapformerError, match="--target is for translation models"):
        next(examples(*load(str(model)), Request("w1", "w2")))


def test_command_without_proportions(lm, tmp_path, capsys):
    assert run("--path", lm, "--input", "w1 w2", "--layer", 2, "--head", 0, "--out", tmp_path) == 0
    assert "No mechanism here has proportions" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["decoder-self_layer2_attention.svg"]


def test_command_on_a_translation_model(nmt, tmp_path, capsys):
    arguments = ("--path", nmt, "--input", "w1 w2 w3", "--layer", 1, "--out", tmp_path)
    assert run(*arguments, "--target", "w9 w8", "--block", "decoder-cross") == 0
    assert len(list(tmp_path.glob("decoder-cross_layer1_*.svg"))) == 2 and not capsys.readouterr().err
    assert run(*arguments, "--max-length", 12, "--block", "decoder-self") == 0
    assert "sentence 1: the model's own translation: w" in capsys.readouterr().err
    assert {path.name for path in tmp_path.glob("decoder-self*")} == {"decoder-self_layer1_attention.svg"}


def test_sentences_of_a_translation_model(nmt):
    model, task = load(str(nmt))
    (one,) = examples(model, task, Request("w1 w2 w3", "w9 w8", max_length=3))
    words = {name: getattr(one, name).tokens for name in ("source", "read", "written")}
    assert words == {"source": ["w1", "w2", "</s>"], "read": ["</s>", "w9", "w8"], "written": ["w9", "w8", "</s>"]}
    assert one.notes == ["source cut from 3 to 2 tokens"]
    found = capture(model, one.batch, choose(model))
    shapes = {one.block: tuple(one.weights().shape[1:]) for one in found}
    assert shapes == {"encoder-self": (3, 3), "decoder-self": (3, 3), "decoder-cross": (3, 3)}
    assert one.axes("decoder-cross") == (one.written, one.source)


def test_the_own_translation_is_what_greedy_search_writes(nmt):
    model, task = load(str(nmt))
    (one,) = examples(model, task, Request("w1 w2 w3", max_length=9))
    with torch.no_grad():
        logits, _ = model(**one.batch)
    logits[..., [task.target_dictionary.pad()]] = -math.inf
    best = logits[0].argmax(-1).tolist()
    assert [task.target_dictionary[i] for i in best][: len(best) - 1] == one.written.tokens[:-1]


@pytest.mark.parametrize("name", kept(["a.wav", "some.tsv"], "a.wav"))
def test_command_on_a_speech_model(speech, data, name, tmp_path, capsys):
    more = ("--block", "decoder-cross", "--layer", 1, "--max-length", 10, "--out", tmp_path)
    target = ("--target", "w1 w2 w3") if name == "a.wav" else ()
    assert run("--path", speech, "--input", data / name, *target, *more) == 0
    assert "audio cut from 48 to 40 frames of 10 ms" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*.svg"))) == 3
    rows = json.loads((tmp_path / "proportions.json").read_text())["rows"]
    assert {row["side"]: row["count"] for row in rows} == {"query": HEADS * 4, "key": HEADS * 10}


def test_a_speech_model_translates_itself(speech, data):
    model, task = load(str(speech))
    (one,) = examples(model, task, Request(str(data / "a.wav"), max_length=6))
    assert one.notes[-1].startswith("the model's own translation: ") and 1 <= len(one.written.tokens) <= 6


def test_subwords(lm, data, tmp_path):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["w1w2", "w2w1 w3"] * 20), model_prefix=str(tmp_path / "spm"), vocab_size=9,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    symbols = [line.split("\t")[0] for line in (tmp_path / "spm.vocab").read_text().splitlines()][3:]
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    flags = ("--tokens-per-sample", "64")
    path = save_checkpoint(tmp_path / "c.pt", tmp_path, "leapformer_lm_tiny", *flags, task="language_modeling")
    (one,) = examples(*load(str(path)), Request("w1w2 w3", subwords=str(tmp_path / "spm.model")))
    assert "".join(one.read.tokens[1:]) == "▁w1w2▁w3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "w1", "--block", "middle"), "--block middle: there is no such block; choose from: decoder-self"),
        (("--input", "w1", "--block", "decoder-cross"), "this model has no such block"),
        (("--input", "w1", "--layer", "7"), "--layer 7: there is no such layer"),
        (("--input", "w1", "--layer", "first"), "--layer first: give a number, counted from 1, or all"),
        (("--input", "w1", "--head", "9"), "--head 9: decoder-self has heads 0 to 1"),
        (("--input", "missing.txt"), "'missing.txt' is neither a file nor text with a token of the model's"),
        (("--input", "  "), "no text in it"),
        (("--input", "w1", "--target", "w1"), "--target is for translation models"),
        (("--input", "w1", "--lines", "0"), "--lines 0: give at least 1"),
        (("--input", "w1", "--max-length", "1"), "--max-length 1: give at least 2"),
        (("--input", "w1", "--subwords", "none.model"), "--subwords none.model is not a sentencepiece model"),
        (
            ("--input", "w1", "--data", "nowhere"),
            "the data of .* cannot be read .*; give the folder with the dictionary",
        ),
        (("--input", "w1", "--path", "none.pt"), "no file none.pt; check --path"),
    ],
)
def test_errors_are_one_line(arguments, message, lm, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("--path", lm, "--out", tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("leapformer: error: ")
    assert re.search(message, error)


def test_files_that_do_not_serve(lm, nmt, speech, data, tmp_path):
    with pytest.raises(LeapformerError, match="cannot be read as a fairseq checkpoint"):
        load(str(data / "a.wav"))
    recurrent = save_checkpoint(tmp_path / "c.pt", data, "lstm_lm", task="language_modeling")
    with pytest.raises(LeapformerError, match="'lstm_lm'; leapformer maps needs leapformer_lm"):
        load(str(recurrent))
    dictionary(12).save(str(tmp_path / "dict.txt"))
    with pytest.raises(LeapformerError, match="dictionary gives 16; use the data folder"):
        load(str(lm), str(tmp_path))
    (tmp_path / "two").write_text("w1\nw2\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    nmt, speech = load(str(nmt)), load(str(speech))
    for model, request, message in [
        (nmt, Request("w1", str(tmp_path / "two")), "--input has 1 lines, --target 2"),
        (nmt, Request(str(tmp_path / "bytes")), "is not UTF-8"),
        (speech, Request(str(data / "fast.wav")), "sampled at 44100 Hz"),
        (speech, Request(str(data / "none.wav")), "no audio file at"),
        (speech, Request(str(data / "none.tsv")), "cannot be read as a manifest"),
        (speech, Request(str(data / "some.tsv"), "w1"), "a manifest has its own"),
        (speech, Request(str(data / "other.tsv")), "dict.txt cannot be read .*; check --input, and audio_root"),
        (speech, Request(str(data / "gone.tsv")), "none.wav.: the audio cannot be read"),
    ]:
        with pytest.raises(LeapformerError, match=message):
            list(examples(*model, request))
    assert len(list(examples(*nmt, Request("w1 " * 500, "w2")))) == 1, "longer than a file name may be"


def test_unwritable_output(lm, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run("--path", lm, "--input", "w1", "--out", tmp_path / "file") == 2
    assert "--out" in capsys.readouterr().err
