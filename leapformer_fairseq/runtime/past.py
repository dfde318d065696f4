"""Keys and values of hypotheses in memory that decoding steps share: a step adds a token, and nothing is copied.

Shapes: B sentences, R hypotheses of each, H heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .folder import PATHS, USED, WIDTH

LEAST = 64  # tokens that there is room for at first


@dataclass(frozen=True)
class Past:
    """The tokens of B R hypotheses, up to the next one.

    buffers: keys and values by name, (B R, H, capacity, D) each, as `OrtValue`s.
    paths:   (B, R, capacity), which of the R rows of its sentence holds each token of a hypothesis.
    tokens:  their number.
    """

    buffers: Mapping[str, Any]
    paths: np.ndarray
    tokens: int

    @classmethod
    def of(cls, states: Mapping[str, Any]) -> Past:
        """The past of N hypotheses with these keys and values (N, H, tokens, D), `OrtValue`s without room for more."""
        rows, _, tokens, _ = next(iter(states.values())).shape()
        return cls(states, np.zeros((rows, 1, tokens), np.int32), tokens)

    def next(self, order: np.ndarray, most: int) -> Past:
        """With one more token, which the step will write, of hypotheses that each continue the row `order` (B, R).

        While hypotheses stay in their sentences and there is room, the buffers stay as they are. Otherwise they are
        copied; their room doubles if they are full, up to `most` tokens.
        """
        (sentences, width, room), (_, count) = self.paths.shape, order.shape
        first = order // width * width  # row of its sentence
        paths, buffers = self.paths.reshape(sentences * width, room)[order], self.buffers
        stay = order.shape == (sentences, width) and (first[:, 0] == np.arange(0, sentences * width, width)).all()
        if not stay or room == self.tokens or (first != first[:, :1]).any():
            rows = (first[:, :, None] + paths)[..., : self.tokens].reshape(order.size, -1)
            room = max(min(max(LEAST, 2 * room), most), self.tokens + 1) if room == self.tokens else room
            buffers = {name: _copied(value, rows, room) for name, value in buffers.items()}
            paths = np.repeat(np.arange(count, dtype=np.int32)[None, :, None], len(order), 0).repeat(room, 2)
        paths[:, :, self.tokens] = np.arange(count)
        return Past(buffers, paths, self.tokens + 1)

    def inputs(self) -> dict[str, Any]:
        """What a step gets that writes the last of the tokens."""
        numbers = {USED: self.tokens - 1, WIDTH: self.paths.shape[1]}
        return {**{name: np.array([n], np.int32) for name, n in numbers.items()}, PATHS: self.paths, **self.buffers}


def _copied(value: Any, rows: np.ndarray, room: int) -> Any:
    """A buffer of `room` tokens whose row i holds token j of row `rows`[i, j] of another buffer."""
    from onnxruntime import OrtValue

    before, tokens = value.numpy(), rows.shape[1]  # without a copy
    after = np.empty((len(rows), before.shape[1], room, before.shape[3]), before.dtype)
    after[:, :, :tokens] = before[rows, :, np.arange(tokens)].swapaxes(1, 2)
    return OrtValue.ortvalue_from_numpy(after)
