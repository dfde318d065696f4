"""Labelled sequences on disk: what is written is read, arrays of others too, and what does not fit is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from leapformer_fairseq.data.arrays import About, Example, Split, write_about, write_split
from leapformer_fairseq.support.errors import LeapformerError


def example(label, *sequences):
    return Example(tuple(np.array(x) for x in sequences), label)


@pytest.mark.parametrize("vocabulary", [10, 300, 70_000])
def test_written_and_read(tmp_path, vocabulary):
    about = About(vocabulary, 3, 2)
    highest = vocabulary - 2
    examples = [example(2, [1, highest], [3]), example(0, [], [4, 5, 6]), example(1, [7], [])]
    write_about(tmp_path, about)
    summary = write_split(tmp_path, "train", iter(examples), about)
    assert summary["examples"] == 3
    found = Split(tmp_path, "train")
    assert found.about == about and found.lengths().tolist() == [2, 3, 1]
    for one, other in zip(found, examples, strict=True):
        assert one.label == other.label
        assert all(a.tolist() == b.tolist() for a, b in zip(one.sequences, other.sequences, strict=True))
    assert write_split(tmp_path, "again", iter(examples), about) == summary
    assert not list(tmp_path.rglob("*.partial"))


def test_arrays_of_others(tmp_path):
    """A line a sequence, 0 at the end: without offsets. 0 within a sequence stays."""
    write_about(tmp_path, About(10, 2))
    (tmp_path / "train").mkdir()
    np.save(tmp_path / "train" / "input0.npy", np.array([[1, 2, 3], [4, 0, 5], [6, 0, 0], [0, 0, 0]]))
    np.save(tmp_path / "train" / "labels.npy", np.array([0, 1, 1, 0]))
    found = Split(tmp_path, "train")
    assert [one.sequences[0].tolist() for one in found] == [[1, 2, 3], [4, 0, 5], [6], []]


@pytest.mark.parametrize("wrong", [example(0, [1, 10]), example(0, [-1]), example(2, [1]), example(0, [1], [1])])
def test_numbers_and_classes_beyond_what_was_said(tmp_path, wrong):
    with pytest.raises(LeapformerError, match="train, example 1"):
        write_split(tmp_path, "train", iter([example(0, [1]), wrong]), About(10, 2))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("labels", np.array([0, 5]), "classes from 0 to 5; data.json says that there are 2"),
        ("labels", np.array([0, 1, 1]), "2 sequences in 4 numbers beside 3 labels"),
        ("input0.offsets", np.array([0, 2, 9]), "2 sequences in 4 numbers"),
        ("input0.offsets", np.array([0, 4, 2]), "2 sequences in 4 numbers"),
        ("input0.offsets", np.array([-1, 2, 4]), "2 sequences in 4 numbers"),
        ("input0.offsets", np.array([0.0, 2, 4]), "1 dimensions of float64"),
        ("input0", np.array([0.5, 1]), "1 dimensions of float64"),
        ("input0", np.array([1, 2, 3, 9]), "numbers from 0 to 9; the last one below the vocabulary .* marks the begin"),
        ("input0", np.array([1, 2, -3, 4]), "numbers from -3 to 4"),
        ("labels", np.array([[0], [1]]), "2 dimensions of int64"),
        ("labels", np.array([0.0, 1.0]), "1 dimensions of float64"),
        ("labels", np.array([], dtype=np.int64), "no example"),
        ("input0", np.array([{}, {}], dtype=object), "cannot be read"),
        ("input0", None, "cannot be read"),
    ],
)
def test_files_that_do_not_fit(tmp_path, name, array, message):
    about = About(10, 2)
    write_about(tmp_path, about)
    write_split(tmp_path, "train", [example(0, [1, 2]), example(1, [3, 4])], about)
    path = tmp_path / "train" / f"{name}.npy"
    path.unlink()
    if array is not None:
        np.save(path, array, allow_pickle=True)
    with pytest.raises(LeapformerError, match=message):
        Split(tmp_path, "train")


def test_data_that_says_too_little(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps({"vocabulary": 3}))
    with pytest.raises(LeapformerError, match="without 'classes'"):
        Split(tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("vocabulary", "20", "vocabulary '20'; give a whole number from 3"),
        ("vocabulary", 0, "vocabulary 0; give a whole number from 3"),
        ("classes", 1, "classes 1; give a whole number from 2"),
        ("inputs", 3, "inputs 3; give a whole number from 1 to 2"),
    ],
)
def test_data_that_says_something_impossible(tmp_path, name, value, message):
    (tmp_path / "data.json").write_text(json.dumps({"vocabulary": 9, "classes": 2, "inputs": 1, name: value}))
    with pytest.raises(LeapformerError, match=message):
        Split(tmp_path, "train")
