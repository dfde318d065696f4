"""The parts of a model as functions of tensors, states included: what becomes a graph each.

Shapes: B batch, S source tokens, C width, V words; in a decoder, R hypotheses for each of B sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from ..attention import Mechanism, State, Step, TokenInfo, sinusoids
from ..attention.linear.base import LinearState
from ..attention.mechanism import Inputs
from ..attention.ops.recurrent import Written, written
from ..attention.recurrent.base import RecurrentMechanism
from ..modules import PassOptions, attentions
from ..modules.attention import MechanismAttention
from ..modules.decoding import Memory
from ..runtime.folder import CROSS, SELF
from .states import first_state, held, tensors_of


class DecoderStep(nn.Module):
    """One token of a decoder: log-probabilities (B, R, V) of the next one, and the states of self-attention.

    tokens (B, R) at `positions` (B, R), from 1; `order` (B, R) says which of the B R entries of self-attention's states
    they continue, as beam search wants it. States of cross-attention have an entry for each sentence.
    """

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder
        self.blocks = {side: held(decoder, side) for side in (SELF, CROSS)}

    def forward(
        self, tokens: Tensor, positions: Tensor, order: Tensor, own: list[Tensor], source: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        decoder = self.decoder
        given = {SELF: iter([x.index_select(0, order.flatten()) for x in own]), CROSS: iter(source)}
        memories: dict[str, Any] = {}
        for side, blocks in self.blocks.items():
            for block in blocks:
                state = block.taken(given[side])
                step = _Step(block.attention, positions)
                memories[block.attention.slot] = _Traced(step, state=state, read=int(side == CROSS))
        x = _embedded(decoder, tokens, positions).flatten(0, 1).unsqueeze(0)
        width = decoder.layers[0].encoder_attn.k_proj.in_features if self.blocks[CROSS] else None
        nothing = None if width is None else x.new_zeros(1, x.shape[1], width)
        with decoder.context.own(PassOptions()):
            for layer in decoder.layers:
                x, _, _ = layer(x, nothing, None, memories)
        x = x.view(*tokens.shape, -1)
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        states = tensors_of(memories[block.attention.slot].state for block in self.blocks[SELF])
        return decoder.get_normalized_probs((decoder.output_layer(x), None), log_probs=True), states


class _Traced(Memory):
    """What a block keeps during a step that is traced: the step is taken whatever else holds."""

    def fused(self, device: torch.device) -> Step | None:
        return self.step


class _Step(Step):
    """A token through a block, by the mechanism's own definition: write, then read."""

    def __init__(self, attention: MechanismAttention, positions: Tensor) -> None:
        self.attention, self.positions = attention, positions

    def __call__(self, x: Tensor, state: State, position: int, lengths: Tensor | None = None) -> Tensor:
        attention, mechanism = self.attention, self.attention.mechanism
        if not attention.self_attention:  # a sentence's hypotheses are queries of one state
            x = x.view(*self.positions.shape, -1)
            tokens, x = TokenInfo(self.positions, inputs=x), x.transpose(0, 1)
            out = attention._out(mechanism.read(state, attention._q(x), tokens))
            return out.transpose(0, 1).flatten(0, 1)
        tokens, x = TokenInfo(self.positions.view(-1, 1), inputs=x.unsqueeze(1)), x.unsqueeze(0)
        q, (k, v) = attention._q(x), attention._kv(x)
        # a scan of one token with a short convolution, else what every scan is defined by
        run = Mechanism.scan if getattr(mechanism, "convolution", None) is None else type(mechanism).scan
        out, after = run(mechanism, state, q, k, v, tokens, tokens)
        vars(state).update(vars(after))
        return attention._out(out).squeeze(0)


