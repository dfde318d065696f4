"""Clean-up of training texts."""

import doctest

import pytest

from leapformer_fairseq.data import text


def test_examples_in_the_docs():
    assert doctest.testmod(text).failed == 0


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("(Laughter) And then (Applause) it stopped (Music).", "And then it stopped."),
        ("♪ Song ♫", "Song"),
        ("(Applause)", ""),
        ("an open ( bracket", "an open ( bracket"),
        ("[unclear] yes", "yes"),
        ("Er kostet 3.5 Euro .", "Er kostet 3.5 Euro."),
    ],
)
def test_notes(raw, clean):
    assert text.without_notes(raw) == clean


def test_tidy_leaves_one_line_and_no_tab():
    assert text.tidy(" a\tb\r\nc\u2028d\u00a0e\u200a f ") == "a b c d e f"
