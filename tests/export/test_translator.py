"""Many lines at a time: batches change nothing, results come in order, and what cannot be read costs only itself."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import re
import shutil
import sys
import textwrap
import threading
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data.encoders import build_bpe, build_tokenizer
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from sentencepiece import SentencePieceProcessor

from leapformer_fairseq.export.check import compared
from leapformer_fairseq.export.subwords import Subwords, check_subwords, codes_of
from leapformer_fairseq.export.write import _with_subwords, export_text
from leapformer_fairseq.models.loading import load_model
from leapformer_fairseq.runtime import __main__ as runtime
from leapformer_fairseq.runtime.__main__ import main
from leapformer_fairseq.runtime.beam import Search
from leapformer_fairseq.runtime.engine import Graphs
from leapformer_fairseq.runtime.folder import CODES as CODES_FILE
from leapformer_fairseq.runtime.folder import CTRANSLATE2, GPT2, Folder
from leapformer_fairseq.runtime.gpt2 import LETTERS
from leapformer_fairseq.runtime.text import Cut, Joined, subwords_of
from leapformer_fairseq.runtime.translator import Text, TooLong, Translator
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.lines import waiting

from ..exported import aligning_translation, language_model, translation
from ..models.tiny import dictionary, make_model
from ..simul.conftest import subwords

WORDS = dictionary()
TASK = SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS)
SEARCH = Search(beam=4, max_len_a=1.0, max_len_b=6)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(translation().exported)


@pytest.fixture(scope="module")
def lines(translator) -> list[str]:
    draw = random.Random(1)
    words = [symbol for symbol in translator._source.symbols if symbol.isalpha()]
    return [" ".join(draw.choices(words, k=draw.randint(0, 12))) for _ in range(40)]


@pytest.mark.parametrize(("tokens", "ahead"), [(40, 7), (10_000, 2_000)])
def test_batches_equal_single_lines(translator, lines, tokens, ahead):
    alone = [next(translator.translate([line], nbest=4, search=SEARCH)) for line in lines]
    together = list(translator.translate(lines, nbest=4, batch_tokens=tokens, ahead=ahead, search=SEARCH))
    assert [[one.text for one in found] for found in together] == [[one.text for one in found] for found in alone]
    assert [one.text for one in together[lines.index("")]] == [""]
    for given, total in ((lines, len(lines)), ((line for line in lines), 0)):
        seen = list[tuple[int, int]]()
        watch = lambda *done: seen.append(done)  # noqa: B023, E731
        list(translator.translate(given, batch_tokens=tokens, ahead=ahead, search=SEARCH, watch=watch))
        assert {of for _, of in seen} == {total} and len(seen) > 1
        assert sorted(seen) == seen and seen[-1][0] == len(lines)
    for ours, theirs in zip(together, alone, strict=True):
        assert all(abs(one.score - other.score) < 1e-5 for one, other in zip(ours, theirs, strict=True))


def at_once(translator: Translator, lines: list[str], search: Search) -> list[list[list[str]]]:
    """What each of eight threads gets, with batches of its own."""
    found = dict[int, list[list[str]]]()

    def run(number: int) -> None:
        texts = translator.translate(lines, batch_tokens=50 + number, search=search)
        found[number] = [[one.text for one in some] for some in texts]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(found.values())


@pytest.mark.parametrize("sampling", [False, True])
def test_threads_share_a_translator(translator, lines, sampling):
    search = replace(SEARCH, sampling=sampling)
    expected = [[one.text for one in some] for some in translator.translate(lines, search=search)]
    assert at_once(translator, lines, search) == [expected] * 8


def test_a_translator_may_have_several_threads(translator, lines):
    one, two = (
        list(each.translate(lines, nbest=4, search=SEARCH))
        for each in (translator, Translator(translator.folder.path, threads=2))
    )
    assert [[each.text for each in found] for found in one] == [[each.text for each in found] for found in two]


def test_prefixes_are_those_of_fairseq(translator, lines):
    """Of several lengths, none and the whole of what may be written among them."""
    text = translation()
    model, task = load_model(str(text.checkpoint), ("leapformer_nmt",), "a test", {"data": str(text.data)})
    words, sources = task.target_dictionary, [line for line in lines if line][:6]
    draw = random.Random(2)
    symbols = [symbol for symbol in words.symbols if symbol.isalpha()]
    prefixes = [" ".join(draw.choices(symbols, k=count)) for count in (0, 1, 2, 3, 5, 1)]
    found = translator.translate(sources, nbest=4, prefixes=prefixes, search=SEARCH)
    for source, prefix, ours in zip(sources, prefixes, found, strict=True):
        tokens = task.source_dictionary.encode_line(source, add_if_not_exist=False).long()[None]
        begin = words.encode_line(prefix, add_if_not_exist=False, append_eos=False).long()[None]
        options = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 6, "max_len": model.max_decoder_positions()}
        sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.shape[1]])}}
        given = begin if begin.numel() else None
        (theirs,) = SequenceGenerator([model], words, **options).generate([model], sample, prefix_tokens=given)
        assert [one.text for one in ours] == [words.string(each["tokens"]) for each in theirs]
        assert all(abs(one.score - float(each["score"])) < 1e-4 for one, each in zip(ours, theirs, strict=True))
        assert all(one.text.startswith(prefix) for one in ours[:1])


OPTIONS: dict[str, dict[str, Any]] = {  # ours and fairseq's
    "unk_penalty": {"unk_penalty": -4.0},
    "temperature": {"temperature": 0.4},
    "min_len": {"min_len": 6},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "no word twice": {"no_repeat_ngram_size": 1},
    "len_penalty": {"len_penalty": 0.3},
    "all of them": {"temperature": 1.7, "min_len": 4, "no_repeat_ngram_size": 3, "unk_penalty": -2.0, "len_penalty": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_the_search_are_those_of_fairseq(translator, lines, name):
    text = translation()
    model, task = load_model(str(text.checkpoint), ("leapformer_nmt",), "a test", {"data": str(text.data)})
    options, words, sources = OPTIONS[name], task.target_dictionary, [line for line in lines if line][:8]
    ours = {"penalty" if option == "len_penalty" else option: value for option, value in options.items()}
    found = list(translator.translate(sources, nbest=4, search=replace(SEARCH, **ours)))
    generator = SequenceGenerator([model], words, 4, 1.0, 6, model.max_decoder_positions(), **options)
    for source, one in zip(sources, found, strict=True):
        tokens = task.source_dictionary.encode_line(source, add_if_not_exist=False).long()[None]
        sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.shape[1]])}}
        (theirs,) = generator.generate([model], sample)
        assert [each.text for each in one] == [words.string(each["tokens"]) for each in theirs]
        assert all(abs(each.score - float(other["score"])) < 1e-4 for each, other in zip(one, theirs, strict=True))
    plain = translator.translate(sources, nbest=4, search=SEARCH)
    assert [[each.score for each in one] for one in found] != [[each.score for each in one] for one in plain]


def test_samples_depend_on_the_seed_and_not_on_batches(translator, lines):
    search = replace(SEARCH, sampling=True, temperature=2.0)

    def texts(seed: int, **options: int) -> list[list[str]]:
        found = translator.translate(lines, nbest=4, search=search, seed=seed, **options)
        return [[one.text for one in some] for some in found]

    assert texts(7, batch_tokens=30, ahead=9) == texts(7) != texts(8)
    chances = np.random.default_rng(7)
    alone = [next(translator.translate([line], nbest=4, search=search, seed=chances)) for line in lines]
    assert [[one.text for one in some] for some in alone] == texts(7)
    one, other = translator.translate([lines[0]] * 2, nbest=4, search=search)
    assert len({each.text for each in one}) > 1 and [each.text for each in one] != [each.text for each in other]


@pytest.mark.full  # its graphs are made for the full tier alone
def test_language_models_go_on_with_each_line():
    translator = Translator(language_model().exported)
    done, search = list[tuple[int, int]](), Search(beam=2, max_len_b=8)
    lines, watch = ["the dog", "", "old"], lambda *some: done.append(some)
    found = list(translator.translate(lines, nbest=2, search=search, watch=watch))
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert [len(some) for some in found] == [2, 2, 2] and found[0][0].text.startswith("the dog")


def test_alignments_are_those_of_fairseq(lines):
    """Of every hypothesis, in a batch and alone, with prefixes, too."""
    text = aligning_translation()
    model, task = load_model(str(text.checkpoint), ("leapformer_nmt",), "a test", {"data": str(text.data)})
    translator, words = Translator(text.exported), task.target_dictionary
    sources = [line for line in lines if line][:8]
    options = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 6, "max_len": model.max_decoder_positions()}
    generator = SequenceGeneratorWithAlignment([model], words, **options)
    found = [*translator.translate(sources, nbest=4, alignments=True, search=SEARCH)]
    for source, ours in zip(sources, found, strict=True):
        tokens = task.source_dictionary.encode_line(source, add_if_not_exist=False).long()[None]
        sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.shape[1]])}}
        (theirs,) = generator.generate([model], sample)
        assert [one.alignment for one in ours] == [each["alignment"] for each in theirs]
        assert [len(one.alignment) for one in ours] == [len(one.pieces) for one in ours]
    assert len({source for some in found for one in some for source, _ in one.alignment}) > 3
    (alone,) = translator.translate(sources[:1], nbest=4, search=SEARCH)
    assert [one.text for one in alone] == [one.text for one in found[0]] and not alone[0].alignment
    begun = translator.translate(sources[:1], prefixes=[found[0][1].text], alignments=True, search=SEARCH)
    assert next(begun)[0].alignment[: len(found[0][1].pieces)] == found[0][1].alignment


def test_alignments_are_printed_behind_each_line(translator, monkeypatch, capsys):
    command = {"monkeypatch": monkeypatch, "capsys": capsys}
    folder = aligning_translation().exported
    (best,) = next(Translator(folder).translate(["the red dog"], alignments=True, search=Search(max_len_b=6)))
    pairs = " ".join(f"{source}-{place}" for source, place in best.alignment)
    status, out, _ = run(folder, b"the red dog\n\n", "--alignments", "--scores", **command)
    assert status == 0 and out == [f"{best.score:.4f}\t{best.text}\t{pairs}", "0.0000\t\t"]
    status, _, said = run(translator.folder.path, b"the red dog\n", "--alignments", **command)
    assert status == 2 and "exported without attention weights; export it with --alignments" in said


def test_what_cannot_be_asked(translator):
    with pytest.raises(LeapformerError, match="nbest=9: a beam of 5 gives 1 to 5"):
        next(translator.translate(["x"], nbest=9))
    with pytest.raises(LeapformerError, match="prefixes: lm goes on with each line, which is the prefix; leave them"):
        next(prompts(9).translate(["x"], prefixes=["y"]))


def run(folder, given: bytes, *words: str, monkeypatch, capsys) -> tuple[int, list[str], str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    capsys.readouterr()  # what an export printed
    status = main([str(folder), "--max-len-b", "6", *words])
    said = capsys.readouterr()
    return status, said.out.split("\n")[:-1], said.err


def test_a_line_that_cannot_be_read_costs_only_itself(translator, monkeypatch, capsys):
    command = {"monkeypatch": monkeypatch, "capsys": capsys}
    folder = translator.folder.path
    status, (first, *_), said = run(folder, b"the red dog\n", **command)
    assert (status, said) == (0, "") and first
    status, out, said = run(folder, b"the \xff dog\n\nthe red dog\n", **command)
    assert (status, out) == (1, ["", "", first])
    assert "standard input, line 1, is not UTF-8 (byte 0xff at 5)" in said and said.count("\n") == 1
    status, out, said = run(folder, b"the red dog", "--nbest", "2", "--scores", **command)
    assert status == 0 and len(out) == 2 and out[0].split("\t")[1] == first
    float(out[0].split("\t")[0])
    status, out, said = run(folder, "the blarg dog é\n".encode(), **command)
    assert status == 0 and "2 subwords are not in the model's vocabulary, most often: blarg é" in said


def test_prefixes_stay_with_their_lines_when_these_arrive_one_by_one(translator, tmp_path, monkeypatch, capsys):
    """The file of prefixes ends before the lines do."""
    (tmp_path / "prefixes").write_text("red\ndog\nold\n")
    arriving = iter([b"the red dog\nold\n", b"dog\n", b"red\n", b""])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read1=lambda size: next(arriving))))
    words = [str(translator.folder.path), "--max-len-b", "6", "--prefixes", str(tmp_path / "prefixes")]
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:3]] == ["red", "dog", "old"] and len(out) == 4


def test_lines_may_be_more_than_prefixes(translator):
    lines, options = ["the red dog", "old", "dog"], {"search": SEARCH, "ahead": 2}
    (first,), *others = translator.translate(lines, prefixes=["dog"], **options)
    expected = translator.translate(lines[1:], **options)
    assert first.text.split()[0] == "dog" and [one.text for (one,) in others] == [one.text for (one,) in expected]


def test_a_prefix_is_split_as_a_target(translator, tmp_path, monkeypatch):
    """Moses' words depend on the language."""
    about = replace(Folder.read(translation().exported), path=tmp_path, files={}, moses=["en", "fr"])
    source, target, joined = subwords_of(about)
    assert source("l'homme") == ["l", "&apos;homme"]
    assert target("l'homme") == ["l&apos;", "homme"] and joined(target("l'homme")) == "l'homme"
    monkeypatch.setattr(translator, "_cut_target", lambda prefix: ["dog"])
    ((found,),) = translator.translate(["the red dog"], prefixes=["red"], search=SEARCH)
    assert found.pieces[0] == "dog"


