"""A language model that reads a whole prompt, as a function of tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..attention.block import Memory
from ..modules import PassOptions
from ..runtime.folder import SELF
from .graphs import embedded, log_probs
from .states import held, tensors_of


class Prompt(nn.Module):
    """Log-probabilities (B, T, V) of the token after each of the tokens (B, T), and the states after all of them.

    `positions` (B, T), from 1, are those of the embeddings; positions in attention are higher by `before` (1,).
    """

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder, self.blocks = decoder, held(decoder, SELF)

    def forward(
        self, tokens: Tensor, positions: Tensor, before: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        decoder, given = self.decoder, iter(states)
        memories: dict[str, Any] = {
            block.attention.slot: Memory(None, state=block.taken(given), positions=positions + before)
            for block in self.blocks
        }
        x = embedded(decoder, tokens, positions).transpose(0, 1)
        with decoder.context.own(PassOptions(execution="loop")):
            for layer in decoder.layers:
                x, _, _ = layer(x, None, None, memories)
        x = x if decoder.layer_norm is None else decoder.layer_norm(x)
        after = tensors_of(memories[block.attention.slot].state for block in self.blocks)
        return log_probs(decoder, x.transpose(0, 1)), after
