"""fairseq's own commands with an exported model: the same hypotheses as from its checkpoint, whatever the batches."""

from __future__ import annotations

import io
import re
import shutil
import sys

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.exported import exported_models

from ..reversed_text import TRAINING, reversed_text

SIZES = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --decoder-embed-dim 32"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Data, a checkpoint and its exported folder."""
    folder = tmp_path_factory.mktemp("generate")
    root = reversed_text(folder / "text", train=200, valid=20, test=30)
    plan = "--encoder-self-attention leap --decoder-self-attention gated-delta --decoder-cross-attention leap"
    command = f"train {root / 'mt'} --task translation --arch leapformer_nmt {SIZES} {plan} {TRAINING}"
    assert main([*command.split(), "--save-dir", str(folder / "model")]) == 0
    # not the best one: after other trainings in this process fairseq may keep none
    checkpoint, exported = folder / "model" / "checkpoint_last.pt", folder / "exported"
    assert main(["export", "--path", str(checkpoint), "--out", str(exported), "--check", "5"]) == 0
    return root / "mt", checkpoint, exported


def generated(capsys, data, path, *options):
    """Hypotheses by sentence, and their scores."""
    command = ["generate", str(data), "--path", str(path), "--task", "translation", "--gen-subset", "test", "--cpu"]
    assert main([*command, "--num-workers", "0", "--required-batch-size-multiple", "1", *options]) == 0
    lines = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", capsys.readouterr().out, re.MULTILINE)
    return [words for _, _, words in sorted(lines)], [float(score) for _, score, _ in sorted(lines)]


@pytest.mark.parametrize(
    "options",
    [
        ("--max-tokens", "200", "--beam", "4", "--nbest", "3"),
        ("--batch-size", "1", "--beam", "1"),
        ("--max-tokens", "80", "--temperature", "1.7", "--lenpen", "0.3", "--prefix-size", "1", "--max-len-b", "12"),
    ],
)
def test_generate(models, options, capsys):
    """Sources of different lengths in a batch, sentences that end before others, a temperature, given first words."""
    data, checkpoint, exported = models
    capsys.readouterr()
    words, scores = generated(capsys, data, checkpoint, *options)
    found, their_scores = generated(capsys, data, exported, *options)
    assert len(words) >= 30 and found == words
    assert their_scores == pytest.approx(scores, abs=2e-4)


def test_two_exported_models_are_an_ensemble(models, capsys):
    data, checkpoint, exported = models
    capsys.readouterr()
    words, _ = generated(capsys, data, f"{checkpoint}:{checkpoint}", "--max-tokens", "200")
    assert generated(capsys, data, f"{exported}:{exported}", "--max-tokens", "200")[0] == words


def test_interactive(models, capsys, monkeypatch):
    data, checkpoint, exported = models
    said = []
    for path in (checkpoint, exported):
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO("the old tree sees the house\na dog\n"))
        command = ["interactive", str(data), "--path", str(path), "--task", "translation", "--cpu", "--beam", "3"]
        assert main([*command, "--buffer-size", "2", "--batch-size", "2"]) == 0
        said.append(re.findall(r"^D-\d+\t\S+\t(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert len(said[0]) == 2 and said[0] == said[1]


def test_what_cannot_be_done_is_one_line(models, tmp_path, capsys):
    data, checkpoint, exported = models
    other = reversed_text(tmp_path / "other", train=4, valid=4, test=4) / "mt"
    capsys.readouterr()
    for command, message in (
        (["generate", str(data), "--path", f"{checkpoint}:{exported}"], "not both"),
        (["generate", str(data), "--path", str(exported), "--print-alignment"], "no attention weights"),
        (["generate", str(other), "--path", str(exported)], "another source vocabulary"),
        (["generate", str(data), "--path", str(tmp_path)], "give a folder made by `leapformer export`"),
        (["validate", str(data), "--path", str(exported)], "exported models only generate"),
    ):
        assert main([*command, "--task", "translation", "--cpu"]) == 2
        error = capsys.readouterr().err.strip().split("\n")[-1]
        assert message in error, error


def test_fairseqs_loader_is_as_before(models):
    from fairseq import checkpoint_utils

    before = checkpoint_utils.load_model_ensemble
    with pytest.raises(ZeroDivisionError), exported_models():
        assert checkpoint_utils.load_model_ensemble is not before
        raise ZeroDivisionError
    assert checkpoint_utils.load_model_ensemble is before


def test_an_exported_folder_of_another_kind(models, tmp_path, capsys):
    data, _, exported = models
    folder = shutil.copytree(exported, tmp_path / "copy")
    text = (folder / "model.json").read_text().replace('"task": "translation"', '"task": "language_modeling"')
    (folder / "model.json").write_text(text)
    assert main(["generate", str(data), "--path", str(folder), "--task", "translation", "--cpu"]) == 2
    assert "holds a model for language_modeling" in capsys.readouterr().err