def test_one_text_is_no_list_of_lines(translator):
    with pytest.raises(LeapformerError, match="lines 'the red dog': one text; give a list of texts"):
        next(translator.translate("the red dog"))


def test_too_long_a_line_is_named(translator, monkeypatch, capsys):
    monkeypatch.setitem(vars(translator.folder), "max_source", 4)
    assert translator.pieces("one two three") == ["one", "two", "three"]
    with pytest.raises(
        LeapformerError, match="'one two three four'.. has 5 subwords with its end, and the model reads 4"
    ):
        list(translator.translate(["one", "one two three four"], search=SEARCH))
    with pytest.raises(TooLong, match="'one two three four'.. has 5 subwords with its end, and the model reads 4"):
        list(translator.translate([["one", "two", "three", "four"]], search=SEARCH))


def test_too_long_a_line_is_cut_if_that_is_chosen(translator, monkeypatch, capsys):
    monkeypatch.setitem(vars(translator.folder), "max_source", 4)
    monkeypatch.setattr(runtime, "Translator", lambda folder, threads: translator)
    cut, whole = translator.translate(["the red dog sees", "the red dog"], search=SEARCH, cut=True)
    assert cut == whole
    command: dict[str, Any] = {"monkeypatch": monkeypatch, "capsys": capsys}
    status, out, said = run(translator.folder.path, b"the red dog sees\nold\n", "--too-long", "cut", **command)
    assert (status, out[0]) == (0, run(translator.folder.path, b"the red dog\n", **command)[1][0]) and len(out) == 2
    assert said == (
        "runtime: standard input, line 1: 'the red dog sees'.. has 5 subwords with its end, and the model reads 4; "
        "divide it; 3 of them are read\n"
    )
    assert run(translator.folder.path, b"the red dog sees\nold\n", **command)[:2] == (1, ["", out[1]])


