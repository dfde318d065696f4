"""fairseq's own commands with an exported model: the same hypotheses as from its checkpoint, whatever the batches."""

from __future__ import annotations

import io
import re
import shutil
import sys
from dataclasses import replace

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.export.as_fairseq_models import exported_models
from leapformer_fairseq.runtime import engine
from leapformer_fairseq.runtime.__main__ import main as run
from leapformer_fairseq.runtime.folder import Folder, Speaking

from ..exported import Text, aligning_translation, language_model, translation
from ..reversed_text import reversed_text


@pytest.fixture(scope="module")
def models() -> Text:
    return translation()


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
    assert len(words) >= 12 and found == words
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
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the old tree sees the house\na dog\n")))
        command = ["interactive", str(data), "--path", str(path), "--task", "translation", "--cpu", "--beam", "3"]
        assert main([*command, "--buffer-size", "2", "--batch-size", "2"]) == 0
        said.append(re.findall(r"^D-\d+\t\S+\t(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert len(said[0]) == 2 and said[0] == said[1]


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignments(capsys, kind):
    """Those of the checkpoint, in a batch of sources of several lengths."""
    data, checkpoint, exported = aligning_translation()
    found = []
    for path in (checkpoint, exported):
        capsys.readouterr()
        command = ["generate", str(data), "--path", str(path), "--task", "translation", "--gen-subset", "test", "--cpu"]
        assert main([*command, "--max-tokens", "200", "--beam", "3", "--nbest", "2", "--print-alignment", kind]) == 0
        lines = re.findall(r"^A-(\d+)\t(.+)$", capsys.readouterr().out, re.MULTILINE)
        found.append([[float(number) for number in re.split("[ ,-]", pairs)] for _, pairs in lines])
    assert len(found[0]) >= 20 and len({*map(tuple, found[0])}) > 10
    assert all(ours == pytest.approx(theirs, abs=1e-5) for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize(
    "more", [(), ("--print-alignment", "hard"), pytest.param(("--nbest", "2"), marks=pytest.mark.full)]
)
def test_an_empty_line_has_an_empty_translation(models, capsys, monkeypatch, more):
    """In fairseq's commands, with the checkpoint and with the folder, and in the runtime; alone and among others."""
    data, checkpoint, exported = models
    lines = b"the old tree\n\na dog\n \t \n"
    folder = aligning_translation().exported if "--print-alignment" in more else exported
    for path in (checkpoint, folder):
        for size in ("1", "4"):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
            command = ["interactive", str(data), "--path", str(path), "--task", "translation", "--cpu", "--beam", "3"]
            capsys.readouterr()
            assert main([*command, "--buffer-size", size, "--batch-size", size, *more]) == 0
            out = capsys.readouterr().out
            found = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", out, re.MULTILINE))
            assert [bool(found[f"{number}"]) for number in range(4)] == [True, False, True, False]
            assert len(re.findall(r"^D-1\t", out, re.MULTILINE)) == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert run([str(exported), "--max-len-b", "20"]) == 0
    assert [bool(line) for line in capsys.readouterr().out.split("\n")] == [True, False, True, False, False]


def test_what_cannot_be_done_is_one_line(models, tmp_path, capsys):
    data, checkpoint, exported = models
    other = reversed_text(tmp_path / "other", train=4, valid=4, test=4) / "mt"
    capsys.readouterr()
    for command, message in (
        (["generate", str(data), "--path", f"{checkpoint}:{exported}"], "not both"),
        (["generate", str(data), "--path", str(exported), "--print-alignment"], "export it with --alignments"),
        (["generate", str(other), "--path", str(exported)], "another source vocabulary"),
        (["generate", str(data), "--path", str(tmp_path)], "give a folder made by `leapformer export`"),
        (["validate", str(data), "--path", str(exported)], "exported models serve generate"),
    ):
        assert main([*command, "--task", "translation", "--cpu"]) == 2
        error = capsys.readouterr().err.strip().split("\n")[-1]
        assert message in error, error


def test_fairseqs_loader_is_as_before():
    from fairseq import checkpoint_utils

    before = checkpoint_utils.load_model_ensemble_and_task
    with pytest.raises(ZeroDivisionError), exported_models():
        assert checkpoint_utils.load_model_ensemble_and_task is not before
        raise ZeroDivisionError
    assert checkpoint_utils.load_model_ensemble_and_task is before


@pytest.fixture(scope="module")
def language_models() -> Text:
    return language_model()


@pytest.mark.full
def test_an_exported_folder_of_another_kind(models, language_models, tmp_path, capsys):
    data, _, exported = models
    assert main(["generate", str(data), "--path", str(language_models[2]), "--task", "translation", "--cpu"]) == 2
    assert "is for --task language_modeling, not for translation" in capsys.readouterr().err
    folder = shutil.copytree(exported, tmp_path / "copy")
    (folder / "refine.onnx").touch()
    speaking = Speaking(2, 12, 2, 16, 0.25, {})
    other = replace(Folder.read(folder), path=folder, task="text_to_speech", speaking=speaking, shared=[])
    replace(other, vocabularies={"source": other.vocabularies["source"]}).write()
    assert main(["generate", str(data), "--path", str(folder), "--task", "translation", "--cpu"]) == 2
    assert "holds a model for text_to_speech" in capsys.readouterr().err


def both(models, capsys, monkeypatch, pattern, *command, said=""):
    """What a command prints that matches a pattern, given the checkpoint and the folder."""
    found = []
    for path in models[1:]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        name, *options = command
        assert main([name, str(models[0]), "--path", str(path), *options]) == 0
        output = capsys.readouterr()
        found.append(re.findall(pattern, output.out + output.err, re.MULTILINE))
    assert found[0]
    return found


@pytest.mark.full
def test_prompts_of_unequal_lengths(language_models, capsys, monkeypatch):
    command = "interactive --task language_modeling --cpu --buffer-size 3 --batch-size 3 --max-len-b 12 --beam 3"
    said = "the small house\nthe\na dog sees the old tree\n"
    expected, found = both(language_models, capsys, monkeypatch, r"^D-.*", *command.split(), said=said)
    assert len(expected) == 3 and [line.split("\t")[::2] for line in found] == [
        line.split("\t")[::2] for line in expected
    ]


@pytest.mark.full
def test_sentences_that_are_continued(language_models, capsys, monkeypatch):
    options = "--task language_modeling --cpu --num-workers 0 --sample-break-mode eos --prefix-size 2"
    command = f"generate {options} --beam 2 --max-len-b 12".split()
    expected, found = both(language_models, capsys, monkeypatch, r"^H-\d+\t\S+\t(.*)$", *command)
    assert len(expected) == 12 and found == expected, "also those of a last batch that is not full"


@pytest.mark.full
def test_perplexity_of_sentences_and_of_a_stream(language_models, tmp_path, capsys, caplog, monkeypatch):
    """Also without the state carried on, and with segments that are longer than what is read at once."""
    caplog.set_level("INFO")
    monkeypatch.setattr(engine, "AT_ONCE", 7)
    data, _, exported = language_models
    for path in language_models[1:]:
        options = "--task language_modeling --cpu --num-workers 0 --max-tokens 400 --tokens-per-sample 32"
        assert main(["eval-lm", str(data), "--path", str(path), *options.split()]) == 0
    perplexities = re.findall(r"Perplexity: ([\d.]+)", caplog.text)
    assert len(perplexities) == 2 and perplexities[0] == perplexities[1]
    for options in ([], ["--segment", "10"], ["--no-carry"]):
        pattern = r"(\d+) tokens|perplexity ([\d.]+), state ([\d,]+) bytes"
        expected, found = both(language_models, capsys, monkeypatch, pattern, "eval-stream", *options)
        assert found == expected
    for command, message in (
        (["eval-stream", str(tmp_path), "--path", str(exported)], "no dictionary"),
        (["eval-stream", str(data.parent / "mt"), "--path", str(exported)], "no dictionary"),
        (["eval-stream", str(data), "--path", str(tmp_path)], "give a folder made by `leapformer export`"),
    ):
        assert main(command) == 2
        assert message in capsys.readouterr().err
