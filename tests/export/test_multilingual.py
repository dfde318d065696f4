"""Models of several languages: one folder for all of them, whose translations are those of fairseq-generate."""

from __future__ import annotations

import io
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from leapformer_fairseq.cli import export
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.export.plain import multilingual_of
from leapformer_fairseq.models.loading import load_model
from leapformer_fairseq.runtime.__main__ import main as run
from leapformer_fairseq.runtime.beam import Search
from leapformer_fairseq.runtime.folder import Folder, Multilingual, _wrong
from leapformer_fairseq.runtime.languages import marks_of
from leapformer_fairseq.runtime.translator import TooLong, Translator
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import parse

from ..exported import translation
from ..made import made
from ..multilingual import PAIRS, TOLD, data, multilingual

SEARCH = Search(beam=5, max_len_a=1.0, max_len_b=5)


def exported(kind: str) -> Path:
    def make(folder: Path) -> None:
        words = ["--path", str(multilingual(kind)), "--out", str(folder / "out"), "--check", "6", "--alignments"]
        assert main(["export", *words]) == 0

    return made(f"exported multilingual {kind}", make) / "out"


def generated(path: Path, kind: str, pair: str, capsys) -> list[tuple[str, str, float]]:
    """(source, translation, score) of the test set by `leapformer generate`, that is fairseq-generate."""
    source, target = pair.split("-")
    told = f"--task translation_multi_simple_epoch --lang-pairs {','.join(PAIRS)} {TOLD[kind]} -s {source} -t {target}"
    options = f"{told} --gen-subset test --cpu --beam 5 --max-len-a 1 --max-len-b 5 --batch-size 1 --num-workers 0"
    options += " --required-batch-size-multiple 1"
    capsys.readouterr()
    assert main(["generate", str(data()), "--path", str(path), *options.split()]) == 0
    out = capsys.readouterr().out
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", out, re.MULTILINE))
    lines = sorted(re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.MULTILINE), key=lambda line: int(line[0]))
    bits = [(sources[number], text, float(score)) for number, score, text in lines]
    return [(re.sub("__.*?__ ?", "", source), text, score * math.log(2)) for source, text, score in bits]


KINDS = ["source", *(pytest.param(kind, marks=pytest.mark.full) for kind in TOLD if kind != "source")]


@pytest.mark.parametrize("kind", KINDS)
def test_translations_are_those_of_fairseq(kind, capsys):
    translator = Translator(exported(kind))
    for pair in PAIRS:
        source, target = pair.split("-")
        expected = generated(multilingual(kind), kind, pair, capsys)
        assert len(expected) == 6
        found = translator.translate([line for line, _, _ in expected], source=source, target=target, search=SEARCH)
        for (_, text, score), (best, *_) in zip(expected, found, strict=True):
            assert best.text == text and abs(best.score - score) < 1e-4


def test_fairseqs_generator_runs_the_folder(capsys):
    expected = generated(multilingual("source"), "source", "en-fr", capsys)
    found = generated(exported("source"), "source", "en-fr", capsys)
    assert [texts for *texts, _ in found] == [texts for *texts, _ in expected]
    assert [score for *_, score in found] == pytest.approx([score for *_, score in expected], abs=2e-4)


def test_the_token_of_a_language_is_not_in_a_text_and_prefixes_follow_it():
    translator = Translator(exported("source"))
    (best, *_), *_ = translator.translate(["the red dog"], prefixes=["dog"], source="en", target="de", search=SEARCH)
    assert best.text.split()[0] == "dog" and not any("__" in piece for piece in best.pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_alignments_count_subwords_without_the_tokens_of_languages(kind):
    """They are those of the trained model, read with all its tokens."""
    translator, (model, _) = (
        Translator(exported(kind)),
        load_model(str(multilingual(kind)), ("leapformer_nmt",), "use", {}),
    )
    lines, marks = ["the red dog", "a big cat sees the dog"], marks_of(translator.folder, "en", "de")
    words, start = translator.folder.vocabularies["target"], len(marks.before)
    found = translator.translate(lines, source="en", target="de", alignments=True, search=SEARCH, nbest=5)
    for line, texts in zip(lines, found, strict=True):
        pieces = translator.pieces(line)
        source = torch.tensor([[*marks.before, *words.numbers(pieces)[:-1], *marks.after]])
        for text in texts:
            given = [marks.first, *marks.begin, *words.numbers(text.pieces)[:-1]]
            with torch.no_grad():
                _, extra = model(source, torch.tensor([[source.shape[1]]]), torch.tensor([given]))
            weights = extra["attn"][0][0, len(marks.begin) : -1, start : start + len(pieces)]
            assert list(text.alignment) == [(best, i) for i, best in enumerate(weights.argmax(1).tolist())]


def test_samples_begin_with_the_language():
    translator = Translator(exported("source"))
    marks, search = marks_of(translator.folder, "en", "de"), replace(SEARCH, sampling=True)
    (samples,) = translator.hypotheses([["the", "dog"]], search, chances=[np.random.default_rng(1)], marks=marks)
    assert [one.tokens[0] for one in samples] == marks.begin * 5
    (found,) = translator.translate(["the dog"], source="en", target="de", search=search, nbest=5)
    assert len({one.text for one in found}) > 1 and not any("__de__" in one.text for one in found)


def test_the_tokens_of_languages_count_in_a_long_line():
    translator = Translator(exported("source"))
    translator.folder = replace(translator.folder, max_source=5)
    assert len(translator.pieces("the red dog")) == 3
    with pytest.raises(TooLong, match="has 6 subwords with its end, and the model reads 5") as error:
        translator.pieces("the big red dog")
    assert len(error.value.readable) == 3


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({"source": "en", "target": "xx"}, "--target-lang xx: .* does not know this language; give one of de, en, fr"),
        ({"source": "EN", "target": "de"}, "--source-lang EN: .* does not know this language; give one of de, en, fr"),
        ({"target": "de"}, "the source language is missing .--source-lang.: .* knows several; give one of de, en, fr"),
        ({"source": "en"}, "the target language is missing .--target-lang.: .* knows several; give one of de, en, fr"),
    ],
)
def test_languages_that_it_does_not_know(languages, message):
    with pytest.raises(LeapformerError, match=message):
        next(Translator(exported("source")).translate(["the dog"], search=SEARCH, **languages))


