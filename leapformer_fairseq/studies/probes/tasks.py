"""The probes: their input, the answers, and the lengths.

Every example is drawn at random, so none is seen twice and nothing can be memorised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from ...attention import CAUSAL, Mask, PrefixMask
from ...attention.capabilities import DECODER_CROSS, DECODER_SELF, ENCODER_SELF
from ...data.lra.listops import END, OPERATIONS, Trees, distinct

NOTHING = -100  # the answer where none is expected


class Batch(NamedTuple):
    """Tokens (B, T), the expected answers (B, T), `NOTHING` where there is none, and the source (B, S), if any.

    Answers of shape (B,) are one per sequence (`whole`).
    """

    tokens: Tensor
    answers: Tensor
    source: Tensor | None = None

    @property
    def whole(self) -> bool:
        return self.answers.dim() == 1


class Size(NamedTuple):
    """The length of a sequence, and the number of things in it to remember."""

    length: int
    load: int

    def __str__(self) -> str:
        return str(self.length) if self.load == self.length else f"{self.length}/{self.load}"


Draw = Callable[[int, Size, torch.Generator], Batch]


@dataclass(frozen=True)
class Probe:
    """A task for the attention of one block.

    about:      one line: the question, and what the answers show.
    trained:    sizes of the training batches, in turn.
    tested:     sizes that are tested; those beyond training test generalisation to other sizes.
    vocabulary: tokens are numbers below this.
    updates:    of a training, by default.
    """

    about: str
    block: str
    mask: Mask
    draw: Draw
    trained: Sequence[Size]
    tested: Sequence[Size]
    vocabulary: int
    updates: int = 500


WORDS = 24  # keys, and as many values
FILLERS = 16
VOCABULARY = 2 * WORDS + FILLERS


def recall(rows: int, size: Size, generator: torch.Generator) -> Batch:
    """Pairs of a key and a value, then each key again among fillers; the answer is its value.

    Multi-query associative recall, Arora et al., 2024, arXiv:2312.04927, section 3.2, with a small vocabulary.
    """
    length, pairs = size
    keys = torch.rand(rows, WORDS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(WORDS, 2 * WORDS, (rows, pairs), generator=generator)
    tokens = torch.randint(2 * WORDS, VOCABULARY, (rows, length), generator=generator)
    tokens[:, : 2 * pairs] = torch.stack([keys, values], 2).flatten(1)
    places = 2 * pairs + torch.rand(rows, length - 2 * pairs, generator=generator).argsort(1)[:, :pairs]
    answers = torch.full((rows, length), NOTHING)
    return Batch(tokens.scatter(1, places, keys), answers.scatter(1, places, values))


def selective_copy(rows: int, size: Size, generator: torch.Generator) -> Batch:
    """Words among fillers, then a blank for each word; the answers are the words in order.

    Gu and Dao, 2023, arXiv:2312.00752, section 3.1.
    """
    length, words = size
    tokens = torch.randint(WORDS + 1, VOCABULARY, (rows, length + words), generator=generator)
    copied = torch.randint(0, WORDS, (rows, words), generator=generator)
    places = torch.rand(rows, length, generator=generator).argsort(1)[:, :words].sort(1).values
    tokens.scatter_(1, places, copied)
    tokens[:, length:] = WORDS  # the blank
    answers = torch.full(tokens.shape, NOTHING)
    answers[:, length:] = copied
    return Batch(tokens, answers)


LEXICON = 32  # words of a source; one more token begins a target


def _translated(rows: int, size: Size, generator: torch.Generator, reverse: bool) -> Batch:
    source = torch.randint(0, LEXICON, (rows, size.length), generator=generator)
    target = source.flip(1) if reverse else source
    begin = torch.full((rows, 1), LEXICON)
    return Batch(torch.cat([begin, target[:, :-1]], 1), target, source)


def reversal(rows: int, size: Size, generator: torch.Generator) -> Batch:
    """A source of random words; the answers are the words from the last to the first."""
    return _translated(rows, size, generator, reverse=True)


def copying(rows: int, size: Size, generator: torch.Generator) -> Batch:
    """A source of random words; the answers are the words in order, while the source arrives."""
    return _translated(rows, size, generator, reverse=False)


_SYMBOLS = {
    symbol: number for number, symbol in enumerate([*map(str, range(10)), *(name for name, _ in OPERATIONS), END])
}
PADDING = len(_SYMBOLS)


def listops(rows: int, size: Size, generator: torch.Generator) -> Batch:
    """Nested MIN, MAX, MED and SM of digits, at most 5 deep; the answer is the value.

    Nangia and Bowman, 2018, arXiv:1804.06028, as in Long Range Arena but short.
    """
    trees = Trees(min_length=size.load, max_length=size.length, max_depth=5, max_arguments=6)
    random = Random(int(torch.randint(2**31, (), generator=generator)))
    drawn = list(islice(distinct(random, trees), rows))
    written = [[_SYMBOLS[symbol] for symbol in tree.source.split() if symbol in _SYMBOLS] for tree in drawn]
    tokens = torch.full((rows, max(map(len, written))), PADDING)
    for row, symbols in zip(tokens, written, strict=True):
        row[: len(symbols)] = torch.tensor(symbols)
    return Batch(tokens, torch.tensor([tree.target for tree in drawn]))


def _sizes(*pairs: tuple[int, int]) -> tuple[Size, ...]:
    return tuple(Size(*pair) for pair in pairs)


def _lengths(*lengths: int) -> tuple[Size, ...]:
    return tuple(Size(length, length) for length in lengths)


PROBES: Mapping[str, Probe] = {
    "recall": Probe(
        "pairs of key and value, then keys among fillers: how much a state holds", DECODER_SELF, CAUSAL, recall,
        _sizes((64, 4), (64, 8), (64, 16)), _sizes((64, 4), (64, 8), (64, 16), (256, 8), (256, 16)), VOCABULARY,
    ),
    "selective-copy": Probe(
        "words among fillers, then the words alone: what a state can leave out", DECODER_SELF, CAUSAL, selective_copy,
        _sizes((48, 6)), _sizes((48, 6), (96, 6), (192, 6)), VOCABULARY,
    ),
    "reversal": Probe(
        "a whole source backwards: cross-attention alone", DECODER_CROSS, None, reversal,
        _lengths(8, 16, 24), _lengths(8, 16, 24, 32, 48), LEXICON + 1, updates=400,
    ),
    "copying": Probe(
        "a source in order under wait-3: cross-attention while the source arrives", DECODER_CROSS, PrefixMask(3),
        copying, _lengths(8, 16, 24), _lengths(8, 16, 24, 32, 48), LEXICON + 1, updates=400,
    ),
    "listops": Probe(
        "nested operations on digits, from the second to the first number of tokens: an encoder", ENCODER_SELF, None,
        listops, _sizes((60, 10), (100, 30)), _sizes((60, 10), (100, 30), (200, 100)), PADDING + 1, updates=1500,
    ),
}  # fmt: skip