def prompts(max_target: int) -> Translator:
    """What reads prompts, without graphs."""
    reader: Translator = object.__new__(Translator)
    about = {"task": "language_modeling", "max_target": max_target, "multilingual": None}
    about["vocabularies"] = {"target": SimpleNamespace(eos=2), "source": SimpleNamespace(eos=2)}
    reader.folder = SimpleNamespace(path="lm", **about)  # type: ignore[assignment]
    reader._cut = str.split
    return reader


@pytest.mark.parametrize(
    ("max_target", "a", "b", "most"),
    [(50, 0.0, 200, 48), (1000, 0.0, 200, 199), (1000, 0.5, 20, 39), (50, 1.0, 1, 48), (50, 0.0, 1, 0)],
)
def test_a_prompt_leaves_room_for_what_follows(max_target, a, b, most):
    """Of one that does not, the end is read, after which as much may come."""
    reader, search = prompts(max_target), Search(max_len_a=a, max_len_b=b)
    words = [str(number) for number in range(most + 1)]
    assert reader.pieces(" ".join(words[1:]), search=search) == words[1:]
    longest = min(a * most + b, max_target - 1)
    assert most < longest and most + 1 >= min(a * (most + 1) + b, max_target - 1)
    with pytest.raises(
        TooLong, match=f"'0.*'.. has {most + 1} subwords, and the text with it at most .*; shorten"
    ) as told:
        reader.pieces(" ".join(words), search=search)
    readable = told.value.readable
    assert readable == words[len(words) - len(readable) :] and 2 * len(readable) <= most + 1 <= 2 * len(readable) + 1


