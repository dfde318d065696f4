"""What attention keeps between decoding steps, and what a stack says of the pass that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attention import Mechanism, Packed, Rows, State, Step

IncrementalState = dict[str, Any]


@dataclass
class CurrentPass:
    """What an encoder or decoder says to all of its attention of the pass that runs, and what its layers hand on.

    lengths: (B,), how long the targets are or are said to become; None where nobody knows.
    packed:  the packed sequence that layers hand on to each other (Luna); None before the first layer that has one.
    rows:    positions and padding of an encoder's rows in blocks; None: those of whole sequences, as they stand.
    states:  what every attention keeps, by its `slot`, of an utterance whose frames are arriving; the pass is then
             more blocks of it. None where whole utterances are read.

    `knows_lengths` says that there is a predictor of the target's length, `packing` is the mechanism of the first layer
    that has a packed sequence, if there is one.
    """

    knows_lengths: bool = False
    packing: Mechanism | None = None
    lengths: Tensor | None = None
    packed: Packed | None = None
    rows: Rows | None = None
    states: dict[str, State] | None = None

    def packed_of(self, rows: int) -> Packed | None:
        """One for each of `rows`: sentences, or hypotheses of them side by side; a layer hands on either."""
        if self.packed is None or len(self.packed.rows) == rows:
            return self.packed
        if len(self.packed.rows) > rows:
            return _mapped(self.packed, lambda x: x[:: len(x) // rows])
        return _mapped(self.packed, lambda x: x.repeat_interleave(rows // len(x), 0))

    def hand_over(self, count: int) -> Packed:
        """What the last layer handed on of `count` sentences; the first layer's own rows, if all were dropped.

        It is kept no longer: with it there would be the graph of a pass that is over.
        """
        found = self.packed or self.packing.first_packed(count)
        self.packed = None
        return found


def _mapped(packed: Packed, function: Callable[[Tensor], Tensor]) -> Packed:
    return Packed(*(x if x is None else function(x) for x in packed))


@dataclass
class Memory:
    """What one attention block keeps between decoding steps.

    step:    the mechanism's fast way through one row, if it has one
    lengths: (B,), how long the targets were said to become when it was begun: a state of other lengths is another one
    keys:    the mechanism's state of everything read so far
    queries: query columns so far
    padded:  (B,), how many of them were padding, if any
    read:    source columns already in `keys` (cross-attention; the same for every sentence)
    shared:  rows behind each other that share one state (cross-attention: the hypotheses of a sentence)
    """

    step: Step | None
    lengths: Tensor | None = None
    keys: State | None = None
    queries: int = 0
    padded: Tensor | None = None
    read: int = 0
    shared: int = 1

    def step_serves(self, device: torch.device) -> bool:
        """Whether the fast way may be taken: it changes states in place, has no gradient, and knows no autocast."""
        return self.step is not None and not torch.is_grad_enabled() and not torch.is_autocast_enabled(device.type)

    def rows(self, count: int, keep: Tensor | None, device: torch.device) -> Rows:
        """The next `count` query columns."""
        seen = torch.tensor([self.queries], device=device)
        return Rows.following(seen if self.padded is None else seen - self.padded, count, keep).of_length(self.lengths)

    def advance(self, count: int, keep: Tensor | None = None) -> None:
        self.queries += count
        if keep is not None:
            padded = (~keep).sum(1)
            self.padded = padded if self.padded is None else self.padded + padded

    def reorder(self, order: Tensor) -> Memory:
        """The memory whose row i is the old row order[i]."""
        padded, lengths = (x if x is None else x.index_select(0, order) for x in (self.padded, self.lengths))
        keys = self.keys
        if keys is not None and self.shared > 1:
            # Hypotheses change places within their sentence only, so its state moves only if sentences were finished.
            sentences = order.view(-1, self.shared)[:, 0] // self.shared
            keys = keys if len(sentences) == keys.rows() else keys.reorder(sentences)
        elif keys is not None:
            keys = keys.reorder(order)
        return replace(self, keys=keys, padded=padded, lengths=lengths)

    def fork(self) -> Memory:
        return replace(self, keys=None if self.keys is None else self.keys.fork())
