"""The loss of a recogniser: fairseq's, and how many characters of a transcript the encoder gets wrong."""

from __future__ import annotations

import random
from argparse import Namespace
from functools import cache

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy_with_ctc import LabelSmoothedCrossEntropyWithCtcCriterion

from leapformer_fairseq.criterions.recognition import Recognition, edits

from .. import losses

GIVEN = losses.CASES["leapformer_recognition"].given
WORDS = losses.TASK.target_dictionary


def criterion() -> Recognition:
    return Recognition(Namespace(**GIVEN), losses.TASK)


def said(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module, units: list[list[int]]) -> None:
    """Let the CTC head say these units, one for each encoder state."""
    lprobs = torch.nn.functional.one_hot(torch.tensor(units), len(WORDS)).transpose(0, 1).double().log_softmax(-1)
    lengths = torch.tensor([len(row) for row in units])
    monkeypatch.setattr(model, "get_ctc_output", lambda *_: (lprobs, lengths))


@cache
def plain(text: str, reference: str) -> int:
    if not text or not reference:
        return len(text) + len(reference)
    replaced = plain(text[1:], reference[1:]) + (text[0] != reference[0])
    return min(replaced, plain(text[1:], reference) + 1, plain(text, reference[1:]) + 1)


def test_the_edit_distance_is_the_recursion():
    draw = random.Random(1)
    for _ in range(60):
        text, reference = ("".join(draw.choices("abc ", k=draw.randint(0, 7))) for _ in range(2))
        assert edits(text, reference) == plain(text, reference), (text, reference)


def test_the_loss_is_fairseqs():
    torch.manual_seed(0)
    sample = {key: value for key, value in losses.transcribed().items() if key != "lengths"}
    model = losses._model("recogniser").eval()
    (loss, size, log), (theirs, their_size, their_log) = (
        one(model, sample) for one in (criterion(), LabelSmoothedCrossEntropyWithCtcCriterion(losses.TASK, **GIVEN))
    )
    assert loss == theirs and size == their_size and {**log, **their_log} == log
    assert "chars" not in criterion()(model.train(), sample)[2], "training counts nothing"


def test_repetitions_are_merged_and_blanks_left_out(monkeypatch):
    model, sample = losses._model("recogniser").eval(), losses.part(losses.transcribed(), [0])
    target = sample["target"][0].tolist()  # three words and their end
    letters = [len(WORDS[word]) for word in target[:-1]]
    right = [target[0], target[0], 0, target[1], 0, 0, target[2], target[2]]
    del sample["lengths"]
    for units, wrong in (
        (right, 0),
        ([*right[:6], 0, 0], letters[2]),  # a word that is left out
        ([*right, 0, target[2]], letters[2]),  # and one that is said twice, with a blank between
    ):
        said(monkeypatch, model, [units])
        log = criterion()(model, sample)[2]
        assert (log["char_errors"], log["chars"]) == (wrong, sum(letters))
    with losses.metrics.aggregate(new_root=True) as found:
        Recognition.reduce_metrics([log, {**log, "char_errors": 0, "chars": 2 * log["chars"]}])
    assert found.get_smoothed_values()["char_error"] == pytest.approx(100 * letters[2] / (3 * sum(letters)), abs=0.01)
