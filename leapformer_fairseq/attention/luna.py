"""Luna: linear unified nested attention, through a packed sequence that flows from layer to layer.

Ma et al., 2021, arXiv:2106.01540. A packed sequence P of l rows reads the keys (pack), and the queries read what it
found (unpack); P and what it found make the packed sequence of the next layer. A causal query reads a memory of l slots
as in ABC (see `bounded`), which tokens are written into by their similarity to P.

Shapes: B batch, H heads, T queries, S keys, l packed rows, D head dimension, E value dimension, C = H D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LeapformerError
from . import forms
from .base import BLOCKS, State
from .bounded import BoundedMechanism, added, causal_sums, inputs_of, kept, read
from .linear import accumulated
from .luna_step import LunaStep
from .masks import Packed, Rows, Visible
from .positions import sinusoids
from .registry import Option, register
from .step import Projections, Step

ENCODER_SELF, DECODER_SELF, _ = BLOCKS


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1, as in the paper."""
    return F.elu(x) + 1


def softplus2(x: Tensor) -> Tensor:
    """log2(1 + 2^x), as in the authors' later code."""
    return F.softplus(x, beta=math.log(2))


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"elu1": elu1, "softplus2": softplus2}


@dataclass
class PackedState(State):
    """What is left of keys after packing.

    Keys (B, H, D, l) and values (B, H, l, E) to unpack, which of them are in use, keep (B, l), and the packed sequence
    for the next layer, (B, l, C).
    """

    keys: Tensor
    values: Tensor
    keep: Tensor
    packed: Tensor


@dataclass
class LunaState(State):
    """The memory of causal attention.

    Sums (B, H, D, l) of keys and (B, H, l, E) of values, and what they are written by: the packed sequence as
    pseudo-queries (B, H, l, D), and which of its rows are in use, keep (B, l).
    """

    keys: Tensor
    values: Tensor
    queries: Tensor
    keep: Tensor


