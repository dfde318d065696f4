"""RACE and CommonsenseQA from their releases, and folders that are something else."""

from __future__ import annotations

import json

import pytest

from leapformer_fairseq.data import labelled
from leapformer_fairseq.data.documents import prepare as prepare_documents
from leapformer_fairseq.support.errors import LeapformerError

from .choice_trees import csqa_tree, race_tree
from .text_trees import wikitext_tree


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    root = tmp_path_factory.mktemp("vocabulary")
    prepare_documents(wikitext_tree(root / "data"), root / "text", 150)
    return root / "text"


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_race(tmp_path, vocabulary):
    root, out = race_tree(tmp_path / "RACE"), tmp_path / "out"
    summary = labelled.prepare_choices("race", root, out, vocabulary)
    assert summary == {"train": 8, "valid": 8, "test": 8}
    assert [len(lines(out / f"input{n}/valid")) for n in range(5)] == [8] * 5
    assert lines(out / "label/valid.label") == ["0", "3", "1", "2"] * 2
    first, second = labelled._passages(root / "dev/high/0.txt")
    assert first.texts[1] == "the dog is old ." and second.texts[4] == "who said it ? nobody"
    assert first.texts[0].startswith("a man in a high house")
    assert labelled.prepare_choices("race", root, out, vocabulary) == summary, "what is finished is left alone"


def test_csqa(tmp_path, vocabulary):
    root, out = csqa_tree(tmp_path / "csqa"), tmp_path / "out"
    assert labelled.prepare_choices("csqa", root, out, vocabulary) == {"train": 6, "valid": 3}
    assert lines(out / "label/train.label") == ["0", "1", "2", "3", "4", "0"]
    first = next(labelled._questions(root / "dev_rand_split.jsonl"))
    assert first == labelled.Example(("Q: where is man 0 ?", *(f"A: place {x} 0" for x in "abcde")), "0")


def test_other_folders_are_named(tmp_path, vocabulary):
    race = race_tree(tmp_path / "RACE")
    with pytest.raises(LeapformerError, match=r"no file .*/RACE/train_rand_split.jsonl; check the data folder"):
        labelled.prepare_choices("csqa", race, tmp_path / "out", vocabulary)
    with pytest.raises(LeapformerError, match="race root .*/nowhere is not a folder"):
        labelled.prepare_choices("race", tmp_path / "nowhere", tmp_path / "out", vocabulary)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["E", "A"]}, "is not a file of race \\(answer 'E' is not one of A, B, C, D\\); download"),
        ({"answers": ["A"]}, "is not a file of race .*shorter"),
        ({"options": [["old"], ["a man"]], "answers": ["A", "A"]}, "1 choices for a question, race has 4"),
        ({"article": None, "questions": None}, "is not a file of race"),
    ],
)
def test_damaged_passages_are_named(change, message, tmp_path, vocabulary):
    root = race_tree(tmp_path / "RACE")
    path = root / "dev/high/1.txt"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(LeapformerError, match=message):
        labelled.prepare_choices("race", root, tmp_path / "out", vocabulary)