def _embedded(stack: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    """Tokens (..) at positions (..), from 1, as the first layer of an encoder or decoder gets them, (.., C)."""
    x = stack.embed_scale * stack.embed_tokens(tokens)
    if getattr(stack, "project_in_dim", None) is not None:
        x = stack.project_in_dim(x)
    table = stack.embed_positions
    if isinstance(table, nn.Embedding):
        x = x + table.weight[positions + stack.padding_idx]
    elif table is not None:
        x = x + sinusoids((positions + stack.padding_idx).flatten(), x.shape[-1]).view_as(x).to(x.dtype)
    return x if stack.layernorm_embedding is None else stack.layernorm_embedding(x)


class Source(nn.Module):
    """A text encoder and all that cross-attention needs of it: the states of cross-attention, for tokens (B, S)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder
        self.blocks = held(self.decoder, CROSS)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        encoder = self.encoder
        keep = tokens.ne(encoder.padding_idx)
        positions = keep.long().cumsum(1)
        x = _embedded(encoder, tokens, positions) * keep.unsqueeze(2)
        x = x.transpose(0, 1)
        with encoder.context.own(PassOptions()), _row_by_row_in(encoder):
            for layer in encoder.layers:
                x = layer(x, encoder_padding_mask=~keep)
        if encoder.layer_norm is not None:
            x = encoder.layer_norm(x)
        info = TokenInfo(positions, keep=keep, inputs=x.transpose(0, 1)).cleared()
        blocks = [block.attention for block in self.blocks]
        return tensors_of(with_rows(one, first_state(one, x.shape[1]), x, info) for one in blocks)


def with_rows(attention: MechanismAttention, state: State, x: Tensor, tokens: TokenInfo) -> State:
    """The state of an attention block that has read more rows x (S, B, C)."""
    mechanism, (k, v) = attention.mechanism, attention._kv(x)
    if not isinstance(mechanism, RecurrentMechanism):
        return mechanism.write(state, k, v, tokens)
    kv, _ = _row_by_row(state.of(LinearState).kv, mechanism._writing(k, v, tokens))
    return LinearState(kv)


def _row_by_row(
    kv: Tensor, keys: Written, queries: Tensor | None = None, reads_first: bool = False
) -> tuple[Tensor, Tensor]:
    """The state after all rows, and what queries (B, H, S, F) read after their row was written, or before."""
    given = [part.movedim(2, 0) for part in (*keys, queries) if part is not None]

    def one(kv: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
        k, v, *more = (part.unsqueeze(2) for part in parts)
        decay = None if keys.decay is None else more.pop(0)
        strength = None if keys.strength is None else more.pop(0)
        after = written(kv, Written(k, v, decay, strength))
        read = (more[0] @ (kv if reads_first else after)).squeeze(2) if more else after.new_zeros(1)
        return after.clone(), read

    after, read = scan(one, kv, given, dim=0)
    return after, read.movedim(0, 2) if queries is not None else read


@contextmanager
def _row_by_row_in(encoder: Any) -> Iterator[None]:
    """An encoder's recurrent mechanisms go from row to row: how their scans are cut depends on the length."""
    recurrent = [m for m in (one.mechanism for one in attentions(encoder)) if isinstance(m, RecurrentMechanism)]
    try:
        for mechanism in recurrent:
            vars(mechanism)["_in_segments"] = partial(_both_ways, mechanism)
        yield
    finally:
        for mechanism in recurrent:
            del vars(mechanism)["_in_segments"]


def _both_ways(mechanism: RecurrentMechanism, x: Inputs) -> Tensor:
    """What an encoder's recurrent mechanism makes of a whole source (`RecurrentMechanism`), row by row."""
    q, k, v, query, key, _ = x
    first = mechanism.init_state(q.shape[0], v.shape[3], k, key, None).kv
    keys, queries = mechanism._writing(k, v, key), mechanism.queries(q, query)
    _, forward = _row_by_row(first, keys, queries)
    later = keys.each(lambda part: part.flip(2))
    if not mechanism.replaces:
        later = later.before_decay()
    _, backward = _row_by_row(first, later, queries.flip(2), reads_first=not mechanism.replaces)
    return mechanism._gated(mechanism._bounded(forward + backward.flip(2)), x)
