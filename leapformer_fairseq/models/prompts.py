"""The prompt of a generation, read in one pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..modules import IncrementalState

_AHEAD = "found ahead"  # a key of `incremental_state`: (B, T, ..)


class Prompted:
    """A decoder that reads a prompt in one pass, though fairseq's generator requests one token after the other.

    `context.prompt` (B, T): the tokens that a new generation begins with; None: it reads token by token.
    """

    context: Any
    reorder_incremental_state_scripting: Callable[[IncrementalState, Tensor], None]  # fairseq's

    @abstractmethod
    def read(self, tokens: Tensor, incremental_state: IncrementalState) -> Tensor:
        """What the decoder makes of tokens (B, T), (B, T, ..); the state has read them then."""

    @contextmanager
    def prompted(self, prompt: Tensor) -> Iterator[None]:
        """Within this context, a new generation reads `prompt` (B, T), its first tokens, in one pass.

        Up to the end of the prompt the generator is answered from that pass. Batch entries of the generator beyond B
        are hypotheses of the same sentence, next to each other.
        """
        self.context.prompt = prompt
        try:
            yield
        finally:
            self.context.prompt = None

    def ahead(self, tokens: Tensor, incremental_state: IncrementalState) -> Tensor | None:
        """What was found for the last of the tokens (B, T) when the prompt was read, (B, 1, ..); None behind it."""
        prompt = self.context.prompt
        if prompt is not None and not incremental_state:
            incremental_state[_AHEAD] = self.read(prompt, incremental_state)
            beam = len(tokens) // len(prompt)
            if beam > 1:  # each hypothesis gets a copy of the state
                order = torch.arange(len(prompt), device=prompt.device).repeat_interleave(beam)
                self.reorder_incremental_state_scripting(incremental_state, order)
        found, column = incremental_state.get(_AHEAD), tokens.shape[1] - 1
        if found is None or column >= found.shape[1]:
            return None
        if column + 1 == found.shape[1]:
            del incremental_state[_AHEAD]  # nobody asks for it again, and reordering it costs
        return found[:, column : column + 1]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        if _AHEAD in incremental_state:
            incremental_state[_AHEAD] = incremental_state[_AHEAD].index_select(0, new_order)
