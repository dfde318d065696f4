"""GLUE: reading the release's tables, and what `leapformer prepare glue` makes of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import sentencepiece

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import labelled, releases
from leapformer_fairseq.data.labelled import TASKS, Example, read_examples
from leapformer_fairseq.data.vocabulary import make_vocabulary
from leapformer_fairseq.support.errors import LeapformerError

from .glue_trees import COUNTS, english, mnli_tree, qnli_tree, sst2_tree, write_table


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    make_vocabulary(folder, lambda: iter([*english("train"), *english("dev"), *english("test"), '"_mat ched']), 150)
    return folder


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def decoded(path: Path) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path.parent.parent / "spm.model"))
    return [model.decode(line.split()) for line in read(path)]


# ----------------------------------------------------------------------------------------------------------- reading
def test_quotation_marks_are_text_and_only_line_feeds_end_lines(tmp_path):
    rows = [('"so bad\u2028it is good', "1"), ('it "is', "0"), ("''fine''", "1")]
    path = write_table(tmp_path / "dev.tsv", ("sentence", "label"), rows)
    assert read_examples(path, TASKS["SST-2"]) == ([Example((one,), label) for one, label in rows], 0)


def test_columns_are_found_by_their_names(tmp_path):
    found, _ = read_examples(mnli_tree(tmp_path) / "MNLI/dev_matched.tsv", TASKS["MNLI"])
    first = english("dev")[0]
    assert found[0] == Example((first, f"{first} dev_matched"), "contradiction"), "gold_label, not an annotator's"
    assert [one.label for one in found[1:3]] == ["neutral", "entailment"]


def test_test_sets_have_no_labels(tmp_path):
    path = sst2_tree(tmp_path) / "SST-2/test.tsv"
    found, _ = read_examples(path, TASKS["SST-2"], labelled=False)
    assert found == [Example((one,), None) for one in english("test")]
    with pytest.raises(
        LeapformerError, match=r"test\.tsv has no column label but index, sentence; .*no labels"
    ) as caught:
        read_examples(path, TASKS["SST-2"])
    assert "\n" not in str(caught.value)


def test_line_ends_of_windows(tmp_path):
    (tmp_path / "dev.tsv").write_bytes(b"sentence\tlabel\r\nfine\t1\r\n")
    assert read_examples(tmp_path / "dev.tsv", TASKS["SST-2"])[0] == [Example(("fine",), "1")]


def test_the_lines_that_qqp_lacks_fields_in_are_left_out_and_counted(tmp_path):
    columns = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    rows = [("1", "2", "3", "a", "b", "0"), ("4", "5", "6", "half"), ("7", "8", "9", "c", "d", "1")]
    path = write_table(tmp_path / "train.tsv", columns, rows)
    assert read_examples(path, TASKS["QQP"]) == ([Example(("a", "b"), "0"), Example(("c", "d"), "1")], 1)


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (("text", "label"), [("fine", "1")], "has no column sentence but text, label; is it the SST-2 of GLUE"),
        ((), [], "has no column sentence but none"),
        (("sentence", "label"), [("fine", "1"), ("a", "b", "1")], "line 3: 3 fields, 2 in the header"),
        (("sentence", "label"), [("fine",)], "line 2: 1 fields, 2 in the header"),
        (("sentence", "label"), [("fine", "-")], "line 2: label '-', but SST-2 has 0, 1"),
        (("sentence", "label"), [], "holds no examples"),
    ],
)
def test_other_tables_are_named(columns, rows, message, tmp_path):
    path = write_table(tmp_path / "dev.tsv", columns, rows)
    with pytest.raises(LeapformerError, match=message) as caught:
        read_examples(path, TASKS["SST-2"])
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


# --------------------------------------------------------------------------------------------------------- preparing
def test_pairs_labels_and_both_sets_of_mnli(tmp_path, vocabulary, capsys):
    root, out = mnli_tree(tmp_path / "data"), tmp_path / "out"
    command = ["prepare", "glue", "MNLI", str(root), "--out", str(out), "--vocabulary", str(vocabulary)]
    assert main(command) == 0
    assert "valid1: 11 examples; left out: 0" in capsys.readouterr().out
    for split, name, kind in (("train", "train", "train"), ("valid1", "dev_mismatched", "dev"), ("test1", "", "test")):
        assert decoded(out / "input0" / split) == english(kind)
        if name:
            assert decoded(out / "input1" / split) == [f"{one} {name}" for one in english(kind)]
            assert read(out / "label" / split)[:3] == ["contradiction", "neutral", "entailment"]
    assert not (out / "label/test").exists() and not (out / "label/test1").exists()
    assert read(out / "label/dict.txt") == ["contradiction 1", "neutral 1", "entailment 1"]
    assert (out / "dict.txt").read_bytes() == (vocabulary / "dict.txt").read_bytes()


def test_single_sentences_and_missing_test_sets(tmp_path, vocabulary):
    root = sst2_tree(tmp_path / "data")
    (root / "SST-2/test.tsv").unlink()
    summary = labelled.prepare_task("SST-2", root, tmp_path / "out", vocabulary)
    assert {split: found["examples"] for split, found in summary.items()} == {
        "train": COUNTS["train"],
        "valid": COUNTS["dev"],
    }
    assert not (tmp_path / "out/input1").exists()


def test_what_is_finished_is_kept_and_other_data_refused(tmp_path, vocabulary):
    root, out = qnli_tree(tmp_path / "data"), tmp_path / "out"
    first = labelled.prepare_task("QNLI", root, out, vocabulary)
    (root / "QNLI/train.tsv").unlink()  # not needed any more
    assert labelled.prepare_task("QNLI", root, out, vocabulary) == first
    with pytest.raises(LeapformerError, match="prepared with task QNLI, not SST-2"):
        labelled.prepare_task("SST-2", root, out, vocabulary)


def test_the_release_is_read_from_its_archive(tmp_path, monkeypatch):
    tree, root = qnli_tree(tmp_path / "tree"), tmp_path / "data"
    with zipfile.ZipFile(tmp_path / "QNLIv2.zip", "w") as opened:
        for path in (tree / "QNLI").iterdir():
            opened.write(path, f"QNLI/{path.name}")
    monkeypatch.setattr(releases, "GLUE", f"{tmp_path.as_uri()}/{{archive}}.zip")
    releases.glue(root, "QNLI", TASKS["QNLI"].files.values(), download=True)
    for path in (tree / "QNLI").iterdir():
        assert read(root / "QNLI" / path.name) == read(path)


@pytest.mark.parametrize(
    ("task", "root", "message"),
    [
        ("CoLA", "data", "unknown GLUE task 'CoLA'; choose from: MNLI, QNLI, QQP, SST-2"),
        ("SST-2", "nowhere", "root .*nowhere is not a folder"),
        ("QQP", "data", r"no file .*QQP/train\.tsv, nor with \.gz; .*--download"),
    ],
)
def test_missing_data_is_named(task, root, message, tmp_path, vocabulary):
    sst2_tree(tmp_path / "data")
    with pytest.raises(LeapformerError, match=message):
        labelled.prepare_task(task, tmp_path / root, tmp_path / "out", vocabulary)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_vocabulary_is_named(tmp_path, capsys):
    command = ["prepare", "glue", "SST-2", str(sst2_tree(tmp_path / "data")), "--out", str(tmp_path / "out")]
    assert main([*command, "--vocabulary", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path} holds no vocabulary: dict.txt and spm.model" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()