def test_a_prompt_that_cannot_be_read_is_not_gone_on_with(monkeypatch, capsys):
    reader = prompts(50)
    reader.unknown = lambda pieces: []  # type: ignore[method-assign]
    reader.translate = lambda lines, **options: iter([[Text(" ".join(line), line, 0.0)] for line in lines])  # type: ignore
    monkeypatch.setattr(runtime, "Translator", lambda folder, threads: reader)
    monkeypatch.setattr(runtime.Folder, "read", lambda folder: reader.folder)
    command: dict[str, Any] = {"monkeypatch": monkeypatch, "capsys": capsys}
    assert run("lm", b"a b\n\xff\nc\n", **command)[:2] == (1, ["a b", "", "c"])
    assert run("lm", b"1 2 3 4 5 6\nc\n", **command)[:2] == (1, ["", "c"]), "--max-len-b is 6"
    assert run("lm", b"1 2 3 4 5 6\nc\n", "--too-long", "cut", **command)[:2] == (0, ["4 5 6", "c"])


def test_lines_are_taken_when_they_arrive():
    """As they are typed, or many of a file; the last may have no end."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        found = waiting(stream)
        os.write(writing, b"one\ntwo\nthr")
        assert next(found) == [b"one\n", b"two\n"]
        os.write(writing, b"ee\n\nend")
        os.close(writing)
        assert list(found) == [[b"three\n", b"\n"], [b"end"]]


def test_the_example_of_the_page(monkeypatch, capsys):
    page = Path("docs/export.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (example,) = [example for example in examples if "Translator" in example]
    monkeypatch.chdir(translation().exported.parent)
    capsys.readouterr()  # of the export, if it was made here
    exec(textwrap.dedent(example), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


# ---------------------------------------------------------------------------------------------------------- CTranslate2
@pytest.fixture(scope="module")
def softmax(tmp_path_factory) -> tuple[Any, Path]:
    """A model with softmax everywhere, and its folder for CTranslate2."""
    model = make_model("leapformer_nmt", "softmax", encoder_self_attention="softmax").float()
    folder = tmp_path_factory.mktemp("ctranslate2")
    export_text(model, TASK, folder, "signature", {}, engine=CTRANSLATE2)
    return model, folder


def test_ctranslate2_gives_the_texts_of_greedy_search_and_the_scores_of_the_model(softmax):
    """Some texts are cut. With a beam, its search ends otherwise than fairseq's, so some hypotheses may differ."""
    model, folder = softmax
    greedy = compared(model, TASK, Folder.read(folder), 4, beam=1)
    assert greedy.equal == greedy.sources and greedy.error < 1e-5
    translator, words = Translator(folder), model.decoder.dictionary
    lines, prefixes = ["w1 w2 w3", "w7", "w4 w4 w9 w11 w2"], ["w3", "", "w1 w2"]
    search = Search(beam=3, max_len_a=1.0, max_len_b=3, min_len=0)
    for begins in ([], prefixes):
        found = translator.translate(lines, nbest=3, search=search, prefixes=begins)
        for line, some in zip(lines, found, strict=True):
            source = words.encode_line(line, add_if_not_exist=False).long()[None]
            for one in some:
                target = words.encode_line(" ".join(one.pieces), add_if_not_exist=False).long()
                given = torch.cat([torch.tensor([words.eos()]), target[:-1]])[None]
                with torch.no_grad():
                    scores = model.get_normalized_probs(model(source, torch.tensor([source.shape[1]]), given), True)
                assert abs(one.score - float(scores[0].gather(1, target[:, None]).sum() / len(target))) < 1e-5
                assert len(target) <= source.shape[1] + 4
            assert [one.score for one in some] == sorted((one.score for one in some), reverse=True)
    assert Folder.read(folder).engine == "ctranslate2"


