"""Files that are no checkpoint of a transformer, or do not fit each other: one line with file, reason and remedy."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from leapformer_fairseq.cli import export
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.compat.errors_explained import explained
from leapformer_fairseq.models.averaging import load_checkpoint
from leapformer_fairseq.support.options import parse

from ..made import made
from ..models.test_stock import BOTH
from ..reversed_text import reversed_text
from ..untrained import save_checkpoint


def data() -> Path:
    return made("reversed text", lambda folder: reversed_text(folder, train=200, valid=4, test=12)) / "mt"


def stock() -> Path:
    """A checkpoint of fairseq's transformer that says its languages, so that its dictionaries are looked for."""
    flags = (*BOTH.split(), "-s", "en", "-t", "de")
    make = lambda folder: save_checkpoint(folder / "stock.pt", data(), "transformer", *flags, task="translation")  # noqa: E731
    return made("stock for bad input", make) / "stock.pt"


class Calling:
    """When it is read without protection, a folder appears."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("called",)


def of_transformers(path: Path) -> None:
    torch.save({"model.encoder.embed_tokens.weight": torch.zeros(3, 2), "lm_head.weight": torch.zeros(3, 2)}, path)


def of_safetensors(path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


def cut_off(path: Path) -> None:
    path.write_bytes(stock().read_bytes()[:20_000])


FILES = {
    "pytorch_model.bin": (of_transformers, "holds no model of fairseq, but model.encoder.embed_tokens.weight, lm_head"),
    "model.safetensors": (of_safetensors, "is a file of safetensors, which fairseq does not write; give a checkpoint"),
    "cut.pt": (cut_off, "is cut off: an archive without its end; copy it again"),
    "list.pt": (
        lambda path: torch.save([1], path),
        "holds no model of fairseq, but list; give a checkpoint of fairseq",
    ),
    "empty.pt": (
        lambda path: path.touch(),
        r"cannot be read as a checkpoint \(it is cut off\); give a checkpoint of fairseq",
    ),
    "text.pt": (
        lambda path: path.write_text("hello\n"),
        r"cannot be read as a checkpoint \(it is not one\); give a checkpoint of fairseq-train",
    ),
    "pickle.pt": (
        lambda path: path.write_bytes(pickle.dumps(Calling())),
        r"cannot be read as a checkpoint \(Unsupported operand .+\); give a checkpoint of fairseq-train",
    ),
    "calling.pt": (
        lambda path: torch.save({"model": {}, "args": Calling()}, path),
        r"cannot be read as a checkpoint \(.*GLOBAL posix.mkdir.*\); give a checkpoint of fairseq-train",
    ),
}


def refusal(capsys, tmp_path, *words: object) -> str:
    capsys.readouterr()
    assert main(["export", *map(str, words), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not (tmp_path / "out").exists() and not Path("called").exists()
    return said.splitlines()[-1]


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_checkpoints(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write, message = FILES[name]
    write(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert re.search(f"{name} {message}", refusal(capsys, tmp_path, "--path", name))


def test_a_folder_is_no_checkpoint(tmp_path, capsys):
    assert refusal(capsys, tmp_path, "--path", tmp_path).endswith(
        f"{tmp_path}: it is a folder; give the checkpoint of a trained model"
    )


def test_a_checkpoint_of_an_early_pytorch_is_read(tmp_path):
    """Files of PyTorch before 1.6, such as the models of WMT19, cannot be mapped into memory."""
    state = torch.load(stock(), weights_only=True)
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert load_checkpoint(tmp_path / "old.pt")["model"].keys() == state["model"].keys()


def test_dictionaries_that_are_missing_or_of_another_size(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    said = refusal(capsys, tmp_path, "--path", stock(), "--data", tmp_path / "none")
    assert "dict.en.txt" in said and "give the folder with the dictionary that the model was trained with" in said
    (tmp_path / "other").mkdir()
    for language in ("en", "de"):
        (tmp_path / "other" / f"dict.{language}.txt").write_text("the 5\nred 4\n")
    said = refusal(capsys, tmp_path, "--path", stock(), "--data", tmp_path / "other")
    assert re.search("vocabular|dictionar", said) and "give" in said


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_parameters_of_another_model(change, tmp_path, capsys):
    """As those of a fairseq that was changed."""
    state = torch.load(stock(), weights_only=True)
    name = "encoder.layers.0.fc1.weight"
    if change == "missing":
        del state["model"][name]
    else:
        state["model"][name if change == "shape" else f"encoder.{change}"] = torch.zeros(3)
    torch.save(state, tmp_path / "other.pt")
    said = refusal(capsys, tmp_path, "--path", tmp_path / "other.pt")
    assert "other.pt: its parameters are not those of a model with its options (" in said
    assert (f"encoder.{change}" if change == "unexpected" else name) in said and said.endswith(
        "--user-dir of its model"
    )


def test_dictionaries_of_another_size_for_a_model_of_fairseqs_own(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").write_text("the 5\nred 4\n")
    with pytest.raises(RuntimeError) as error:
        checkpoint_utils.load_model_ensemble_and_task([str(stock())], {"data": str(tmp_path)})
    said = str(explained(error.value))
    assert "stock.pt: the dictionaries of the data are not of its size (size mismatch for encoder.embed_tokens" in said
    assert said.endswith("; give the data that it was trained with")


def test_one_embedding_of_two_dictionaries(tmp_path, capsys):
    state = torch.load(stock(), weights_only=True)
    state["cfg"]["model"].share_all_embeddings = True
    torch.save(state, tmp_path / "shared.pt")
    for language, word in (("en", "red"), ("de", "rot")):
        (tmp_path / f"dict.{language}.txt").write_text(f"{word} 5\n")
    said = refusal(capsys, tmp_path, "--path", tmp_path / "shared.pt", "--data", tmp_path)
    assert "--share-all-embeddings requires a joined dictionary, and those of the data differ; give the data of" in said


def test_several_checkpoints_are_averaged_if_that_is_said(tmp_path, capsys, monkeypatch):
    state = torch.load(stock(), weights_only=True)
    for name, factor in (("a.pt", 1.0), ("b.pt", 3.0)):
        torch.save({**state, "model": {key: value * factor for key, value in state["model"].items()}}, tmp_path / name)
    both = f"{tmp_path}/a.pt:{tmp_path}/b.pt"
    assert "a folder holds one model, not an ensemble; give --average" in refusal(capsys, tmp_path, "--path", both)
    assert "is one file; give several" in refusal(capsys, tmp_path, "--path", stock(), "--average")
    found = []
    monkeypatch.setattr(
        "leapformer_fairseq.cli.export._export", lambda args: found.append(load_checkpoint(Path(args.path))) or 0
    )
    assert main(["export", "--path", both, "--average", "--out", str(tmp_path / "out")]) == 0
    name = "encoder.layers.0.fc1.weight"
    torch.testing.assert_close(found[0]["model"][name], 2 * state["model"][name])


def test_checkpoints_of_other_vocabularies_have_no_average(tmp_path, capsys):
    state = torch.load(stock(), weights_only=True)
    name = "encoder.embed_tokens.weight"
    torch.save({**state, "model": {**state["model"], name: torch.zeros(9, 32)}}, tmp_path / "other.pt")
    said = refusal(capsys, tmp_path, "--path", f"{stock()}:{tmp_path}/other.pt", "--average")
    assert name in said and "other.pt" in said


def test_languages_that_only_the_data_of_the_training_told(tmp_path, capsys):
    """fairseq infers them from the names of prepared files, and does not write them into the checkpoint."""
    state = torch.load(stock(), weights_only=True)
    state["cfg"]["task"] |= {"source_lang": None, "target_lang": None}
    torch.save(state, tmp_path / "model.pt")
    (tmp_path / "words").mkdir()
    for language in ("en", "de"):
        shutil.copy(data() / f"dict.{language}.txt", tmp_path / "words")
    words = ["--path", tmp_path / "model.pt", "--data", tmp_path / "words"]
    said = refusal(capsys, tmp_path, *words)
    assert "words: no data of two languages; give" in said and said.endswith("with --source-lang and --target-lang")
    assert "words/dict.xx.txt); give the folder with the dictionary" in refusal(
        capsys, tmp_path, *words, "-s", "xx", "-t", "de"
    )
    args = parse(export, [*map(str, words), "--out", "o", "-s", "en", "-t", "de"])
    _, task = export._loaded(args, export.TEXT)
    assert len(task.source_dictionary) == len(state["model"]["encoder.embed_tokens.weight"])
