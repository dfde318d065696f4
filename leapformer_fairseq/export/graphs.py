"""Parts of a model as functions of tensors, including their states; each becomes one graph.

Shapes: B batch, S source tokens, C width, V words; in a decoder, R hypotheses for each of B sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fairseq.models import FairseqDecoder
from fairseq.modules import AdaptiveInput
from torch import Tensor, nn

from ..attention import TokenInfo, sinusoids
from ..attention.block import Memory
from ..attention.softmax import SharedCache
from ..models.length_predictors import Source as LengthSource
from ..modules import PassOptions
from ..modules.adaptive_softmax import adaptive_log_probs
from ..runtime.folder import CROSS, LENGTH, SELF
from .states import Keys, held, shapes_of, source_shapes, tensors_of


class Shared(NamedTuple):
    """The names of the states in memory that steps share, and what is known of the tokens in it (`SharedCache`)."""

    names: Sequence[str]
    used: Tensor
    width: Tensor
    paths: Tensor


class Layers(nn.Module):
    """The layers of a decoder, for one token of R hypotheses for each of B sentences.

    States of cross-attention have one batch entry per sentence, those of self-attention one per hypothesis.
    `shapes`: the shapes of all state tensors by side and name (`states.shapes_of`).
    """

    def __init__(self, decoder: Any, layers: Any, keys: Keys | None = None) -> None:
        """`keys`: of the layer whose attention weights are wanted; None: none are."""
        super().__init__()
        self.decoder, self.layers, self.keys = decoder, layers, keys
        self.blocks = {side: held(decoder, side) for side in (SELF, CROSS)}
        self.steps = {block.attention.slot: block.attention.graph_step() for block in self.blocks[SELF]}
        self.shapes = {SELF: shapes_of(self.blocks[SELF]), CROSS: source_shapes(decoder, keys)}

    def forward(
        self, x: Tensor, positions: Tensor, states: list[Tensor], source: list[Tensor], shared: Shared | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Outputs (B, R, C) for tokens x (B, R, C) at `positions` (B, R), from 1, and new states of self-attention.

        Third come the weights (B, R, S) of the source, the mean over heads, if they are wanted.
        """
        decoder, (sentences, count, _) = self.decoder, x.shape
        predicted = source[-1] if LENGTH in self.shapes[CROSS] else None
        # Not repeat_interleave, which is wrong for several sentences in a graph.
        lengths = None if predicted is None else predicted.unsqueeze(1).expand_as(positions).flatten()
        given, memories = {SELF: iter(states), CROSS: iter(source)}, dict[str, Any]()
        for side, blocks in self.blocks.items():
            for block in blocks:
                state = block.taken(given[side])
                if shared is not None and block.names[0] in shared.names:
                    state = SharedCache(**state.tensors(), used=shared.used, width=shared.width, paths=shared.paths)
                memories[block.attention.slot] = Memory(
                    step=None,
                    lengths=lengths,
                    state=state,
                    written=int(side == CROSS),
                    shared=count if side == CROSS else 1,
                    positions=positions.view(-1, 1),
                    rows=self.steps.get(block.attention.slot),
                )
        if self.keys is not None:
            weighing = memories[self.keys.block.attention.slot]
            weighing.keys = self.keys.taken(weighing.state, given[CROSS])
        x, weights = x.flatten(0, 1), list[Tensor]()
        with decoder.context.own(PassOptions(execution="loop")):
            for number, layer in enumerate(self.layers):
                # The source is in the states; x is in its place.
                wanted = self.keys is not None and number == self.keys.block.layer
                x, found, _ = layer(x, x, None, memories, need_attn=wanted, need_head_weights=wanted)
                weights += [found.mean(0).view(sentences, count, -1)] if wanted else []  # of (H, B R, 1, S)
        after = tensors_of(memories[block.attention.slot].state for block in self.blocks[SELF])
        x = x.view(sentences, count, -1)
        return x if decoder.layer_norm is None else decoder.layer_norm(x), after, weights


class DecoderStep(nn.Module):
    """One decoding step: log-probabilities (B, R, V) of the next tokens, and the new states of self-attention.

    With `keys`, the weights (B, R, S) of the source in their layer stand between them.

    tokens:    (B, R), the last tokens of the hypotheses.
    positions: (B, R), their positions, from 1.
    order:     (B, R), which of the B R entries of self-attention's states each hypothesis continues, as beam search
               reorders them.
    """

    def __init__(self, decoder: Any, keys: Keys | None = None) -> None:
        super().__init__()
        self.decoder, self.layers = decoder, Layers(decoder, decoder.layers, keys)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        order: Tensor,
        states: list[Tensor],
        source: list[Tensor],
        shared: Shared | None = None,
    ) -> tuple[Any, ...]:
        stay = () if shared is None else shared.names
        named = zip(self.layers.shapes[SELF], states, strict=True)
        states = [x if name in stay else x.index_select(0, order.flatten()) for name, x in named]
        x, states, weights = self.layers(embedded(self.decoder, tokens, positions), positions, states, source, shared)
        return log_probs(self.decoder, x), *weights, states


