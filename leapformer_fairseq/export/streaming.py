"""A streaming encoder, and what cross-attention keeps of its rows, as functions of tensors.

Every shape is fixed, so that any runtime can serve them: a chunk that is shorter is padded, and its length given.
Shapes: T frames (10 ms) of a chunk and of the row before it, m rows (encoder states, 40 ms), C width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import ChunkMask, State, TokenInfo, sinusoids
from ..attention.linear.base import LinearState
from ..attention.mechanism import Inputs
from ..attention.recurrent.convolution import ConvolvedMechanism, ConvolvedState
from ..modules import PassOptions
from ..modules.attention import MechanismAttention
from ..runtime.folder import CROSS, HEARD
from ..support.errors import LeapformerError
from .loops import with_keys, with_rows
from .states import held, tensors_of


class Listening(nn.Module):
    """The rows (m, 1, C) of one more chunk of an utterance, and the states of self-attention.

    frames (1, T, n_bins): those of the row before the chunk, of which `before` (1,) are real, namely none or all, and
    those of the chunk and its look-ahead, of which `count` (1,) are real. `start` (1,): the number of rows before the
    chunk.
    """

    def __init__(self, encoder: Any) -> None:
        """Raises LeapformerError for an encoder that is not a streaming encoder, or has states that grow."""
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
        tokens = _placed(rows, start, (count + per_row - 1) // per_row)
        table = sinusoids((tokens.positions[0] + encoder.padding_idx), rows.shape[2]).unsqueeze(1)
        x = encoder.embed_scale * rows + table.to(rows.dtype)
        given, after = iter(states), []
        with encoder.context.own(PassOptions()):
            for layer, block in zip(encoder.transformer_layers, self.blocks, strict=True):
                layer.self_attn = chunk = _Chunk(block.attention, block.taken(given), tokens, self.rows)
                try:
                    x = layer(x, None)
                finally:
                    layer.self_attn = block.attention
                after.append(chunk.state)
        x = x[: self.rows]
        return x if encoder.layer_norm is None else encoder.layer_norm(x), tensors_of(after)

    def _convolved(self, frames: Tensor, first: Tensor, stop: Tensor) -> Tensor:
        """The rows of the chunk; only frames from `first` to before `stop` are real, the others become zeros."""
        x = _between(frames.unsqueeze(1), first, stop)
        for layer in self.encoder.conv:
            x = layer(x)
            if isinstance(layer, nn.Conv2d):
                stride = layer.stride[0]
                first, stop = (first + stride - 1) // stride, (stop + stride - 1) // stride
                x = _between(x, first, stop)
        return self.encoder.out(x.permute(2, 0, 1, 3).flatten(2))[1:]


class _Chunk(nn.Module):
    """Self-attention over a chunk of `own` rows and its look-ahead, which leaves no trace in the state.

    Each row reads all that was written, the chunk and its look-ahead.
    """

    def __init__(self, attention: MechanismAttention, state: State, tokens: TokenInfo, own: int) -> None:
        super().__init__()
        self.attention, self.state, self.tokens, self.own = attention, state, tokens, own

    def forward(self, query: Tensor, *args: Any, **options: Any) -> tuple[Tensor, None]:
        attention, own, rows = self.attention, self.own, len(query)
        tokens = attention._described(self.tokens, query).cleared()
        mechanism, q, (k, v) = attention.mechanism, attention._q(query), attention._kv(query)
        read: Any = mechanism.read
        tail = None
        if isinstance(mechanism, ConvolvedMechanism) and mechanism.convolution is not None:
            q, k, v, tail = _together(mechanism, self.state.of(ConvolvedState).tail, (q, k, v), tokens, own)
            read = super(ConvolvedMechanism, mechanism).read
        seen = with_keys(mechanism, self.state, k[:, :, :own], v[:, :, :own], tokens.narrow(0, own))
        self.state = ConvolvedState(seen.of(LinearState).kv, tail) if tail is not None else seen
        if rows > own:
            seen = with_keys(mechanism, seen, k[:, :, own:], v[:, :, own:], tokens.narrow(own, rows))
        return attention._out(read(seen, q, tokens)), None


def _together(
    mechanism: ConvolvedMechanism, tail: Tensor, inputs: tuple[Tensor, Tensor, Tensor], tokens: TokenInfo, own: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values of a chunk after the convolution, and its next tail.

    Only the last chunk has rows that are not real, behind all others: they are zeros, and its tail is of no use.
    """
    assert tokens.keep is not None
    q, k, v = (x.where(tokens.keep[:, None, :, None], 0) for x in inputs)
    real = replace(tokens, keep=None)
    x, tail = mechanism._convolved(Inputs(q, k, v, real, real, ChunkMask(own, q.shape[2] - own)), tail)
    return x.q, x.k, x.v, tail


class Writing(nn.Module):
    """The states of cross-attention that have read more rows (m, 1, C), `count` (1,) of which are real.

    `start` (1,): the number of rows that were read before.
    """

    def __init__(self, decoder: Any) -> None:
        """Raises LeapformerError for a mechanism that reads a source at once."""
        super().__init__()
        self.decoder = decoder
        self.blocks = held(decoder, CROSS)
        for layer, block in enumerate(self.blocks, 1):
            mechanism = block.attention.mechanism
            if not mechanism.capabilities.append:
                raise LeapformerError(
                    f"cross-attention, layer {layer}: {mechanism.name} reads a source at once, and speech arrives in "
                    "parts; export a model without it"
                )

    def forward(self, rows: Tensor, count: Tensor, start: Tensor, states: list[Tensor]) -> list[Tensor]:
        given, tokens = iter(states), _placed(rows, start, count)
        return tensors_of(
            with_rows(one.attention, one.taken(given), rows, one.attention._described(tokens, rows).cleared())
            for one in self.blocks
        )


def _between(x: Tensor, first: Tensor, stop: Tensor) -> Tensor:
    """The same, (1, D, T, E), with zeros before and after these places of T."""
    places = torch.arange(x.shape[2])
    return x.where(((places >= first) & (places < stop)).view(1, 1, -1, 1), 0)


def _placed(rows: Tensor, start: Tensor, count: Tensor) -> TokenInfo:
    """What rows (m, 1, C) are as tokens: those behind `start` others, of which the first `count` are real."""
    places = torch.arange(len(rows))
    return TokenInfo((start + 1 + places).unsqueeze(0), keep=(places < count).unsqueeze(0))
