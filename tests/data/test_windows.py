"""Documents: where they end, the windows of sentences they become, and what `leapformer prepare` makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import parallel, releases
from leapformer_fairseq.data.parallel import split_documents, windows
from leapformer_fairseq.support.errors import LeapformerError

from .text_trees import SIZES, TALKS, archive, iwslt14_talks_archive, talks, text

DATASET = parallel.DATASETS["iwslt14-documents"]
A, B, C, D = ((list(word), list(word.upper())) for word in ("a", "bb", "c", "d"))
BREAK: tuple[list[str], list[str]] = ([], [])


def prepared(root: Path, out: Path, window: int = 4) -> dict:
    return parallel.prepare(replace(DATASET, window=window), root, out, "es-en", 150)


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def read_windows(path: Path) -> list[list[str]]:
    """The sentences of each window, as text again."""
    lines = (line.replace(" ", "").replace("▁", " ") for line in read(path))
    return [[sentence.strip() for sentence in line.split("<sep>")] for line in lines]


def expected_windows(documents: list[list[str]], size: int) -> list[list[str]]:
    found = []
    for document in documents:
        for last in range(len(document)):
            found.append([document[n] for n in range(len(document)) if last - size < n <= last])
    return found


def plain_tree(root: Path, **more: dict[str, list[str]]) -> Path:
    """ROOT/{train,valid,test}.{es,en} with an empty line between talks, and `more` lines at the end of a split."""
    root.mkdir(parents=True)
    for split in SIZES:
        for language, found in talks(split).items():
            lines = [line for talk in found for line in (*talk, "")][:-1]
            (root / f"{split}.{language}").write_text(text(lines + more.get(split, {}).get(language, [])), "utf-8")
    return root


# ----------------------------------------------------------------------------------------------------------- windows
def test_a_window_ends_with_each_sentence():
    assert list(windows([A, B, C, D], 3)) == [
        (["a"], ["A"]),
        (["a", "<sep>", "b", "b"], ["A", "<sep>", "B", "B"]),
        (["a", "<sep>", "b", "b", "<sep>", "c"], ["A", "<sep>", "B", "B", "<sep>", "C"]),
        (["b", "b", "<sep>", "c", "<sep>", "d"], ["B", "B", "<sep>", "C", "<sep>", "D"]),
    ]
    assert list(windows([A, B], 1)) == [A, B]
    assert list(windows([], 4)) == []


def test_both_sides_have_as_many_separators_where_one_is_empty():
    assert list(windows([A, (["b"], []), C], 3))[-1] == (
        ["a", "<sep>", "b", "<sep>", "c"],
        ["A", "<sep>", "<sep>", "C"],
    )


def test_documents_end_where_both_sides_are_empty():
    half = (["b"], [])
    assert list(split_documents([BREAK, A, half, BREAK, BREAK, C, BREAK])) == [[A, half], [C]]
    assert list(split_documents([A, B])) == [[A, B]]
    assert list(split_documents([BREAK])) == []


# ----------------------------------------------------------------------------------------------------------- release
def test_talks_of_the_release(tmp_path):
    root = iwslt14_talks_archive(tmp_path)
    releases.iwslt14_documents(root, ("es", "en"), download=False)
    for split in SIZES:
        for language, found in talks(split).items():
            lines = "\n".join(read(root / f"{split}.{language}"))
            assert lines.split("\n\n") == ["\n" * (n == 0) + "\n".join(talk) for n, talk in enumerate(found)]


def test_sets_of_iwslt17(tmp_path):
    """Each year has a sentence of its own; dev2010 and tst2010 are neither validated nor tested on."""
    files = {}
    for language in ("en", "fr"):
        files[f"en-fr/train.tags.en-fr.{language}"] = (
            f"<url>http://talk</url>\n<title>A talk</title>\n train {language} \n"
        )
        for name in ("dev2010", *(f"tst{year}" for year in range(2010, 2016))):
            files[f"en-fr/IWSLT17.TED.{name}.en-fr.{language}.xml"] = f'<seg id="1"> {name} {language} </seg>\n'
    root = archive(tmp_path / "en-fr.tgz", files)
    releases.iwslt17(root, ("en", "fr"), download=False)
    assert read(root / "train.fr") == ["A talk", "train fr"]
    assert read(root / "valid.en") == [f"tst{year} en" for year in (2011, 2012, 2013, 2014)]
    assert read(root / "test.fr") == ["tst2015 fr"]
    (root / "test.fr").unlink()
    (root / "en-fr.tgz").unlink()
    with pytest.raises(LeapformerError, match=r"test.fr, and no en-fr.tgz .*2017-01-c, whose texts hold en-fr.tgz"):
        releases.iwslt17(root, ("en", "fr"), download=True)


def test_where_to_get_what_is_missing(tmp_path, capsys):
    plain_tree(tmp_path / "data")
    (tmp_path / "data/test.en").unlink()
    assert main(["prepare", "iwslt14-documents", str(tmp_path / "data"), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "data/test.en, and no es-en.tgz" in line and releases.IWSLT14_PAGE in line and "texts/es/en/es-en.tgz" in line
    )
    assert not (tmp_path / "out").exists()


def test_a_foreign_archive_is_named(tmp_path):
    root = archive(tmp_path / "en-es.tgz", {"es-en/train.tags.es-en.es": "x\n"})
    with pytest.raises(LeapformerError, match=r"en-es\.tgz holds no en-es/train\.tags\.en-es\.en"):
        releases.iwslt14_documents(root, ("en", "es"), download=False)


# ----------------------------------------------------------------------------------------------------------- prepare
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("tree", [iwslt14_talks_archive, plain_tree])
def test_every_sentence_ends_one_window_of_its_talk(tree, window, tmp_path):
    summary = prepared(tree(tmp_path / "data"), tmp_path / "out", window)
    for split in SIZES:
        for language, found in talks(split).items():
            assert read_windows(tmp_path / f"out/{split}.{language}") == expected_windows(found, window)
            if split != "train":
                assert read(tmp_path / f"out/raw/{split}.{language}") == [line for talk in found for line in talk]
        assert summary[split] == {"pairs": SIZES[split], "documents": len(TALKS[split]), "dropped": {}}


def test_the_separator_is_in_the_dictionary_and_in_no_text(tmp_path):
    odd = {"es": ["", "a <sep> b<sep>"], "en": ["", "<sep>"]}
    prepared(plain_tree(tmp_path / "data", train=odd, test=odd), tmp_path / "out")
    assert [line for line in read(tmp_path / "out/spm.txt") if line.startswith("<sep> ")] == ["<sep> 1"]
    for split in ("train", "test"):
        assert "<sep>" not in read(tmp_path / f"out/{split}.en")[-1].split(), "a talk of one sentence"
    assert read(tmp_path / "out/raw/test.en")[-1] == "<sep>"


def test_what_is_left_out_of_training_is_missing_in_the_windows_of_others(tmp_path):
    odd = {"es": ["", "uno", "", "palabra " * 200, "dos"], "en": ["", "one", "empty", "word", "two"]}
    summary = prepared(plain_tree(tmp_path / "data", train=odd, test=odd), tmp_path / "out")
    assert summary["train"]["dropped"] == {"empty": 1, "too long": 1}
    assert read_windows(tmp_path / "out/train.en")[-2:] == [["one"], ["one", "two"]]
    assert summary["train"]["pairs"] == SIZES["train"] + 2
    assert read_windows(tmp_path / "out/test.en")[-1] == ["one", "empty", "word", "two"], "all is tested"
    assert summary["test"] == {"pairs": SIZES["test"] + 4, "documents": len(TALKS["test"]) + 1, "dropped": {}}
    assert read(tmp_path / "out/raw/test.es")[-4:] == ["uno", "", " ".join(["palabra"] * 200), "dos"]


def test_one_width_of_window_in_a_folder(tmp_path, capsys):
    root, out = plain_tree(tmp_path / "data"), tmp_path / "out"
    command = ["prepare", "iwslt14-documents", str(root), "--out", str(out), "--vocab-size", "150"]
    assert main(command) == 0
    assert "train: 60 sentence pairs of 3 documents; left out: none" in capsys.readouterr().out
    assert main([*command, "--window", "4"]) == 0
    assert main([*command, "--window", "2"]) == 2
    assert "prepared with window 4, not 2" in capsys.readouterr().err
    assert main([*command, "--window", "0"]) == 2
    assert "--window 0: give a whole number" in capsys.readouterr().err


def test_single_sentences_know_no_window(tmp_path, capsys):
    assert main(["prepare", "iwslt14", str(tmp_path), "--out", str(tmp_path / "out"), "--window", "4"]) == 2
    assert "--window" in capsys.readouterr().err
