"""GPT-2's byte-level BPE (Radford et al., 2019), as fairseq's `--bpe gpt2` has it.

A text is cut into words by a pattern, a word into the bytes of its UTF-8. Of these the pairs that vocab.bpe names are
joined, the first of the file first. Pieces are the numbers that encoder.json gives to what results.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..support.errors import LeapformerError, first_line
from ..support.lines import read_lines
from .typed import fits

VERSION = "#version:"
KNOWN = 100_000  # words whose pieces are kept


class _Kinds(dict[int, str]):
    """What stands for a character in the pattern: itself if it is ASCII, or else a letter, digit, space or sign."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = "Z" if char.isspace() else unicodedata.category(char)[0]
        self[code] = char if char.isascii() else {"L": "x", "N": "0", "Z": "\t"}.get(kind, "!")
        return self[code]


# GPT-2's `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` for such characters.
PATTERN = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
_KINDS = _Kinds()


def words_of(text: str) -> list[str]:
    """The words of a text, with the spaces before them."""
    return [text[slice(*word.span())] for word in PATTERN.finditer(text.translate(_KINDS))]


def _letters() -> list[str]:
    """The letter that stands for each byte in the files: itself if it can be seen."""
    others = iter(range(256, 512))
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


LETTERS = _letters()


class Codes(NamedTuple):
    """numbers: of pieces, whose bytes are written as `LETTERS`; ranks: of the pairs that are joined."""

    numbers: dict[str, int]
    ranks: dict[tuple[str, ...], int]


def read_codes(encoder: Path, merges: Path, option: str = "") -> Codes:
    """The codes of two files. Raises LeapformerError, with the `option` that names them, for other files."""
    remedy = "give the encoder.json and the vocab.bpe by which the training's text was split"
    name, other = (f"{option} {path}".strip() for path in (encoder, merges))
    text = "\n".join(read_lines(encoder, option, remedy))
    try:
        numbers: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LeapformerError(f"{name} is no JSON ({first_line(error)}); {remedy}") from error
    if not fits(numbers, dict[str, int]) or not {*LETTERS} <= numbers.keys():
        raise LeapformerError(f"{name} has no number for each byte; {remedy}")
    ranks = dict[tuple[str, ...], int]()
    for number, line in enumerate(read_lines(merges, option, remedy), 1):
        pair = tuple(line.split(" "))
        if number == 1 and line.startswith(VERSION):
            continue
        if len(pair) != 2 or "".join(pair) not in numbers:
            raise LeapformerError(f"{other}, line {number}: {line[:40]!r} are no two symbols of {encoder}; {remedy}")
        ranks[pair] = len(ranks)
    return Codes(numbers, ranks)


def functions_of(codes: Codes) -> tuple[Callable[[str], list[str]], Callable[[list[str]], str]]:
    """Functions that split text into pieces, and join them. What is no piece, such as <unk>, stays as it is."""
    bytes_of = {letter: bytes([byte]) for byte, letter in enumerate(LETTERS)}
    texts = {str(n): b"".join(bytes_of.get(one, b"") for one in text) for text, n in codes.numbers.items()}

    @lru_cache(KNOWN)
    def pieces(word: str) -> tuple[str, ...]:
        parts = [LETTERS[byte] for byte in word.encode("utf-8")]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: codes.ranks.get(pair, len(codes.ranks)))
            if best not in codes.ranks:
                break
            joined = list[str]()
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] += part
                else:
                    joined.append(part)
            parts = joined
        return tuple(str(codes.numbers[part]) for part in parts)

    return (
        lambda text: [piece for word in words_of(text) for piece in pieces(word)],
        lambda given: b"".join(texts.get(one, one.encode()) for one in given).decode("utf-8", "replace"),
    )