LM = SimpleNamespace(**vars(TASK), args=Namespace(tokens_per_sample=16))
LEARNED, POST_NORM = {"decoder_learned_pos": True, "no_decoder_final_norm": True}, {"decoder_normalize_before": False}


PROJECTED = {"decoder_input_dim": 8, "decoder_output_dim": 8}  # fairseq's default: 512 whatever the width


@pytest.mark.parametrize(
    "options", [{}, LEARNED, POST_NORM, PROJECTED], ids=["sinusoidal", "learned", "post-norm", "projected"]
)
def test_language_models_go_on_in_ctranslate2(options, tmp_path, monkeypatch, capsys):
    model = make_model("leapformer_lm_tiny", "softmax", tokens_per_sample=16, **options).float()
    folder = export_text(model, LM, tmp_path, "signature", {}, engine=CTRANSLATE2)
    greedy, beam = (compared(model, LM, folder, 6, size) for size in (1, 5))
    assert greedy.equal == greedy.sources and greedy.error < 1e-5
    assert beam.equal >= beam.sources / 3
    status, out, _ = run(tmp_path, b"w1 w2\n\n", "--beam", "1", monkeypatch=monkeypatch, capsys=capsys)
    assert status == 0 and out[0].startswith("w1 w2") and len(out) == 2
    (cut,) = Translator(tmp_path).hypotheses([["w1"] * 9], Search(beam=3, max_len_b=4))
    assert [one.tokens for one in cut] == [[4 + 1] * 4 + [2]]


