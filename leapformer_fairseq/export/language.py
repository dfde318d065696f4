"""A language model that reads many tokens at once, as a function of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import TokenInfo
from ..modules import PassOptions
from ..modules.decoding import Memory
from ..runtime.folder import SELF
from .graphs import embedded, log_probs
from .loops import loops_in
from .states import held, tensors_of


class Prompt(nn.Module):
    """Log-probabilities (B, T, V) of what follows each of the tokens (B, T), and the states after all of them.

    Their `positions` (B, T), from 1, are those of embeddings; attention counts tokens from `before` (1,) more.
    """

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder, self.blocks = decoder, held(decoder, SELF)

    def forward(
        self, tokens: Tensor, positions: Tensor, before: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        decoder, given, info = self.decoder, iter(states), TokenInfo(positions + before)
        memories: dict[str, Any] = {
            one.attention.slot: _Told(None, state=one.taken(given), told=info) for one in self.blocks
        }
        x = embedded(decoder, tokens, positions).transpose(0, 1)
        with decoder.context.own(PassOptions()), loops_in(decoder):
            for layer in decoder.layers:
                x, _, _ = layer(x, None, None, memories)
        x = x if decoder.layer_norm is None else decoder.layer_norm(x)
        after = tensors_of(memories[one.attention.slot].state for one in self.blocks)
        return log_probs(decoder, x.transpose(0, 1)), after


@dataclass
class _Told(Memory):
    """What a block keeps, and what it is told of the tokens to come."""

    told: TokenInfo | None = None

    def tokens(self, count: int, keep: Tensor | None, device: torch.device) -> TokenInfo:
        assert self.told is not None
        return self.told
