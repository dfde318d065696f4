"""Reads the prompt of a generation in one pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..modules import IncrementalState

_OUTPUTS = "prompt outputs"  # key of `incremental_state`: outputs of the prompt's tokens, (B, T, ..)


class Prompted:
    """Mixin for decoders that read a prompt in one pass, although fairseq's generator requests token by token.

    `context.prompt` holds the first tokens (B, T) of new generations; None: prompts are read token by token.
    """

    context: Any
    reorder_incremental_state_scripting: Callable[[IncrementalState, Tensor], None]  # of fairseq's decoders

    @abstractmethod
    def read(self, tokens: Tensor, incremental_state: IncrementalState) -> Tensor:
        """Return the decoder's outputs (B, T, ..) for tokens (B, T), and advance the state past them."""

    @contextmanager
    def prompted(self, prompt: Tensor) -> Iterator[None]:
        """Make generations within this context read `prompt` (B, T), their first tokens, in one pass.

        If the generator's batch is larger than B, each entry of the prompt stands for a sentence's adjacent hypotheses.
        """
        self.context.prompt = prompt
        try:
            yield
        finally:
            self.context.prompt = None

    def prompt_output(self, tokens: Tensor, incremental_state: IncrementalState) -> Tensor | None:
        """The output (B, 1, ..) for the last of the tokens (B, T), if it belongs to the prompt; None after the prompt.

        The first call of a generation reads the whole prompt.
        """
        prompt = self.context.prompt
        if prompt is not None and not incremental_state:  # an empty state: a generation begins
            incremental_state[_OUTPUTS] = self.read(prompt, incremental_state)
            beam = len(tokens) // len(prompt)
            if beam > 1:  # each hypothesis gets a copy of the state
                order = torch.arange(len(prompt), device=prompt.device).repeat_interleave(beam)
                self.reorder_incremental_state_scripting(incremental_state, order)
        outputs, column = incremental_state.get(_OUTPUTS), tokens.shape[1] - 1
        if outputs is None or column >= outputs.shape[1]:
            return None
        if column + 1 == outputs.shape[1]:
            del incremental_state[_OUTPUTS]  # not needed again, and every reordering would copy it
        return outputs[:, column : column + 1]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        if _OUTPUTS in incremental_state:
            incremental_state[_OUTPUTS] = incremental_state[_OUTPUTS].index_select(0, new_order)
