"""Text data sets: reading, releases, downloads, and what `leapformer prepare` makes of them."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest
import sentencepiece

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import parallel, releases, wikitext
from leapformer_fairseq.data.download import fetch, member_lines
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.lines import find_text, read_lines, read_pairs, write_lines

from .text_trees import (
    SIZES,
    archive,
    iwslt14_archive,
    multi30k_tree,
    plain_tree,
    sentences,
    text,
    wikitext_tree,
    wmt14_archives,
)


def prepared(name: str, root: Path, out: Path, pair: str | None = None, vocab_size: int = 150, **more: bool) -> dict:
    dataset = parallel.DATASETS[name]
    return parallel.prepare(dataset, root, out, pair or dataset.pair, vocab_size, **more)


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


# ------------------------------------------------------------------------------------------------------------- lines
def test_gzip_is_read_alike(tmp_path):
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert find_text(tmp_path, ["b.en", "a.en"]) == tmp_path / "a.en.gz"
    assert list(read_lines(tmp_path / "a.en.gz")) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.gz", b"no gzip"), ("b.gz", gzip.compress(b"cut off" * 99)[:-9]), ("c.txt", b"\xff\xfe"), ("d.txt", None)],
    ids=["no gzip", "cut off", "no UTF-8", "missing"],  # gzip writes the time: two processes must agree on the names
)
def test_unreadable_text_is_named(name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LeapformerError, match=f"{name}(, line 1, is not UTF-8| cannot be read)"):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize("shorter", ["en", "de"])
def test_misaligned_lines_are_counted(shorter, tmp_path):
    for language in ("en", "de"):
        write_lines(tmp_path / f"a.{language}", ["x"] * (2 if language == shorter else 5))
    with pytest.raises(LeapformerError, match="has [25] lines but .* has [25]"):
        list(read_pairs(tmp_path / "a.en", tmp_path / "a.de"))


# ---------------------------------------------------------------------------------------------------- parallel text
def test_encoded_text_can_be_written_again(tmp_path):
    prepared("multi30k", multi30k_tree(tmp_path / "data"), tmp_path / "out")
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out/spm.model"))
    for split in SIZES:
        for language, lines in sentences(split).items():
            assert [model.decode(line.split()) for line in read(tmp_path / f"out/{split}.{language}")] == lines
            if split != "train":
                assert read(tmp_path / f"out/raw/{split}.{language}") == lines


def test_the_dictionary_has_every_subword_of_the_training_text_once(tmp_path):
    prepared("multi30k", multi30k_tree(tmp_path / "data", zipped=False), tmp_path / "out")
    pieces = [line.rsplit(" ", 1)[0] for line in read(tmp_path / "out/spm.txt")]
    used = {piece for name in ("en", "de") for line in read(tmp_path / f"out/train.{name}") for piece in line.split()}
    assert len(set(pieces)) == len(pieces) <= 150
    assert used <= set(pieces)


def test_pairs_unfit_for_training_are_counted_and_no_others_lost(tmp_path):
    root = plain_tree(tmp_path / "data")
    odd = {"en": ["", "word " * 300, "yes"], "de": ["leer", "Wort " * 300, "ja " * 40]}
    for split in ("train", "test"):
        for language, lines in odd.items():
            with open(root / f"{split}.{language}", "a", encoding="utf-8") as file:
                file.write(text(lines))
    summary = prepared("wmt14", root, tmp_path / "out")
    dropped = summary["train"]["dropped"]
    assert dropped["empty"] == dropped["too long"] == 1 and dropped["lengths differ"] >= 1
    assert summary["train"]["pairs"] == SIZES["train"] + 3 - sum(dropped.values())
    assert len(read(tmp_path / "out/train.en")) == len(read(tmp_path / "out/train.de")) == summary["train"]["pairs"]
    assert summary["test"]["pairs"] == SIZES["test"] + 3 == len(read(tmp_path / "out/raw/test.de"))


def test_references_keep_one_line_each(tmp_path):
    root = plain_tree(tmp_path / "data")
    (root / "test.en").write_text("a\u2028b\nc\x0bd\n", encoding="utf-8")
    (root / "test.de").write_text("x\u00a0y\t!\nz\r\n", encoding="utf-8")
    prepared("wmt14", root, tmp_path / "out")
    assert (tmp_path / "out/raw/test.en").read_text(encoding="utf-8").splitlines() == ["a b", "c d"]
    assert (tmp_path / "out/raw/test.de").read_text(encoding="utf-8").splitlines() == ["x y !", "z"]


def test_what_is_finished_is_kept_and_other_data_refused(tmp_path):
    root, out = plain_tree(tmp_path / "data"), tmp_path / "out"
    first = prepared("wmt14", root, out)
    before = (out / "train.en").stat().st_mtime_ns
    (root / "train.en").unlink()  # not needed any more
    assert prepared("wmt14", root, out) == first
    assert (out / "train.en").stat().st_mtime_ns == before
    with pytest.raises(LeapformerError, match="prepared with pair en-de, not de-en"):
        prepared("wmt14", root, out, pair="de-en")
    with pytest.raises(LeapformerError, match="holds something else"):
        prepared("wmt14", plain_tree(tmp_path / "again"), root)


def test_an_interrupted_preparation_starts_again(tmp_path):
    root, out = plain_tree(tmp_path / "data"), tmp_path / "out"
    good = (root / "test.de").read_bytes()
    (root / "test.de").write_bytes(good + b"noch einer\n")
    with pytest.raises(LeapformerError, match="do not match line by line"):
        prepared("wmt14", root, out)
    (root / "test.de").write_bytes(good)
    assert prepared("wmt14", root, out)["test"]["pairs"] == SIZES["test"]


@pytest.mark.parametrize("pair", ["en", "en-en", "en-ru", "en-de-fr", ""])
def test_impossible_pair_is_refused(pair, tmp_path):
    with pytest.raises(LeapformerError, match=r"multi30k has en, de, fr; give two of them, e\.g\. en-de"):
        parallel.prepare(parallel.DATASETS["multi30k"], tmp_path, tmp_path / "out", pair, 100)


def test_too_many_subwords_are_refused(tmp_path):
    with pytest.raises(LeapformerError, match="cannot train a subword model of 10 pieces"):
        prepared("wmt14", plain_tree(tmp_path / "data"), tmp_path / "out", vocab_size=10)


# ---------------------------------------------------------------------------------------------------------- releases
def test_iwslt14_release(tmp_path):
    root = iwslt14_archive(tmp_path / "data")
    releases.iwslt14(root, ("de", "en"), download=False)
    said = ["The Talk", *sentences("train")["de"], ""]
    assert read(root / "valid.de") == said[22::23]
    assert read(root / "train.de") == [line for n, line in enumerate(said, 1) if n % 23]
    assert read(root / "test.en") == sentences("test")["en"][:5]


def test_wmt14_release(tmp_path):
    root = wmt14_archives(tmp_path / "data")
    releases.wmt14(root, ("en", "de"), download=False)
    for split in SIZES:
        assert read(root / f"{split}.de") == sentences(split)["de"]
    assert read(root / "test.en") == sentences("test")["en"]


def test_files_that_are_there_are_not_replaced(tmp_path):
    root = wmt14_archives(tmp_path / "data")
    (root / "valid.de").write_text("mine\n", encoding="utf-8")
    releases.wmt14(root, ("en", "de"), download=False)
    assert read(root / "valid.de") == ["mine"]


def test_a_foreign_archive_is_named(tmp_path):
    root = archive(tmp_path / "data/de-en.tgz", {"other.txt": "x\n"})
    with pytest.raises(LeapformerError, match=r"de-en\.tgz holds no de-en/train\.tags\.de-en\.de"):
        releases.iwslt14(root, ("de", "en"), download=False)
    assert not list(root.glob("*.de"))


def test_a_damaged_archive_is_named(tmp_path):
    root = iwslt14_archive(tmp_path / "data")
    (root / "de-en.tgz").write_bytes((root / "de-en.tgz").read_bytes()[:2000])
    with pytest.raises(LeapformerError, match=r"de-en\.tgz cannot be read"):
        releases.iwslt14(root, ("de", "en"), download=False)


def test_wikitext_release(tmp_path, monkeypatch):
    tree = wikitext_tree(tmp_path / "tree", suffix=".tokens")
    with zipfile.ZipFile(tmp_path / "wikitext-2-v1.zip", "w") as opened:
        for path in tree.iterdir():
            opened.write(path, f"wikitext-2/{path.name}")
    monkeypatch.setattr(releases, "WIKITEXT", f"{tmp_path.as_uri()}/wikitext-{{size}}-v1.zip")
    wikitext.prepare("wikitext2", tmp_path / "new", tmp_path / "out", {}, download=True)
    assert read(tmp_path / "new/wiki.test.tokens") == read(tree / "wiki.test.tokens")


def test_multi30k_download(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "MULTI30K", multi30k_tree(tmp_path / "far").as_uri())
    prepared("multi30k", tmp_path / "near", tmp_path / "out", download=True)
    names = {path.name for path in (tmp_path / "near").iterdir()}
    assert names == {path.name for path in (tmp_path / "far").iterdir()}


def test_a_failed_download_leaves_nothing(tmp_path):
    with pytest.raises(LeapformerError, match="cannot be downloaded .* put it at"):
        fetch((tmp_path / "nothing.gz").as_uri(), tmp_path / "here/nothing.gz")
    assert not list((tmp_path / "here").iterdir())


def test_lines_of_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as opened:
        opened.writestr("in/a.txt", "one\ntwö\n")
    assert list(member_lines(tmp_path / "a.zip", "in/a.txt")) == ["one", "twö"]
    with pytest.raises(LeapformerError, match=r"a\.zip holds no b\.txt"):
        list(member_lines(tmp_path / "a.zip", "b.txt"))


# ---------------------------------------------------------------------------------------------------------- wikitext
def test_wikitext_keeps_words_and_line_ends(tmp_path, capsys):
    root = wikitext_tree(tmp_path / "data")
    assert main(["prepare", "wikitext103", str(root), "--out", str(tmp_path / "out")]) == 0
    for split in SIZES:
        found, given = read(tmp_path / f"out/{split}.txt"), read(root / f"{split}.txt")
        assert [line.split() for line in found] == [line.split() for line in given]
    tokens = sum(len(line.split()) + 1 for line in read(root / "test.txt"))
    assert wikitext.count_tokens(root / "test.txt") == tokens
    assert f"test: {tokens} tokens" in capsys.readouterr().out


def test_training_on_the_validation_text(tmp_path):
    root = wikitext_tree(tmp_path / "data", ("valid", "test"))
    summary = wikitext.prepare("wikitext2", root, tmp_path / "out", {}, train_on_valid=True)
    both = read(tmp_path / "out/train.txt") + read(tmp_path / "out/valid.txt")
    assert both == [" ".join(line.split()) for line in read(root / "valid.txt")]
    share = summary["tokens"]["train"] / wikitext.count_tokens(root / "valid.txt")
    assert 0.9 <= share < 0.95
    state = json.loads((tmp_path / "out/prepared.json").read_text(encoding="utf-8"))
    assert state["options"]["train_on_valid"] is True
    with pytest.raises(LeapformerError, match="prepared with train_on_valid True, not False"):
        wikitext.prepare("wikitext2", root, tmp_path / "out", {})


def test_files_may_be_given_one_by_one(tmp_path):
    root = wikitext_tree(tmp_path / "data")
    files = {split: str(root / f"{split}.txt") for split in SIZES}
    wikitext.prepare("wikitext2", None, tmp_path / "out", files)
    assert len(read(tmp_path / "out/valid.txt")) == len(read(root / "valid.txt"))


@pytest.mark.parametrize(
    ("splits", "files", "train_on_valid", "message"),
    [
        (("valid", "test"), {}, False, r"no train\.txt.*--train FILE.*--train-on-valid"),
        (("train", "valid"), {}, False, r"no test\.txt"),
        (("train", "valid"), {}, True, r"no test\.txt"),
        (("valid", "test"), {"train": "nowhere.txt"}, False, r"--train nowhere\.txt: no such file"),
    ],
)
def test_missing_wikitext_is_named(splits, files, train_on_valid, message, tmp_path):
    root = wikitext_tree(tmp_path / "data", splits)
    with pytest.raises(LeapformerError, match=message):
        wikitext.prepare("wikitext2", root, tmp_path / "out", files, train_on_valid)
    assert not (tmp_path / "out").exists()


def test_neither_folder_nor_files(tmp_path, capsys):
    assert main(["prepare", "wikitext2", "--out", str(tmp_path / "out")]) == 2
    assert "needs its folder, or --train, --valid, --test" in capsys.readouterr().err


def test_too_little_validation_text(tmp_path):
    root = wikitext_tree(tmp_path / "data", ("valid", "test"))
    (root / "valid.txt").write_text("one line\n", encoding="utf-8")
    with pytest.raises(LeapformerError, match="1 lines, too few to train on"):
        wikitext.prepare("wikitext2", root, tmp_path / "out", {}, train_on_valid=True)