def test_the_command_takes_languages(monkeypatch, capsys):
    said = []
    for words in (["-s", "en", "-t", "de"], ["--source-lang", "en", "--target-lang", "fr"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the red dog\n")))
        assert run([str(exported("source")), "--max-len-a", "1", "--max-len-b", "5", *words]) == 0
        said.append(capsys.readouterr().out.strip())
    found = [
        Translator(exported("source")).translate(["the red dog"], source="en", target=to, search=SEARCH)
        for to in ("de", "fr")
    ]
    assert said == [next(some)[0].text for some in found]
    assert run([str(exported("source")), "-s", "en"]) == 2
    assert "runtime: error: the target language is missing" in capsys.readouterr().err


def test_a_model_that_is_not_told_languages_takes_none():
    with pytest.raises(LeapformerError, match="language en: .* is not told languages; leave it out"):
        next(Translator(translation().exported).translate(["the dog"], source="en"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--target-lang xx", "--target-lang xx: the model does not know this language; give one of de, en, fr"),
        ("--lang-dict {folder}/none", "cannot be read ({folder}/none); give the folder with the dict"),
        ("--engine ctranslate2", "--engine ctranslate2 translates between two languages; export with --engine onnx"),
        ("--encoder-langtok tgt --lang-pairs en-xx", "dict.xx.txt); give the folder with the dictionary"),
    ],
)
def test_what_export_refuses(words, message, tmp_path, capsys):
    given = words.format(folder=tmp_path).split()
    capsys.readouterr()
    assert main(["export", "--path", str(multilingual("source")), "--out", str(tmp_path / "out"), *given]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert message.format(folder=tmp_path) in said and not (tmp_path / "out").exists()


def test_languages_of_a_model_of_two_are_refused(tmp_path, capsys):
    for words, message in (
        (["-s", "xx", "-t", "de"], "dict.xx.txt.; give the folder with the dictionary"),
        (["-t", "de"], "--target-lang alone: .* is of one pair of languages; give both or none"),
        (["--encoder-langtok", "src"], "--encoder-langtok: .* is no model of several languages; leave it out"),
    ):
        assert main(["export", "--path", str(translation().checkpoint), "--out", str(tmp_path / "out"), *words]) == 2
        assert re.search(message, capsys.readouterr().err)


def test_what_a_checkpoint_says_can_be_replaced(tmp_path):
    """Files that its training read are elsewhere, or were not there at all."""
    for name in ("langs", "pairs"):
        (tmp_path / name).write_text({"langs": "de\nen\nfr\n", "pairs": ",".join(PAIRS)}[name])
    words = f"--lang-dict {tmp_path}/langs --lang-pairs {tmp_path}/pairs --fixed-dictionary {data()}/dict.en.txt"
    args = parse(
        export, ["--path", str(multilingual("source")), "--out", "o", *words.split(), "--encoder-langtok", "tgt"]
    )
    _, task = export._loaded(args, export.TEXT)
    found = multilingual_of(task, "en", "fr")
    assert found == Multilingual(
        {one: f"__{one}__" for one in ("de", "en", "fr")}, ["target"], ["end"], "end", [], "en", "fr"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"before": ["other"]},
        {"first": "begin"},
        {"tokens": {"en": "__none__"}},
        {"target": "xx"},
    ],
)
def test_what_a_damaged_folder_says_is_refused(change):
    folder = Folder.read(exported("source"))
    assert not list(_wrong(folder))
    assert any(
        "multilingual" in one for one in _wrong(replace(folder, multilingual=replace(folder.multilingual, **change)))
    )
