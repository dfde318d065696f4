"""GPT-2's BPE is fairseq's: the same pieces of any text, and the same text of any pieces."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from leapformer_fairseq.runtime import gpt2
from leapformer_fairseq.runtime.gpt2 import functions_of, read_codes, words_of
from leapformer_fairseq.support.errors import LeapformerError

TEXT = "The house isn't there; they'll say that the houses aren't theirs. Größe, naïve 東京 2,500 times!  aaaa aaa"
PATTERN = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
SIGNS = [
    *"aBzßéöЖ東一ア07½Ⅷ٣'’!,.-_\"()<>&\u0301\u200b😀\ufffd",
    *"\t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2028\u3000",
    "\x00",
]
PARTS = [
    *SIGNS,
    " ",
    " ",
    "  ",
    *(f"'{end}" for end in ("s", "t", "re", "ve", "m", "ll", "d", "S", "r")),
    *TEXT.split(),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Codes that were learned from a line of text, as in the files of GPT-2."""
    folder = tmp_path_factory.mktemp("gpt2")
    words = [[gpt2.LETTERS[byte] for byte in word.encode()] for word in words_of(TEXT) * 2]
    merges, numbers = ["#version: 0.2"], {letter: n for n, letter in enumerate(gpt2.LETTERS)}
    for _ in range(40):
        (first, second), _ = Counter(pair for word in words for pair in pairwise(word)).most_common(1)[0]
        for word in words:
            while (first, second) in list(pairwise(word)):
                place = list(pairwise(word)).index((first, second))
                word[place : place + 2] = [first + second]
        merges.append(f"{first} {second}")
        numbers.setdefault(first + second, len(numbers))
    numbers["<|endoftext|>"] = len(numbers)
    (folder / "vocab.bpe").write_text("\n".join(merges) + "\n", encoding="utf-8")
    (folder / "encoder.json").write_text(json.dumps(numbers))
    return folder / "encoder.json", folder / "vocab.bpe"


def test_texts_have_the_pieces_of_fairseq_and_come_back(files: tuple[Path, Path]) -> None:
    theirs, draw = get_encoder(*map(str, files)), random.Random(1)
    cut, joined = functions_of(read_codes(*files))
    texts = [TEXT, "", " ", "aaaaa", *("".join(draw.choices(PARTS, k=draw.randint(1, 12))) for _ in range(3_000))]
    for text in texts:
        assert cut(text) == [str(number) for number in theirs.encode(text)], repr(text)
        assert joined(cut(text)) == text
    assert len({piece for text in texts for piece in cut(text)} - {str(n) for n in range(256)}) > 15, "pairs are joined"


def test_pieces_have_the_text_of_fairseq(files: tuple[Path, Path]) -> None:
    """Those that end within a character, and symbols of a dictionary that are no pieces, too."""
    theirs, draw = get_encoder(*map(str, files)), random.Random(2)
    _, joined = functions_of(read_codes(*files))
    for _ in range(1_000):
        pieces = [draw.choice([*theirs.decoder, "<unk>", "<mask>"]) for _ in range(draw.randint(0, 9))]
        assert joined([str(piece) for piece in pieces]) == theirs.decode(pieces)
    assert joined(["madeupword0000", "40"]) == "madeupword0000" + theirs.decode([40])


@pytest.mark.parametrize(
    "codes", [range(0x3000), pytest.param(range(sys.maxunicode + 1), marks=pytest.mark.full)], ids=["some", "all"]
)
def test_characters_are_of_the_kinds_of_the_pattern(codes: range) -> None:
    """Of the characters that this Python knows; a newer `regex` knows more."""
    known = [char for char in map(chr, codes) if unicodedata.category(char) not in ("Cn", "Cs")]
    for form in ("a{}b", "1{}2", "!{}", "'{}", "  {}x"):
        wrong = [char for char in known if words_of(form.format(char)) != PATTERN.findall(form.format(char))]
        assert not wrong, wrong[:10]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("encoder.json", "{", "--a .*encoder.json is no JSON"),
        ("encoder.json", '{"a": 1}', "--a .*encoder.json has no number for each byte; give"),
        ("encoder.json", "[1]", "--a .*encoder.json has no number for each byte; give"),
        (
            "vocab.bpe",
            "#version: 0.2\na a\nq z\n",
            "--a .*vocab.bpe, line 3: 'q z' are no two symbols of .*encoder.json",
        ),
        ("vocab.bpe", "#version: 0.2\nth\n", "--a .*vocab.bpe, line 2: 'th' are no two symbols"),
    ],
)
def test_other_files_are_refused(
    name: str, content: str, message: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(LeapformerError, match=message):
        read_codes(tmp_path / "encoder.json", tmp_path / "vocab.bpe", "--a")
