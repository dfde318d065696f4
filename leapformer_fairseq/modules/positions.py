"""Thread safety of fairseq's table of sinusoidal positions, which grows with the longest text."""

from __future__ import annotations

import threading
from typing import Any

from fairseq.modules import SinusoidalPositionalEmbedding
from torch import nn

_GROWING = threading.Lock()


def grow_in_turn(stack: nn.Module) -> None:
    """Let only one thread at a time enlarge the position tables of an encoder or decoder.

    fairseq replaces a table that is too short. If two threads do so at once, one may be left with the other's smaller
    table.
    """
    for part in stack.modules():
        if isinstance(part, SinusoidalPositionalEmbedding):
            part.register_forward_pre_hook(_grow)


def _grow(table: SinusoidalPositionalEmbedding, inputs: tuple[Any, ...]) -> None:
    """Enlarge a table before its forward pass would, and never make it smaller."""
    needed = table.padding_idx + 1 + inputs[0].shape[1]
    if needed > len(table.weights):
        with _GROWING:
            if needed > len(table.weights):
                larger = table.get_embedding(needed, table.embedding_dim, table.padding_idx)
                table.weights = larger.to(table.weights)