@register(
    "luna",
    Option("luna_length", 16, "luna: rows of the packed sequence"),
    Option(
        "luna_activation",
        "elu1",
        "luna: how strongly a token is written into a slot, in causal blocks: elu(x) + 1 as in the paper, or "
        "log2(1 + 2^x) as in its later code",
        tuple(_ACTIVATIONS),
    ),
    Option(
        "luna_projections",
        "tied",
        "luna: matrices of a block: 5, keys are values (tied, the paper's); 7 (untied; 6 in causal blocks); the 4 of "
        "standard attention, which pack and unpack (standard)",
        ("tied", "untied", "standard"),
    ),
    Option("luna_fixed_length", False, "luna: use all packed rows, even for sentences that are shorter"),
    Option(
        "luna_packed",
        "encoder",
        "luna: a decoder's packed sequence, the one that the encoder hands on or a learned one for each layer "
        "(default of language models)",
        ("encoder", "learned"),
    ),
)
class Luna(BoundedMechanism):
    """Luna: a packed sequence P reads the keys, queries read what it found; P flows on to the next layer.

    Pack: A = softmax((P W_pq) K^T / sqrt(D)), Y = A V. Unpack: softmax(Q (Y W_k)^T / sqrt(D)) (Y W_v). The next layer
    gets P' = Y + P (section 3.2). Causal: with a_i = g(x_i W_pc . P W_pq / sqrt(D)), a query reads the memory
    K~_t = 1/t sum_{i <= t} k_i a_i^T, V~_t = 1/t sum a_i v_i^T by a softmax (section 3.3).

    Here an attention normalises P when it reads it, and not what it hands on, so that the last layer has no
    normalisation without a use. So the first P is normalised, too, self- and cross-attention each have a normalisation,
    and it is the same in pre-norm models. Weights are dropped out, P itself is not, other than in the released code.
    W_pq is the layer's own, what else is projected is said at `adopt`; without that, as a library, keys and values are
    unpacked and written as they are given.
    """

    prefixes = False
    packs = True
    needs_inputs = True
    streaming = False
    state_class = LunaState

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        *,
        luna_length: int = 16,
        luna_activation: str = "elu1",
        luna_projections: str = "tied",
        luna_fixed_length: bool = False,
        luna_packed: str = "encoder",
        **options: Any,
    ) -> None:
        if luna_length < 1:
            raise LeapformerError(f"--luna-length {luna_length}: give at least one packed row")
        super().__init__(head_dim, num_heads, abc_slots=luna_length, **options)
        self.activation, self.projections = _ACTIVATIONS[luna_activation], luna_projections
        self.fixed, self.keys_are_values = luna_fixed_length, luna_projections == "tied"
        decodes = self.block not in (None, ENCODER_SELF)
        self.needs_packed = decodes and luna_packed == "encoder"
        self.learned = decodes and luna_packed == "learned"
        self.packs = not self.learned  # nobody would read what it hands on
        width = head_dim * num_heads
        self.packed_norm = nn.LayerNorm(width)
        if not self.needs_packed:
            self.tied = ("packed",) if self.block == ENCODER_SELF else ()
            self.packed = nn.Parameter(torch.randn(self.slots, width) * width**-0.5)
            self.register_buffer("places", sinusoids(torch.arange(self.slots), width), persistent=False)
        roles = [] if luna_projections == "standard" else ["query"]
        if luna_projections == "untied" and self.block is not None:
            roles += ["write"] if self.block == DECODER_SELF else ["unpack_key", "unpack_value"]
        self.own = nn.ModuleDict({role: _linear(width) for role in roles})
        self.stock: dict[str, nn.Linear | None] = {}  # the block's, which a plain dictionary does not register here

    def adopt(self, projections: Projections) -> None:
        """Tied: one matrix makes keys and values; the other writes tokens into the slots, or unpacks."""
        q, _, k, v = projections
        self.stock = {
            "tied": {"write": k, "unpack_key": k, "unpack_value": k},
            "untied": {"value": v},
            "standard": {"query": q, "value": v, "unpack_key": k, "unpack_value": v},
        }[self.projections]

    def refusal(self, block: str, length_known: bool = False) -> str | None:
        width = self.head_dim * self.num_heads
        if self.input_dim != width:
            return (
                f"the packed sequence is {width} wide, as the block, and the source {self.input_dim}; make them equal"
            )
        return super().refusal(block, length_known)

    # -------------------------------------------------------------------------------------------- the packed sequence
    def _packed(self, rows: Rows, count: int) -> tuple[Tensor, Tensor]:
        """The packed sequences of `count` sentences, normalised, and which of their rows are in use."""
        given = None if self.learned else rows.packed
        if given is None and self.needs_packed:
            raise LeapformerError(
                "luna was given no packed sequence; let the encoder hand one on, or take --luna-packed learned"
            )
        given = given or self.first_packed(count)
        x, norm = accumulated(given.rows), self.packed_norm
        x = F.layer_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)
        return x, x.new_ones(x.shape[:2], dtype=torch.bool) if given.keep is None else given.keep

    def first_packed(self, count: int) -> Packed:
        rows = accumulated(self.packed)
        return Packed((rows * rows.shape[1] ** 0.5 + self.places.to(rows)).expand(count, -1, -1))

    def packed_after(self, state: State) -> Packed:
        state = _packed_keys(state)
        return Packed(state.packed, state.keep)

    def _projected(self, role: str, x: Tensor) -> Tensor | None:
        """(B, R, C) to (B, H, R, D) by the projection that has this role; None without one."""
        layer: Any = self.own[role] if role in self.own else self.stock.get(role)
        if layer is None:
            return None
        return self._heads(
            F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))
        )

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _pseudo_queries(self, packed: Tensor) -> Tensor:
        """P W_pq / sqrt(D), (B, H, l, D)."""
        queries = self._projected("query", packed)
        return self._scaled(self._heads(packed) if queries is None else queries)

    # -------------------------------------------------------------------------------------------------- bidirectional
    def update(self, state: State | None, k: Tensor, v: Tensor, key: Rows) -> State:
        if state is not None:
            raise LeapformerError("luna packs all keys at once and cannot append some; give it whole sequences")
        with torch.autocast(k.device.type, enabled=False):
            return self._pack(accumulated(k), accumulated(v), key, self.dropping())[1]

    def attend(self, state: State, q: Tensor, query: Rows) -> Tensor:
        state = _packed_keys(state)
        with torch.autocast(q.device.type, enabled=False):
            return (self._unpack(accumulated(q), state, self.dropping()) @ state.values).to(q.dtype)

    def _pack(self, k: Tensor, v: Tensor, key: Rows, dropout: float) -> tuple[Tensor, PackedState]:
        """A, (B, H, l, S), and what is left of the keys."""
        packed, _ = self._packed(key, len(k))
        hidden = None if key.keep is None else ~key.keep[:, None, None]
        weights = read(self._pseudo_queries(packed) @ k.mT, hidden, dropout)
        found = weights @ v
        content = found.transpose(1, 2).flatten(2)  # Y, (B, l, H E)
        keys = self._projected("unpack_key", content)
        values = keys if self.keys_are_values else self._projected("unpack_value", content)
        if keys is None or values is None:
            keys, values = weights @ k, found
        # As a library it may be given values of another width than P, which cannot be added to it.
        packed = packed + content if content.shape == packed.shape else packed
        return weights, PackedState(
            keys.mT.contiguous(), values.contiguous(), self._in_use(k, key, packed.shape[1]), packed
        )

    def _in_use(self, k: Tensor, key: Rows, rows: int) -> Tensor:
        """Which of the packed rows are in use, (B, l): of a sentence that is shorter as many as it has tokens."""
        lengths = key.positions.new_tensor([k.shape[2]]) if key.keep is None else key.keep.sum(1)
        return ((torch.arange(rows, device=k.device) < lengths.unsqueeze(1)) | self.fixed).expand(len(k), -1)

    def _unpack(self, q: Tensor, state: PackedState, dropout: float) -> Tensor:
        """Weights (B, H, T, l) of the packed rows for queries."""
        return read(self._scaled(q) @ state.keys, ~state.keep[:, None, None], dropout)

    # --------------------------------------------------------------------------------------------------------- causal
    def _memory(self, state: State | None, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        if state is not None:
            return self._tensors(state)
        packed, keep = self._packed(rows, len(k))
        sums = (k.new_zeros(*k.shape[:2], *shape) for shape in ((self.head_dim, self.slots), (self.slots, v.shape[3])))
        return *sums, self._pseudo_queries(packed), keep

    def _written(self, queries: Tensor, k: Tensor, rows: Rows, dropout: float) -> Tensor:
        """a, how strongly every token is written into every slot, (B, H, S, l)."""
        seen = self._projected("write", inputs_of(k, rows))
        return kept(self.alpha(k if seen is None else seen, queries, dropout), rows)

    def alpha(self, seen: Tensor, queries: Tensor, dropout: float) -> Tensor:
        """The same of tokens as they are projected to write, (B, H, S, D)."""
        alpha = self.activation(seen @ queries.mT)
        return F.dropout(alpha, dropout) if dropout else alpha

    def _writing(self) -> Iterator[nn.Parameter]:
        yield from super()._writing()
        of_the_block = self.stock.get("write")
        if of_the_block is not None:
            yield from of_the_block.parameters()

    def _read(self, logits: Tensor, count: Tensor | int, keep: Tensor, dropout: float) -> Tensor:
        """Weights (B, H, T, l) of the sums of values, from the products of queries and sums of keys over `count`."""
        return read(logits / count, ~keep[:, None, None], dropout) / count

    def write(self, memory: Sequence[Tensor], k: Tensor, v: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        """The memory after rows were written into the slots; may change the old one in place."""
        keys, values, queries, keep = memory
        return added(keys, k.mT, alpha), added(values, alpha.mT, v), queries, keep

    def lookup(self, memory: Sequence[Tensor], q: Tensor, count: Tensor | int) -> Tensor:
        """What queries (B, H, T, D) read in all of the memory of `count` tokens, (B, H, T, E)."""
        keys, values, _, keep = memory
        return self._read(self._scaled(q) @ keys, count, keep, self.dropping()) @ values

    def _update(self, memory: Sequence[Tensor], k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        return self.write(memory, k, v, self._written(memory[2], k, rows, self.dropping()))

    def _attend(self, memory: Sequence[Tensor], q: Tensor, rows: Rows) -> Tensor:
        return self.lookup(memory, q, _count(rows, q))

    def step(self, projections: Projections) -> Step:
        return LunaStep(self, projections)

    def empty_state(self, rows: int, value_dim: int, like: Tensor) -> LunaState | None:
        if self.needs_packed:
            return None
        k = accumulated(like).new_empty(rows, self.num_heads, 0, self.head_dim)
        v = k.new_empty(rows, self.num_heads, 0, value_dim)
        return LunaState(*self._memory(None, k, v, Rows.whole(0, device=like.device)))

    def _extend(
        self, memory: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, rows: Rows, chunk: int | None
    ) -> tuple[Tensor, ...]:
        (keys, values, queries, keep), dropout = memory, self.dropping()
        alpha = self._written(queries, k, rows, dropout)
        logits, keys = causal_sums(self._scaled(q), k, alpha, keys, chunk)
        weights = self._read(logits, _count(rows, logits), keep, dropout)
        out, values = causal_sums(weights, alpha, v, values, chunk)
        return out, keys, values, queries, keep

    # ------------------------------------------------------------------------------------------------------ quadratic
    def _parallel(self, q: Tensor, k: Tensor, v: Tensor, query: Rows, key: Rows, visible: Visible | None) -> Tensor:
        if visible is None and self.stock:  # what is unpacked is projected once more, so `_weights` do not tell it
            return self.attend(self.update(None, k, v, key), q, query)
        return super()._parallel(q, k, v, query, key, visible)

    def _weights(self, q: Tensor, k: Tensor, query: Rows, key: Rows, visible: Visible | None, dropout: float) -> Tensor:
        if visible is None:
            values = self._projected("value", inputs_of(k, key))
            weights, state = self._pack(k, k if values is None else values, key, dropout)
            return self._unpack(q, state, dropout) @ weights
        _, _, queries, keep = self._memory(None, k, k, key)
        alpha = self._written(queries, k, key, dropout)
        scores = forms.scores_of(self._scaled(q), k)
        return (self._read(scores.tril() @ alpha, _count(key, scores), keep, dropout) @ alpha.mT).tril()


def _packed_keys(state: State) -> PackedState:
    if not isinstance(state, PackedState):
        raise TypeError(f"a {type(state).__name__} holds no packed keys")
    return state


def _count(rows: Rows, like: Tensor) -> Tensor:
    """How many tokens there are up to each row, (B or 1, 1, T, 1), at least 1."""
    return rows.positions[:, None, :, None].clamp_min(1).to(like.dtype)


def _linear(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    nn.init.xavier_uniform_(layer.weight, gain=2**-0.5)
    return layer
