"""Tags of subwords: sentencepiece, words, byte pairs; what buckets tell of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from leapformer_fairseq.studies.sparsefinder.extraction import Sentence
from leapformer_fairseq.studies.sparsefinder.tags import information, most_frequent, tags_of_subwords, texts
from leapformer_fairseq.support.errors import LeapformerError

EMPTY = torch.zeros(1, 1, 0, 2)


def sentence(*words: str) -> Sentence:
    return Sentence(0, list(words), EMPTY, EMPTY, EMPTY.bool())


def test_a_subword_has_the_tag_of_the_word_that_its_first_letter_is_in():
    """Words of the tagger may be shorter or longer than subwords; marks and blanks have no tag."""
    pieces = [sentence("</s>", "▁Th", "at", "'s", "▁", "na", "ïve", ".")]
    assert texts(pieces, None) == ["That's naïve."]
    tagged = [[("That", "PRON"), ("'s", "VERB"), ("naïve", "ADJ"), (".", "PUNCT")]]
    expected = [[None, "PRON", "PRON", "VERB", None, "ADJ", "ADJ", "PUNCT"]]
    assert tags_of_subwords(pieces, tagged, None) == expected
    assert tags_of_subwords(pieces, [[("That's naïve", "X"), (".", "Y")]], None)[0][-2:] == ["X", "Y"]


def test_words_without_marks_of_spaces():
    assert texts([sentence("a", "<mask>", "dog")], None) == ["a dog"]
    assert tags_of_subwords([sentence("a", "<mask>", "dog")], [[("a", "D"), ("dog", "N")]], None) == [["D", None, "N"]]


def test_byte_pairs_of_roberta(tmp_path: Path):
    """A letter of several bytes may be cut in two; the numbers alone are refused."""
    letters = [bytes_to_unicode()[byte] for byte in b"a \xc3\xaf"]
    (tmp_path / "encoder.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    numbers = [sentence("0", "1", "2", "3", "</s>")]
    with pytest.raises(LeapformerError, match="are numbers; give the folder with encoder.json"):
        texts(numbers, None)
    assert texts(numbers, str(tmp_path)) == ["a ï"]
    assert tags_of_subwords(numbers, [[("a", "X"), ("ï", "Y")]], str(tmp_path)) == [["X", None, "Y", "Y", None]]
    with pytest.raises(LeapformerError, match="cannot be read"):
        texts(numbers, str(tmp_path / "elsewhere"))


def test_rare_tags_are_joined():
    assert most_frequent([["a", "b", None], ["a", "c", "b"]], 2) == ["a", "b", "other"]
    assert most_frequent([["a", "b"]], 2) == ["a", "b"]


def test_information_in_bits():
    assert information(torch.eye(4)) == pytest.approx(2)  # the bucket names one of four tags
    assert information(torch.tensor([[3.0, 1.0], [6.0, 2.0]])) == pytest.approx(0)
    assert information(torch.tensor([[1.0, 0.0], [1.0, 2.0]])) == pytest.approx(0.3112781)