def test_a_comparison_reads_what_the_model_can(tmp_path):
    """Random lines may have more subwords than it."""
    model = make_model("leapformer_lm_tiny", "softmax", tokens_per_sample=12, decoder_learned_pos=True).float()
    folder = export_text(model, LM, tmp_path, "signature", {}, engine=CTRANSLATE2)
    assert compared(model, LM, replace(folder, max_source=None), 6, beam=1) == (6, 6, pytest.approx(0, abs=1e-4))


@pytest.mark.parametrize(
    ("arch", "options", "reason"),
    [
        ("leapformer_lm_tiny", {"adaptive_input": True, "adaptive_input_cutoff": "10"}, "adaptive input"),
        ("leapformer_lm_tiny", {"adaptive_softmax_cutoff": "10"}, "adaptive softmax"),
        ("leapformer_lm_tiny", {"decoder_input_dim": 8}, "projection of only one of the decoder's input and output"),
        ("leapformer_lm_tiny", {"scale_attn": True}, "attn_ln in a layer"),
        ("leapformer_lm_tiny", {"scale_resids": True}, "w_resid in a layer"),
        ("leapformer_nmt", {"decoder_output_dim": 8}, "projection of only one of the decoder's input and output"),
        ("leapformer_nmt", {"no_cross_attention": True}, "decoder without cross-attention"),
    ],
)
def test_what_ctranslate2_has_not(arch, options, reason, tmp_path):
    model = make_model(
        arch, "softmax", tokens_per_sample=40, **{"encoder_self_attention": "softmax", **options}
    ).float()
    with pytest.raises(LeapformerError, match=f"--engine ctranslate2: it has no {reason}; export with --engine onnx"):
        export_text(model, LM, tmp_path, "signature", {}, engine=CTRANSLATE2)


@pytest.mark.parametrize(
    ("arch", "read", "said"),
    [
        ("leapformer_nmt", 9, "has 10 subwords with its end, and the model reads 9"),
        ("leapformer_lm_tiny", 7, "has 7 subwords, and the text with it at most 6"),
    ],
)
def test_lines_beyond_the_table_of_positions_are_told(arch, read, said, tmp_path):
    lengths = {"max_source_positions": 9, "max_target_positions": 7, "tokens_per_sample": 7}
    model = make_model(arch, "softmax", encoder_self_attention="softmax", **lengths).float()
    export_text(model, LM, tmp_path, "signature", {}, engine=CTRANSLATE2)
    translator = Translator(tmp_path)
    with pytest.raises(LeapformerError, match=said):
        translator.pieces(" ".join(["w1"] * read))
    ((best,),) = translator.translate([" ".join(["w1"] * (read - 2))])
    assert len(best.pieces) <= 6


