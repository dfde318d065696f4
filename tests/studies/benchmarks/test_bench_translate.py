"""The benchmark of trained models from text to text."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.averaging import load_checkpoint
from leapformer_fairseq.scoring.pictures.results import figure_of
from leapformer_fairseq.studies.benchmarks import translate
from leapformer_fairseq.studies.benchmarks.translate import Run
from leapformer_fairseq.support.errors import LeapformerError

from ...made import made
from ...models.tiny import make_model
from ...reversed_text import TRAINING, reversed_text


def checkpoint(path: Path, cross: str = "softmax") -> Path:
    model = make_model("leapformer_nmt", "softmax", encoder_self_attention="softmax", decoder_cross_attention=cross)
    plan = {"encoder_self_attention": "softmax", "decoder_self_attention": "softmax", "decoder_cross_attention": cross}
    config = {
        "model": Namespace(arch="leapformer_nmt", _name="leapformer_nmt", **plan),
        "task": {"_name": "translation", "source_lang": "de", "target_lang": "en"},
    }
    torch.save({"args": None, "cfg": config, "model": model.state_dict()}, path)
    return path


@pytest.fixture
def words(tmp_path) -> list[str]:
    """The options of a command over three lines, without its models."""
    for name, text in (("text", "a b c"), ("references", "one two three"), ("spm", "")):
        (tmp_path / name).write_text("\n".join(text.split()) + "\n")
    given = {"data": "data", "sentencepiece-model": "spm", "text": "text", "references": "references", "out": "out"}
    return [
        "bench",
        "translate",
        *(word for name, file in given.items() for word in (f"--{name}", str(tmp_path / file))),
    ]


def test_what_is_written(words, tmp_path, monkeypatch):
    """Commands are not run; the first translation of a folder is wrong, and it needs half the time."""
    (tmp_path / "leap-8").mkdir()
    (tmp_path / "leap-8" / "model.json").write_bytes(bytes(2**20))
    asked = []

    def spent(command: list[str], lines: list[str], out: Path, threads: int) -> Run:
        asked.append((command, lines, threads))
        texts = ["one", "two", "three"][: len(lines)]
        if "interactive" in command:
            printed = [f"D-{n}\t-0.1\t{text}" for n, text in enumerate(texts)]
            return Run(9.0, 1.0 + 4 * len(lines), 300.0, ["noise", *reversed(printed), "H-0\t-0.1\tx"])
        return Run(2.0, 0.5 + 2 * len(lines), 70.0, ["no", *texts[1:]])

    monkeypatch.setattr(translate, "_spent", spent)
    models = [checkpoint(tmp_path / "a.pt"), tmp_path / "leap-8", checkpoint(tmp_path / "b.pt", cross="leap")]
    assert main([*words, "--path", *map(str, models), "--lines", "3"]) == 0
    found = json.loads((tmp_path / "out" / "translate.json").read_text())
    names = ["fairseq", "softmax in PyTorch", "leap-8", "softmax/softmax/leap in PyTorch"]
    assert [row["mechanism"] for row in found["start"]] == names and found["start"][2]["mib"] == 1
    assert [row["seconds"] for row in found["start"]] == [9, 9, 2, 9]
    for case in translate.BATCHES:
        rows = [row for row in found["translate"] if row["case"] == case]
        assert [row["mechanism"] for row in rows] == names
        assert [row["a_second"] for row in rows] == [3 / 8, 3 / 8, 3 / 4, 3 / 8]
        assert [row["ratio"] for row in rows] == [1, 1, 2, 1] and [row["equal"] for row in rows] == [3, 3, 2, 3]
        assert [row["peak_mib"] for row in rows] == [300, 300, 70, 300]
    assert len(asked) == len(names) * translate.ROUNDS * 3
    assert [command[-2:] for command, *_ in asked[-4:]] == [
        ["--max-tokens", "2000"], ["--max-tokens", "2000"], ["--batch-tokens", "2000"], ["--max-tokens", "2000"],
    ]  # fmt: skip
    figure_of(tmp_path / "out" / "translate.json")


def test_the_stock_checkpoint_has_the_weights(tmp_path):
    _, state = translate._plan_of(checkpoint(tmp_path / "a.pt"))
    stock = load_checkpoint(translate._stock(state, tmp_path / "stock.pt"))
    assert stock["cfg"]["model"].arch == "transformer" and stock["cfg"]["model"].decoder_self_attention == "softmax"
    left = {name for name in state["model"] if name not in stock["model"]}
    assert left == {"encoder.vocabulary", "decoder.vocabulary"}
    assert all(torch.equal(weight, state["model"][name]) for name, weight in stock["model"].items())


def test_a_command_is_watched(tmp_path):
    large = "import sys; x = b'x' * (120 * 2**20); print(sys.stdin.read().upper(), end='')"
    run = translate._spent([sys.executable, "-c", large], ["a", "b"], tmp_path, 1)
    assert run.lines == ["A", "B"] and 120 < run.peak_mib < 160 and run.cpu > 0
    with pytest.raises(LeapformerError, match="failed: ValueError: no"):
        translate._spent([sys.executable, "-c", "raise ValueError('no')"], [], tmp_path, 1)


def test_what_cannot_be_compared(words, tmp_path, capsys):
    first, mixed = checkpoint(tmp_path / "a.pt"), checkpoint(tmp_path / "b.pt", cross="leap")
    for paths, message in (
        ([mixed], "give a checkpoint with softmax in all blocks first"),
        ([tmp_path], "give a checkpoint with softmax in all blocks first"),
        ([first, mixed, mixed], "there is softmax/softmax/leap in PyTorch already; leave it out"),
    ):
        assert main([*words, "--path", *map(str, paths)]) != 0
        assert message in capsys.readouterr().err
    (tmp_path / "spm").unlink()
    assert main([*words, "--path", str(first)]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.full
def test_all_systems_translate(words, tmp_path):
    pytest.importorskip("ctranslate2")
    data = made("reversed text", lambda folder: reversed_text(folder, train=200, valid=4, test=12)) / "mt"
    plan = "--encoder-self-attention softmax --decoder-self-attention softmax --decoder-cross-attention softmax"
    sizes = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32"
    flags = f"--task translation --arch leapformer_nmt {plan} {sizes} --decoder-embed-dim 32 {TRAINING}"
    command = ["train", str(data), *flags.split(), "--disable-validation", "--save-dir", str(tmp_path / "model")]
    assert main(command) == 0
    path = tmp_path / "model" / "checkpoint_last.pt"
    for engine in ("onnx", "ctranslate2"):
        assert main(["export", "--path", str(path), "--out", str(tmp_path / engine), "--engine", engine]) == 0
    systems = translate.Comparison(
        Namespace(
            path=[path, tmp_path / "onnx", tmp_path / "ctranslate2"], data=data, text=data / "none", lines=2,
            sentencepiece_model=tmp_path / "spm", beam=1, threads=1,
        ),
        tmp_path,
    ).systems  # fmt: skip
    texts = []
    for system in systems.values():
        plain = [word for word in system.words if word not in ("--bpe", "sentencepiece", "--sentencepiece-model")]
        plain = [word for word in plain if word != str(tmp_path / "spm")]
        run = translate._spent([*plain, *system.alone], ["the red dog", "old"], tmp_path, 1)
        texts.append(translate._written_by_fairseq(run.lines) or run.lines)
    assert len(texts) == 4 and all(text == texts[0] for text in texts) and len(texts[0]) == 2
