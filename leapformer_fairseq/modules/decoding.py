"""What attention keeps between decoding steps in fairseq's `incremental_state`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attention import State, Step, TokenInfo

IncrementalState = dict[str, Any]


@dataclass
class Memory:
    """What one attention block keeps between decoding steps.

    step:    the mechanism's decoding step; None with gradients, or where projections are not `nn.Linear`.
    lengths: (B,), how long the targets were said to become when it was begun: a state of other lengths is another one.
    state:   what the mechanism has read.
    queries: query columns so far.
    padded:  (B,), how many of them were padding, if any.
    read:    source columns already in `state` (cross-attention; the same for every sentence).
    shared:  neighbouring batch entries that share one state (cross-attention: the hypotheses of a sentence).
    positions: (B, T) or (1, T), of the next queries, where whoever runs the pass says them; None: they are counted.
    """

    step: Step | None
    lengths: Tensor | None = None
    state: State | None = None
    queries: int = 0
    padded: Tensor | None = None
    read: int = 0
    shared: int = 1
    positions: Tensor | None = None

    def fused(self, device: torch.device) -> Step | None:
        """The fused step, where it may be taken: it changes states in place, has no gradient, and knows no autocast."""
        if self.step is None or torch.is_grad_enabled() or torch.is_autocast_enabled(device.type):
            return None
        return self.step

    def tokens(self, count: int, keep: Tensor | None, device: torch.device) -> TokenInfo:
        """The next `count` query columns."""
        if self.positions is not None:
            return TokenInfo(self.positions, self.lengths, keep)
        seen = torch.full((1,), self.queries, device=device)
        seen = seen if self.padded is None else seen - self.padded
        return TokenInfo.following(seen, count, keep).of_length(self.lengths)

    def advance(self, count: int, keep: Tensor | None = None) -> None:
        self.queries += count
        if keep is not None:
            padded = (~keep).sum(1)
            self.padded = padded if self.padded is None else self.padded + padded

    def reorder(self, order: Tensor) -> Memory:
        """The memory whose batch entry i is the old entry order[i]."""
        padded, lengths = (x if x is None else x.index_select(0, order) for x in (self.padded, self.lengths))
        state = self.state
        if state is not None and self.shared > 1:
            # Hypotheses change places within their sentence only, so its state moves only if sentences were finished.
            sentences = order.view(-1, self.shared)[:, 0] // self.shared
            state = state if len(sentences) == state.batch_size else state.reorder(sentences)
        elif state is not None:
            state = state.reorder(order)
        return replace(self, state=state, padded=padded, lengths=lengths)

    def fork(self) -> Memory:
        return replace(self, state=None if self.state is None else self.state.fork())


def forget_source(incremental_state: IncrementalState) -> None:
    """Drop what cross-attention read, because the encoder was run again: the next step reads the source again."""
    for memory in _memories(incremental_state):
        if memory.read:
            memory.state, memory.read = None, 0


def fork_state(incremental_state: IncrementalState) -> IncrementalState:
    """An independent copy of a decoder's state, to come back to after a trial step."""
    return {key: held.fork() if isinstance(held, Memory) else held for key, held in incremental_state.items()}


def state_bytes(incremental_state: IncrementalState) -> int:
    """Bytes that swapped attention keeps in a decoder's state."""
    return sum(memory.state.nbytes() for memory in _memories(incremental_state) if memory.state is not None)


def _memories(incremental_state: IncrementalState) -> Iterator[Memory]:
    return (held for held in incremental_state.values() if isinstance(held, Memory))