def test_rounding_to_8_bits_leaves_the_model_as_it_is(softmax, tmp_path):
    model, _ = softmax
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    export_text(model, TASK, tmp_path, "signature", {}, eight_bits=True, engine=CTRANSLATE2)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert next(Translator(tmp_path).translate(["w1 w2 w3"]))[0].text


def test_what_only_graphs_can_do_is_told(softmax, tmp_path):
    with pytest.raises(LeapformerError, match="is for ctranslate2; export it with --engine onnx for this"):
        Graphs(Folder.read(softmax[1]))
    with pytest.raises(LeapformerError, match="without attention weights; export it with --engine onnx --alignments"):
        next(Translator(softmax[1]).translate(["w1"], alignments=True))
    other = make_model("leapformer_nmt", "softmax", decoder_cross_attention="leap").float()
    with pytest.raises(LeapformerError, match="--engine ctranslate2: it has no leap attention; export with"):
        export_text(other, TASK, tmp_path, "signature", {}, engine=CTRANSLATE2)


def test_options_that_ctranslate2_has_not_are_told(softmax):
    translator = Translator(softmax[1])
    for name, options in {
        "--sampling": {"sampling": True}, "--temperature": {"temperature": 0.5}, "--unkpen": {"unk_penalty": 1.0},
    }.items():  # fmt: skip
        with pytest.raises(LeapformerError, match=f"{name}: .* is for CTranslate2; export it with --engine onnx"):
            list(translator.translate(["w1"], search=Search(**options)))
    line, short = ["w4 w4 w9 w11 w2"], Search(max_len_b=20, min_len=15)
    plain, guarded = (
        next(translator.translate(line, search=search))[0].pieces
        for search in (short, replace(short, no_repeat_ngram_size=2))
    )
    pairs = list(itertools.pairwise(guarded))
    assert len(set(pairs)) == len(pairs) >= 14 and len(set(itertools.pairwise(plain))) < len(plain) - 1


def test_ctranslate2_has_threads_and_is_shared_by_threads(softmax):
    lines = ["w1 w2 w3", "w7", "w4 w4 w9 w11 w2"] * 4
    search = Search(beam=3, max_len_b=6)
    expected = [[one.text for one in some] for some in Translator(softmax[1]).translate(lines, search=search)]
    assert at_once(Translator(softmax[1], threads=2), lines, search) == [expected] * 8


def test_a_final_norm_on_one_side_is_told(tmp_path):
    model = make_model(
        "leapformer_nmt", "softmax", decoder_normalize_before=True, encoder_normalize_before=True
    ).float()
    model.decoder.layer_norm = None  # as with --no-decoder-final-norm
    with pytest.raises(LeapformerError, match="--engine ctranslate2: it has no encoder that is normalised elsewhere"):
        export_text(model, TASK, tmp_path, "signature", {}, engine=CTRANSLATE2)


def test_a_damaged_model_of_ctranslate2_is_refused(softmax, tmp_path):
    folder = shutil.copytree(softmax[1], tmp_path / "copy")
    data = bytearray((folder / "model.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.bin").write_bytes(data)
    with pytest.raises(LeapformerError, match="model.bin is damaged, or of another export"):
        Translator(folder)


# ------------------------------------------------------------------------------------------------------------- subwords
CODES = ["t h", "th e</w>", "r e", "re d</w>", "h o", "ho u", "l o", "lo w"]
LINES = ["the red house", "It's a low-cost house, isn't it?", 'a  &  b <c> "quoted"', "Größe: 3,5 %"]


def functions_with(out: Path, given: Subwords, *names: str) -> tuple[Cut, Joined]:
    """Those of a folder with such subwords, in files of these names."""
    out.mkdir()
    about = replace(Folder.read(translation().exported), path=out, files={})
    folder = replace(_with_subwords(about, given), files=dict.fromkeys(names))
    object.__setattr__(folder, "file", lambda name: out / name)
    cut, cut_target, joined = subwords_of(folder)
    assert given.moses or cut_target is cut
    return cut, joined


def gpt2_files(folder: Path) -> tuple[Path, Path]:
    merges = ["h e", "\u0120 t", "\u0120t he", "r e", "re d"]  # \u0120 is a space
    symbols = [*LETTERS, *(merge.replace(" ", "") for merge in merges)]
    (folder / "encoder.json").write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols, 7)}))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    return folder / "encoder.json", folder / "vocab.bpe"


