"""Tokens of hypotheses in shared memory: whatever happens to hypotheses and sentences, each one finds its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from leapformer_fairseq.runtime.beam import _filled
from leapformer_fairseq.runtime.folder import PATHS, USED, WIDTH
from leapformer_fairseq.runtime.past import LEAST, Past

MOST = 3 * LEAST + 5


class Texts:
    """What hypotheses (B, R) have written: a number for each token, kept once as lists and once as a step keeps it."""

    def __init__(self, begun: int, rows: int) -> None:
        numbers = np.arange(1.0, rows * begun + 1).reshape(rows, begun).astype(np.float32)
        self.lists, self.count = numbers.tolist(), itertools.count(rows * begun + 1)
        keys = np.stack([numbers, -numbers], 1)[..., None] * np.array([1, 2, 3], np.float32)
        self.past = Past.of({"k": keys, "v": 10 * keys})

    def go_on(self, order: np.ndarray) -> None:
        """Write another token."""
        self.past = self.past.next(order, MOST)
        given, new = self.past.inputs(), [next(self.count) for _ in order.flat]
        assert given[USED] == self.past.tokens - 1 and given[WIDTH] == order.shape[1] and given[PATHS].dtype == np.int32
        for name, factor in (("k", 1), ("v", 10)):
            array = self.past.buffers[name].array
            assert array.flags.c_contiguous and np.shares_memory(array, given[name].numpy())
            array[:, :, self.past.tokens - 1] = np.array(new)[:, None, None] * [[1, 2, 3], [-1, -2, -3]] * factor
        self.lists = [[*self.lists[row], number] for row, number in zip(order.flat, new, strict=True)]
        for row, (number, expected) in enumerate(zip(np.ndindex(order.shape), self.lists, strict=True)):
            of = row // order.shape[1] * order.shape[1] + self.past.paths[number][: self.past.tokens]
            for name, factor in (("k", 1), ("v", 10)):
                found = self.past.buffers[name].array[of, :, np.arange(self.past.tokens)]
                numbers = np.array(expected, np.float32)[:, None, None] * factor
                assert np.array_equal(found, numbers * [[1, 2, 3], [-1, -2, -3]])


@pytest.mark.parametrize("begun", [0, 1, 7, LEAST])
@pytest.mark.parametrize("beam", [1, 3])
def test_every_hypothesis_finds_its_tokens(begun, beam):
    """Reordered, repeated, finished in the order of beam search and in fairseq's, and more or fewer than before.

    Now and then they also go on in other sentences.
    """
    rng = np.random.default_rng(begun + beam)
    texts, sentences, width = Texts(begun, 6), np.arange(6), 1
    while texts.past.tokens < MOST:
        order = sentences[:, None] * width + rng.integers(0, width, (len(sentences), beam))
        texts.go_on(rng.permutation(order.flat).reshape(order.shape) if rng.random() < 0.1 else order)
        width, left = beam, np.arange(len(sentences))
        if rng.random() < 0.06 and len(left) > 1:
            left = np.delete(left, rng.integers(len(left), size=rng.integers(1, len(left))))
            left = _filled(left) if rng.random() < 0.5 else left
        if rng.random() < 0.03:
            left = rng.integers(len(sentences), size=rng.integers(1, 7))
        if rng.random() < 0.03:
            beam = int(rng.integers(1, 5))
        sentences = left


def test_nothing_is_copied_until_there_is_no_room():
    """Sentences that go on stay where they are; room doubles up to the longest text, and a text beyond is no error."""
    texts, rooms = Texts(0, 4), list[int]()
    order = np.arange(4)[:, None].repeat(2, 1)
    for token in range(MOST + 2):
        before = texts.past
        texts.go_on(order)
        order = np.array([[1, 0], [2, 2], [5, 4], [6, 7]])[: len(order)]
        rooms.append(texts.past.paths.shape[2])
        full = before.tokens == before.paths.shape[2]
        assert full != all(
            np.shares_memory(before.buffers[name].array, texts.past.buffers[name].array) for name in "kv"
        )
        if token == 9:  # the second is finished; the last takes its place
            order = np.array([[0, 1], [7, 6], [4, 5]])
            address = texts.past.buffers["k"].array.ctypes.data
        if token == 10:
            assert texts.past.buffers["k"].array.ctypes.data == address
            assert texts.past.buffers["k"].array.shape[0] == 6
    assert list(dict.fromkeys(rooms)) == [LEAST, 2 * LEAST, MOST, MOST + 1, MOST + 2]


@pytest.mark.parametrize(("left", "order"), [
    ([0, 1, 2], [0, 1, 2]), ([0, 2, 3, 5], [0, 5, 2, 3]), ([4], [4]), ([1, 2, 3], [3, 1, 2]), ([], []),
])  # fmt: skip
def test_the_last_sentences_take_the_places_of_finished_ones(left, order):
    assert _filled(np.array(left, int)).tolist() == order
