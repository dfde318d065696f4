"""A streaming encoder, and the states that cross-attention keeps of its output rows, as functions of tensors.

All shapes are fixed, so that any runtime can run the graphs: a shorter chunk is padded, and its length is an input.
Shapes: T frames (10 ms) of a chunk and of the row before it, m rows (encoder states, 40 ms), C width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import TokenInfo, sinusoids
from ..modules import PassOptions
from ..runtime.folder import CROSS, HEARD
from ..support.errors import LeapformerError
from .states import Keys, held, source_shapes, tensors_of


class Listening(nn.Module):
    """The rows (m, 1, C) of the next chunk of an utterance, and the new states of self-attention.

    frames: (1, T, n_bins), the frames of the row before the chunk, then those of the chunk and its look-ahead.
    before: (1,), how many frames of the row before are real: none or all.
    count:  (1,), how many frames of the chunk and its look-ahead are real.
    start:  (1,), the number of rows before the chunk.
    """

    def __init__(self, encoder: Any) -> None:
        """Raises LeapformerError if the encoder is not a streaming encoder, or has states that grow."""
        super().__init__()
        if encoder.chunks is None:
            raise LeapformerError(
                "the encoder sees whole utterances; export one trained with --encoder-causal or --encoder-chunk-ms"
            )
        self.encoder, self.rows = encoder, encoder.chunks.size
        self.blocks = held(encoder, HEARD)

    def forward(
        self, frames: Tensor, before: Tensor, count: Tensor, start: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        encoder, per_row = self.encoder, self.encoder.pooling_ratio()
        rows = self._convolved(frames, per_row - before, per_row + count)
        tokens = _as_tokens(rows, start, (count + per_row - 1) // per_row)
        table = sinusoids((tokens.positions[0] + encoder.padding_idx), rows.shape[2]).unsqueeze(1)
        x = encoder.embed_scale * rows + table.to(rows.dtype)
        given = iter(states)
        with encoder.context.own(PassOptions(execution="loop")):
            encoder.context.tokens = tokens
            encoder.context.states = {block.attention.slot: block.taken(given) for block in self.blocks}
            for layer in encoder.transformer_layers:
                x = layer(x, None)
            after = [encoder.context.states[block.attention.slot] for block in self.blocks]
        x = x[: self.rows]
        return x if encoder.layer_norm is None else encoder.layer_norm(x), tensors_of(after)

    def _convolved(self, frames: Tensor, first: Tensor, stop: Tensor) -> Tensor:
        """The rows of the chunk; only frames `first` to `stop` (exclusive) are real, the others are set to zero."""
        x = _between(frames.unsqueeze(1), first, stop)
        for layer in self.encoder.conv:
            x = layer(x)
            if isinstance(layer, nn.Conv2d):
                stride = layer.stride[0]
                first, stop = (first + stride - 1) // stride, (stop + stride - 1) // stride
                x = _between(x, first, stop)
        return self.encoder.out(x.permute(2, 0, 1, 3).flatten(2))[1:]


class Writing(nn.Module):
    """The states of cross-attention after writing more rows (m, 1, C), of which `count` (1,) are real.

    `start` (1,): the number of rows written before.
    """

    def __init__(self, decoder: Any, keys: Keys | None = None) -> None:
        """Raises LeapformerError for a mechanism that cannot write a source in parts."""
        super().__init__()
        self.decoder, self.keys = decoder, keys
        self.blocks, self.shapes = held(decoder, CROSS), source_shapes(decoder, keys)
        for layer, block in enumerate(self.blocks, 1):
            mechanism = block.attention.mechanism
            if not mechanism.capabilities.append:
                raise LeapformerError(
                    f"cross-attention, layer {layer}: {mechanism.name} reads a source at once, and speech arrives in "
                    "parts; export a model without it"
                )

    def forward(self, rows: Tensor, count: Tensor, start: Tensor, states: list[Tensor]) -> list[Tensor]:
        given, tokens = iter(states), _as_tokens(rows, start, count)
        after = tensors_of(block.attention.write_source(block.taken(given), rows, tokens) for block in self.blocks)
        return after if self.keys is None else [*after, *self.keys.written(list(given), rows, tokens)]


def _between(x: Tensor, first: Tensor, stop: Tensor) -> Tensor:
    """x (1, D, T, E), set to zero outside positions `first` to `stop` (exclusive) of T."""
    places = torch.arange(x.shape[2])
    return x.where(((places >= first) & (places < stop)).view(1, 1, -1, 1), 0)


def _as_tokens(rows: Tensor, start: Tensor, count: Tensor) -> TokenInfo:
    """Rows (m, 1, C) as tokens that follow `start` others; the first `count` are real."""
    places = torch.arange(len(rows))
    return TokenInfo((start + 1 + places).unsqueeze(0), keep=(places < count).unsqueeze(0))