@pytest.mark.parametrize("counted", [False, True], ids=["subword-nmt", "fastBPE"])
@pytest.mark.parametrize("moses", [None, ("en", "de")], ids=["words", "moses"])
def test_plain_text_is_split_and_joined_as_in_fairseq(tmp_path, counted, moses):
    codes = tmp_path / "codes"
    lines = [f"{line} {9 - i}" for i, line in enumerate(CODES)] if counted else ["#version: 0.2", *CODES]
    codes.write_text("\n".join(lines) + "\n")
    cut, joined = functions_with(tmp_path / "out", Subwords(codes=codes, moses=moses), CODES_FILE)
    reference = tmp_path / "reference"  # as subword-nmt, since fastBPE is not installed
    reference.write_text("\n".join(["#version: 0.2", *CODES]) + "\n")
    bpe = build_bpe(Namespace(bpe="subword_nmt", bpe_codes=str(reference), bpe_separator="@@"))
    words = build_tokenizer(Namespace(tokenizer="moses" if moses else None, source_lang="en", target_lang="de"))
    for line in LINES:
        expected = bpe.encode(words.encode(line) if words else line)
        assert cut(line) == expected.split()
        back = bpe.decode(expected)
        assert joined(expected.split()) == (words.decode(back) if words else " ".join(back.split()))


def test_folders_split_and_join_as_gpt2(tmp_path):
    files = gpt2_files(tmp_path)
    cut, joined = functions_with(tmp_path / "out", Subwords(gpt2=files), *GPT2)
    bpe = build_bpe(Namespace(bpe="gpt2", gpt2_encoder_json=str(files[0]), gpt2_vocab_bpe=str(files[1])))
    for line in LINES:
        assert cut(line) == bpe.encode(line).split() and joined(cut(line)) == line == bpe.decode(" ".join(cut(line)))


def test_subwords_of_another_vocabulary_are_refused(tmp_path):
    """Others than half of a dictionary's symbols are."""
    codes, files = tmp_path / "codes", gpt2_files(tmp_path)
    codes.write_text("\n".join(CODES) + "\n")
    numbers = [str(number) for number in json.loads(files[0].read_text()).values()]
    model = SentencePieceProcessor(model_file=str(subwords()))
    fitting: list[tuple[Subwords, list[str]]] = [
        (Subwords(codes=codes), ["the", "th@@", "red", "hou@@", "a", "b@@"]),
        (Subwords(gpt2=files), numbers),
        (Subwords(sentencepiece=subwords()), [model.id_to_piece(number) for number in range(model.get_piece_size())]),
    ]
    for place, (given, symbols) in enumerate(fitting):
        check_subwords(given, ["<s>", *symbols, *(["<lang:de>", "madeupword0000"] if place else [])])
        for _, others in fitting[:place] + fitting[place + 1 :]:
            with pytest.raises(LeapformerError, match="is of another vocabulary: it makes .* of the dictionary's"):
                check_subwords(given, others)
    with pytest.raises(LeapformerError, match="--sentencepiece-model .*codes is no model of sentencepiece"):
        check_subwords(Subwords(sentencepiece=codes), ["a"])


@pytest.mark.parametrize("line", ["t h 3 4", "th", "t  h", "t h x"])
def test_what_are_no_codes(tmp_path, line):
    (tmp_path / "codes").write_text(f"#version: 0.2\nt h\n{line}\n")
    with pytest.raises(LeapformerError, match="--bpe-codes .*codes, line 3: .* are no two symbols; give the codes of"):
        list(codes_of(tmp_path / "codes"))
