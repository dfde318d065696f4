"""Keys and values of hypotheses in memory that decoding steps share: a step adds a token, and nothing is copied.

Shapes: B sentences, R hypotheses of each, H heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .folder import PATHS, USED, WIDTH

LEAST = 32  # tokens that there is room for at first


class Buffer(NamedTuple):
    """An array (B R, H, capacity, D), and an `OrtValue` of the same memory."""

    array: np.ndarray
    value: Any

    @classmethod
    def of(cls, array: np.ndarray) -> Buffer:
        from onnxruntime import OrtValue

        return cls(array, OrtValue.ortvalue_from_numpy(array))


@dataclass(frozen=True)
class Past:
    """The tokens of B R hypotheses, up to the next one.

    buffers: keys and values by name.
    paths:   (B, R, capacity), which of the R rows of its sentence holds each token of a hypothesis.
    tokens:  their number.
    """

    buffers: Mapping[str, Buffer]
    paths: np.ndarray
    tokens: int

    @classmethod
    def of(cls, states: Mapping[str, np.ndarray]) -> Past:
        """The past of N hypotheses with these keys and values (N, H, tokens, D), without room for more."""
        rows, _, tokens, _ = next(iter(states.values())).shape
        buffers = {name: Buffer.of(array) for name, array in states.items()}
        return cls(buffers, np.zeros((rows, 1, tokens), np.int32), tokens)

    def next(self, order: np.ndarray, most: int) -> Past:
        """With one more token, which the step will write, of hypotheses that each continue the row `order` (B, R).

        While there is room, the buffers stay where they are, and only sentences move that take the place of one that
        was left out. Full buffers are copied, with room for twice as many tokens, but at most `most`. So are those of
        other hypotheses than the step before had.
        """
        (old, width, room), (new, count), tokens = self.paths.shape, order.shape, self.tokens
        paths, sentences, buffers = self.paths.reshape(old * width, room)[order], order // width, self.buffers
        whole, here = sentences[:, 0], np.arange(new)
        same = count == width and (sentences == whole[:, None]).all() and (whole >= here).all()
        if room == tokens or not same:
            rows = (sentences[:, :, None] * width + paths)[..., :tokens].reshape(order.size, tokens)
            room = room if room > tokens else max(min(max(LEAST, 2 * room), most), tokens + 1)
            buffers = {name: Buffer.of(_copied(buffer.array, rows, room)) for name, buffer in buffers.items()}
            paths = np.empty((new, count, room), np.int32)
            paths[:] = np.arange(count)[:, None]
        elif new < old or (whole != here).any():
            buffers = {name: Buffer.of(_moved(buffer.array, whole, width, tokens)) for name, buffer in buffers.items()}
        paths[:, :, tokens] = np.arange(count)
        return Past(buffers, paths, tokens + 1)

    def inputs(self) -> dict[str, Any]:
        """What a step gets that writes the last of the tokens."""
        numbers = {USED: self.tokens - 1, WIDTH: self.paths.shape[1]}
        return {
            **{name: np.array([number], np.int32) for name, number in numbers.items()},
            PATHS: self.paths,
            **self.values(),
        }

    def values(self) -> dict[str, Any]:
        return {name: buffer.value for name, buffer in self.buffers.items()}


def _moved(array: np.ndarray, sentences: np.ndarray, width: int, tokens: int) -> np.ndarray:
    """Part of the memory of a buffer, in which the place i of a sentence is now that of `sentences`[i] >= i.

    None is overwritten before it has moved.
    """
    places = array.reshape(-1, width, *array.shape[1:])
    for place in np.flatnonzero(sentences != np.arange(len(sentences))):
        places[place, :, :, :tokens] = places[sentences[place], :, :, :tokens]
    return array[: len(sentences) * width]


def _copied(array: np.ndarray, rows: np.ndarray, room: int) -> np.ndarray:
    """A buffer for `room` tokens whose row i has token j of row `rows`[i, j] of another one."""
    tokens, (_, heads, _, dim) = rows.shape[1], array.shape
    copy = np.empty((len(rows), heads, room, dim), array.dtype)
    copy[:, :, :tokens] = array[rows, :, np.arange(tokens)].swapaxes(1, 2)
    return copy