class SharingStep(nn.Module):
    """A decoding step with some states of self-attention in memory that steps share, which are not reordered.

    used, width, paths: as in `SharedCache`.
    """

    def __init__(self, step: DecoderStep, names: Sequence[str]) -> None:
        """`names`: of these states."""
        super().__init__()
        self.step, self.names = step, names

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        order: Tensor,
        used: Tensor,
        width: Tensor,
        paths: Tensor,
        states: list[Tensor],
        source: list[Tensor],
    ) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.step(
            tokens, positions, order, states, source, Shared(self.names, used, width, paths)
        )
        return found


def embedded(stack: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    """The input (.., C) of an encoder's or decoder's first layer for tokens (..) at positions (..), from 1."""
    x = stack.embed_scale * _token_embeddings(stack.embed_tokens, tokens)
    projection, writes = getattr(stack, "quant_noise", None) or nn.Identity(), isinstance(stack, FairseqDecoder)
    if writes:
        x = projection(x)
    if getattr(stack, "project_in_dim", None) is not None:
        x = stack.project_in_dim(x)
    table = stack.embed_positions
    if isinstance(table, nn.Embedding):
        x = x + table.weight[positions + stack.padding_idx]
    elif table is not None:
        x = x + sinusoids((positions + stack.padding_idx).flatten(), x.shape[-1]).view_as(x).to(x.dtype)
    if stack.layernorm_embedding is not None:
        x = stack.layernorm_embedding(x)
    return x if writes else projection(x)


def _token_embeddings(table: Any, tokens: Tensor) -> Tensor:
    """The embeddings (.., C) of tokens (..); for an adaptive table as a sum over its bands, without masked indexing."""
    if not isinstance(table, AdaptiveInput):
        return table(tokens)
    total, start = torch.zeros(()), 0
    for stop, band in zip(table.cutoff, table.embeddings, strict=True):
        inside = (tokens >= start) & (tokens < stop)
        total = total + band((tokens - start).where(inside, 0)) * inside.unsqueeze(-1)
        start = stop
    return total


def log_probs(decoder: Any, x: Tensor) -> Tensor:
    """Log-probabilities (.., V) of the next tokens, given the output (.., C) of the last layer."""
    if decoder.project_out_dim is not None:
        x = decoder.project_out_dim(x)
    x = decoder.output_layer(x)
    if decoder.adaptive_softmax is not None:
        return adaptive_log_probs(decoder.adaptive_softmax, x)
    return decoder.get_normalized_probs((x, None), log_probs=True)


class Source(nn.Module):
    """An encoder that returns what decoder steps need from tokens (B, S).

    These are the states of cross-attention and, with a length predictor, the predicted lengths. `shapes`: their shapes
    by name (`states.source_shapes`).
    """

    def __init__(self, model: Any, keys: Keys | None = None) -> None:
        """Raises LeapformerError if the model has an untrained length predictor."""
        super().__init__()
        self.encoder, self.decoder, self.keys = model.encoder, model.decoder, keys
        self.blocks, self.shapes = held(self.decoder, CROSS), source_shapes(self.decoder, keys)
        if LENGTH in self.shapes:
            self.encoder.length_predictor.check()

    def embedded(self, tokens: Tensor, keep: Tensor) -> tuple[Tensor, Any]:
        """The input (B, S, C) of the first layer, and the layers."""
        positions = keep.long().cumsum(1)
        return embedded(self.encoder, tokens, positions) * keep.unsqueeze(2), self.encoder.layers

    def spoken(self, x: Tensor, speakers: Tensor | None) -> Tensor:
        """Add the speaker embedding to encoder states (S, B, C), if the model has one."""
        return x

    def forward(self, tokens: Tensor, speakers: Tensor | None = None) -> list[Tensor]:
        keep = tokens.ne(self.encoder.padding_idx)
        x, layers = self.embedded(tokens, keep)
        return self.read(x.transpose(0, 1), layers, keep, tokens, speakers)

    def read(
        self, x: Tensor, layers: Any, keep: Tensor, tokens: Tensor | None = None, speakers: Tensor | None = None
    ) -> list[Tensor]:
        """What decoder steps need, from the input x (S, B, C) of the first layer; `keep` (B, S) is False at padding."""
        encoder = self.encoder
        with encoder.context.own(PassOptions(execution="loop")):
            for layer in layers:
                x = layer(x, ~keep)
        if encoder.layer_norm is not None:
            x = encoder.layer_norm(x)
        x = self.spoken(x, speakers)
        info = TokenInfo.whole(x.shape[0], keep)
        states = tensors_of(one.attention.write_source(one.empty(x.shape[1]), x, info) for one in self.blocks)
        states += [] if self.keys is None else self.keys.written([], x, info)
        if LENGTH not in self.shapes:
            return states
        return [*states, encoder.length_predictor.steps(LengthSource(tokens, x.transpose(0, 1), keep))]
