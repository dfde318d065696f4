"""Assigns the words of a talk's translation to the reference segments.

Soft alignment (SoftSegmenter; Polák et al., 2025, arXiv:2509.17349) maximises the sum of the Jaccard similarities of
the character sets of aligned words; gaps cost nothing. mweralign (Matusov et al., 2005) minimises the edit distance, so
only equal words attract each other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..support.errors import LeapformerError

PUNCTUATION = frozenset(".!?,;:-()。！？，；：—（）ー")
UNTOKENIZED = ("zh", "ja")  # languages that Moses does not tokenize
_LAST_COMMA = re.compile(r"\d")

Tokenize = Callable[[str], list[str]]


def soft_segments(
    references: Sequence[Sequence[str]], units: Sequence[str], by_character: bool = False, lang: str | None = None
) -> list[int]:
    """Return the index of the segment of each unit; `references` has the units of every segment of the recording.

    Units are words, or characters (`by_character`), which are either equal or not. Words are compared without case, in
    Unicode's NFKC form, and with `lang` as Moses tokens; a word belongs to the segment of its first token. Units in a
    gap join the reference word before or after the gap, whichever is more similar. Time is len(reference) * len(units),
    memory a quarter of that in bytes.
    """
    tokenize = _tokenizer(lang)
    reference = [(token, i) for i, words in enumerate(references) for word in words for token in tokenize(_plain(word))]
    hypothesis = [(token, j) for j, unit in enumerate(units) for token in tokenize(_plain(unit))]
    if not reference or not hypothesis:
        return [0] * len(units)
    similarity = _Similarity([token for token, _ in reference], [token for token, _ in hypothesis], by_character)
    segments: dict[int, int] = {}
    for place, token in _close_gaps(_align(similarity), similarity):
        segments.setdefault(hypothesis[token][1], reference[place][1])  # of the unit's first token
    return [segments[j] for j in range(len(units))]


def mwer_segments(references: Sequence[str], units: Sequence[str], by_character: bool = False) -> list[int]:
    """Return the index of the segment of each unit by minimum edit distance, computed by the package mweralign.

    Raises LeapformerError if it is not installed or its result does not fit.
    """
    try:
        from mweralign import mweralign
        from mweralign.segmenter import CJSegmenter
    except ImportError as error:
        raise LeapformerError(
            "--segmenter mwer: the package mweralign is not installed; pip install 'leapformer-fairseq[live]', or use "
            "--segmenter soft"
        ) from error
    if not units:
        return []
    if by_character:
        segmenter = CJSegmenter()
        sides = [
            "\n".join(" ".join(segmenter.encode(text)) for text in texts) for texts in (references, ["".join(units)])
        ]
    else:
        sides = ["\n".join(references), " ".join(units)]
    lines = mweralign.align_texts(*sides).split("\n")
    counts = [len(line.replace(" ", "")) if by_character else len(line.split()) for line in lines]
    segments = [segment for segment, count in enumerate(counts) for _ in range(count)]
    if len(lines) != len(references) or len(segments) != len(units):
        raise LeapformerError(
            f"mweralign returned {len(lines)} segments with {len(segments)} units instead of {len(references)} with "
            f"{len(units)}; use --segmenter soft"
        )
    return segments


class _Similarity:
    """Similarities of reference tokens (rows) and hypothesis tokens (columns); -inf between punctuation and words.

    `values` has a row and a column per distinct token, so its size grows with the vocabulary and not with the talk.
    """

    def __init__(self, reference: Sequence[str], hypothesis: Sequence[str], by_character: bool) -> None:
        row_of, column_of = ({token: i for i, token in enumerate(dict.fromkeys(x))} for x in (reference, hypothesis))
        self.rows = np.array([row_of[token] for token in reference])
        self.columns = np.array([column_of[token] for token in hypothesis])
        if by_character:
            self.values = (np.array(list(row_of))[:, None] == np.array(list(column_of))).astype(float)
        else:
            self.values = _jaccard(list(row_of), list(column_of))
        marks = [np.array([token in PUNCTUATION for token in tokens]) for tokens in (row_of, column_of)]
        self.values[marks[0][:, None] != marks[1]] = -np.inf

    def row(self, place: int) -> np.ndarray:
        """The similarities of a reference token and all hypothesis tokens."""
        return self.values[self.rows[place]][self.columns]

    def __call__(self, place: int, token: int) -> float:
        return float(self.values[self.rows[place], self.columns[token]])


def _jaccard(rows: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    """|A & B| / |A | B| of the character sets A and B of all pairs of words, (len(rows), len(columns))."""
    places = {character: i for i, character in enumerate(sorted(set("".join((*rows, *columns)))))}

    def sets(words: Sequence[str]) -> np.ndarray:
        membership = np.zeros((len(words), len(places)), np.float32)
        for i, word in enumerate(words):
            membership[i, [places[character] for character in word]] = 1
        return membership

    left, right = sets(rows), sets(columns)
    common = np.rint(left @ right.T).astype(float)
    return common / (left.sum(1)[:, None].astype(float) + right.sum(1) - common)


def _align(similarity: _Similarity) -> list[tuple[int | None, int | None]]:
    """Align the tokens: pairs of reference and hypothesis token, None at gaps, in order.

    Needleman-Wunsch, vectorised over rows. Insertions cost nothing, so they are the running maximum of a row. Among
    equal sums, a match is preferred, then a reference token alone.
    """
    n, m = len(similarity.rows), len(similarity.columns)
    row = np.zeros(m + 1)
    matches, deletions = [], []  # how each cell was reached, packed to a bit each
    for place in range(n):
        match, delete = row[:-1] + similarity.row(place), row[1:]
        row = np.maximum.accumulate(np.concatenate([[0.0], np.maximum(match, delete)]))
        insert = row[:-1]
        matches.append(np.packbits((match >= delete) & (match >= insert)))
        deletions.append(np.packbits(delete >= insert))
    pairs: list[tuple[int | None, int | None]] = []
    i, j = n - 1, m - 1
    while i >= 0 or j >= 0:
        if i >= 0 and j >= 0 and _bit(matches[i], j):
            pairs.append((i, j))
            i, j = i - 1, j - 1
        elif i >= 0 and (j < 0 or _bit(deletions[i], j)):
            pairs.append((i, None))
            i -= 1
        else:
            pairs.append((None, j))
            j -= 1
    return pairs[::-1]


def _bit(packed: np.ndarray, place: int) -> bool:
    return bool(packed[place >> 3] >> (7 - (place & 7)) & 1)


def _close_gaps(pairs: Sequence[tuple[int | None, int | None]], similarity: _Similarity) -> Iterator[tuple[int, int]]:
    """Pair every hypothesis token with a reference token, those in a gap with a neighbour of the gap.

    From the first token of a gap that is more similar to the neighbour after it, all join that one.
    """
    gap: list[int] = []
    before: int | None = None
    for place, token in (*pairs, (None, None)):
        if place is None and token is not None:
            gap.append(token)
            continue
        for rank, waiting in enumerate(gap):
            if place is not None and (before is None or similarity(place, waiting) > similarity(before, waiting)):
                yield from ((place, later) for later in gap[rank:])
                break
            assert before is not None  # there are references, so at least one side has a neighbour
            yield before, waiting
        gap.clear()
        if place is not None:
            before = place
            if token is not None:
                yield place, token


def _plain(word: str) -> str:
    return unicodedata.normalize("NFKC", word).lower()


def _tokenizer(lang: str | None) -> Tokenize:
    """Moses' tokenizer for a language; one that leaves words whole without a language or for Chinese and Japanese."""
    if lang is None or lang in UNTOKENIZED:
        return lambda word: [word]
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise LeapformerError(
            f"--lang {lang}: the package sacremoses is not installed; pip install 'leapformer-fairseq[live]', or leave "
            "--lang out"
        ) from error
    moses = MosesTokenizer(lang=lang)

    def tokenize(word: str) -> list[str]:
        tokens = moses.tokenize(word, escape=False, aggressive_dash_splits=True)
        if len(tokens) > 1 and tokens[-1] == "," and _LAST_COMMA.fullmatch(tokens[-2][-1]):
            tokens[-2:] = [tokens[-2] + ","]  # as Moses' Perl script, which OmniSTEval runs: a comma stays at a number
        return tokens or [word]

    return tokenize
