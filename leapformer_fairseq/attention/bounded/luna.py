"""Luna: linear unified nested attention, with a packed sequence that is passed from layer to layer.

Ma et al., 2021, arXiv:2106.01540. A packed sequence P of l vectors attends to the keys (pack), and the queries attend
to the result Y (unpack). P + Y is the packed sequence of the next layer, the carry of this mechanism. A causal query
reads a memory of l slots as in ABC (see `base`), into which tokens are written by their similarity to P.

Shapes: B batch, H heads, T queries, S keys, l packed vectors, D head dimension, E value dimension, C = H D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..capabilities import DECODER_CROSS, DECODER_SELF, ENCODER_SELF, Capabilities
from ..kernels import PackedKernel, Projections
from ..layers import by_heads, normalised, projected
from ..linear.elu import elu1
from ..masks import Mask
from ..mechanism import Inputs, State
from ..ops import dispatch, linear
from ..ops.precision import accumulated, in_float32, without_autocast
from ..options import Option
from ..positions import sinusoids
from ..registry import register
from ..tokens import Carry, TokenInfo
from .base import BoundedMechanism, added, causal_sums, kept, slot_weights


def softplus2(x: Tensor) -> Tensor:
    """log2(1 + 2^x), as in the authors' later code."""
    return F.softplus(x, beta=math.log(2))


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"elu1": elu1, "softplus2": softplus2}


@dataclass
class PackedState(State):
    """The result of packing.

    Keys (B, H, D, l) and values (B, H, l, E) to unpack; `keep` (B, l), False for vectors that are not in use; and the
    packed sequence for the next layer, (B, l, C).
    """

    keys: Tensor
    values: Tensor
    keep: Tensor
    packed: Tensor


@dataclass
class LunaState(State):
    """The memory of causal attention.

    Sums of keys (B, H, D, l) and of values (B, H, l, E); the packed sequence, as the pseudo-queries (B, H, l, D) to
    which tokens are compared when they are written; and `keep` (B, l), False for vectors that are not in use.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor
    keep: Tensor


@register(
    "luna",
    Option("luna_length", 16, "luna: vectors of the packed sequence", least=1),
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
        "luna: matrices of a block. tied: 5, keys are the values, as in its released code; raw: 5 (4 in causal "
        "blocks), keys are the block's input itself, as in the paper's section 3.1; untied: 7 (6 in causal blocks); "
        "standard: the 4 of standard attention, which pack and unpack",
        ("tied", "raw", "untied", "standard"),
    ),
    Option("luna_pack_heads", 0, "luna: heads that pack, except in causal blocks (0: as many as the block has)"),
    Option(
        "luna_positions",
        "sinusoidal",
        "luna: position embeddings added to the learned packed vectors: sinusoidal, or learned as in the paper's "
        "masked language model",
        ("sinusoidal", "learned"),
    ),
    Option("luna_fixed_length", False, "luna: use all packed vectors, even for sentences that are shorter"),
    Option(
        "luna_packed",
        "encoder",
        "luna: the packed sequence of a decoder: the encoder's, or one learned for each layer (default of language "
        "models); non-contextual: one learned for each layer of the encoder, too (the paper's table 6)",
        ("encoder", "learned", "non-contextual"),
        without_encoder="learned",
    ),
)
class Luna(BoundedMechanism):
    """Luna: a packed sequence P attends to the keys, queries attend to the result, and P goes on to the next layer.

    Pack: A = softmax((P W_pq) K^T / sqrt(D)), Y = A V. Unpack: softmax(Q (Y W_k)^T / sqrt(D)) (Y W_v). The next layer
    gets P' = Y + P (section 3.2). The paper has no matrices for keys (section 3.1): K is the context itself, and W_k
    the identity (`raw`). Its released code has one matrix for keys and values: K = V, W_k = W_v (`tied`). Causal: with
    a_i = g(x_i W_pc . P W_pq / sqrt(D)), a query reads the memory K~_t = 1/t sum_{i <= t} k_i a_i^T,
    V~_t = 1/t sum_{i <= t} a_i v_i^T with a softmax (section 3.3); with raw keys W_pc is the identity, too.

    Unlike in the paper, an attention normalises P where it reads it, not where it passes it on; otherwise the last
    layer would have a normalisation that nothing uses. The first P is therefore normalised, too, self- and
    cross-attention each have their own normalisation, and pre-norm models are no exception. Unlike in the released
    code, dropout is applied to weights but not to P. W_pq belongs to this module (except with `standard`); `receive`
    names the other projections. In library use there are none: keys and values are unpacked and written as given.
    """

    # An instance replaces the carry's width, and `needs_inputs` once it has layers that project inputs.
    capabilities = Capabilities(prefixes=False, append=False, normalized=False, carry_width=0)
    state_class = LunaState

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.activation, self.projections = _ACTIVATIONS[self.chosen.luna_activation], self.chosen.luna_projections
        decodes, width = self.block not in (None, ENCODER_SELF), head_dim * num_heads
        alone = ("learned", "non-contextual") if decodes else ("non-contextual",)
        self.learned = self.block is not None and self.chosen.luna_packed in alone
        self.given = decodes and not self.learned
        reason = f"the packed sequence is {width} wide, as the block, and the source {self.input_dim}; make them equal"
        self.capabilities = replace(
            self.capabilities,
            unsupported={DECODER_CROSS: reason} if self.input_dim != width else {},
            carry_width=None if self.learned else width,  # layers that learn their P do not read a carry
            carry_is_given=self.given,
            carry_remedy="take --luna-packed learned",
        )
        self.pack_heads = self.chosen.luna_pack_heads or num_heads
        if self.pack_heads < 1 or width % self.pack_heads:
            raise LeapformerError(f"--luna-pack-heads {self.pack_heads} does not divide the width {width} of the block")
        self.packed_norm = nn.LayerNorm(width)
        if not self.given:
            self.tied = () if self.learned or self.block is None else ("packed",)
            self.packed = nn.Parameter(torch.randn(self.slots, width) * width**-0.5)
            if self.chosen.luna_positions == "learned":
                self.tied += ("places",) if self.tied else ()
                self.places: Tensor = nn.Parameter(torch.randn(self.slots, width) * width**-0.5)
            else:
                self.register_buffer("places", sinusoids(torch.arange(self.slots), width), persistent=False)
        roles = [] if self.projections == "standard" else ["query"]
        if self.projections == "untied" and self.block is not None:
            roles += ["write"] if self.block == DECODER_SELF else ["unpack_key", "unpack_value"]
        self.own = nn.ModuleDict({role: _linear(width) for role in roles})
        self.capabilities = replace(self.capabilities, needs_inputs="write" in roles)
        if self.projections == "raw":
            self.register_buffer("raw_keys", torch.tensor(1))  # so that checkpoints with tied keys do not load
            if self.block == DECODER_SELF:
                self.capabilities = replace(self.capabilities, unused_projections=("k_proj",))
        self.stock: dict[str, nn.Linear | None] = {}  # the block's projections; a plain dictionary registers none

    def _number_of_slots(self) -> int:
        return int(self.chosen.luna_length)

    def receive(self, projections: Projections) -> None:
        """Give each of the block's projections its role.

        tied:     v_proj computes keys and values; k_proj projects for writing into slots, or for unpacking.
        raw:      v_proj computes the values to pack; k_proj those to unpack, which a causal block does not need.
        untied:   k_proj and v_proj compute the keys and values to pack; the layers in `own` write or unpack.
        standard: the same, but k_proj and v_proj also write or unpack, and q_proj also computes P W_pq.
        """
        q, _, k, v = projections
        self.stock = {
            "tied": {"write": k, "unpack_key": k, "unpack_value": k},
            "raw": {"value": v, "unpack_value": k},
            "untied": {"value": v},
            "standard": {"query": q, "value": v, "unpack_key": k, "unpack_value": v},
        }[self.projections]
        unused = ("k_proj",) if self.projections in ("tied", "raw") else ()
        self.capabilities = replace(self.capabilities, unused_projections=unused, needs_inputs=True)

    # -------------------------------------------------------------------------------------------- the packed sequence
    def first_carry(self, batch: int) -> Carry:
        packed = accumulated(self.packed)
        return Carry((packed * packed.shape[1] ** 0.5 + self.places.to(packed)).expand(batch, -1, -1))

    def carry(self, state: State) -> Carry:
        state = state.of(PackedState)
        return Carry(state.packed, state.keep)

    def _packed(self, tokens: TokenInfo | None, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised packed sequences (B, l, C) of a batch, and `keep` (B, l), False for vectors not in use.

        Raises LeapformerError if the encoder's is needed and missing.
        """
        given = None if self.learned or tokens is None else tokens.carry
        if given is None and self.given:
            raise self.refusal(
                "luna was given no packed sequence; let the encoder hand one on, or take --luna-packed learned"
            )
        given = given or self.first_carry(batch)
        x = normalised(self.packed_norm, given.values.to(like.dtype))
        return x, x.new_ones(x.shape[:2], dtype=torch.bool) if given.keep is None else given.keep

    def _projected(self, role: str, x: Tensor, heads: int | None = None) -> Tensor | None:
        """x (B, R, C) projected by the layer with this role, (B, H or `heads`, R, D); None if no layer has it."""
        layer: Any = self.own[role] if role in self.own else self.stock.get(role)
        if layer is None:
            return None
        return by_heads(projected(layer, x), heads or self.num_heads)

    def _projected_input(self, role: str, tokens: TokenInfo, like: Tensor) -> Tensor | None:
        """The block's input, projected by the layer with this role; None if no layer has it."""
        if role not in self.own and self.stock.get(role) is None:
            return None
        return self._projected(role, tokens.required_inputs(like.dtype))

    def _keys(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        """The keys (B, H, S, D) that queries and P attend to; with raw keys the block's input itself."""
        raw = self.projections == "raw" and self.stock
        return by_heads(tokens.required_inputs(k.dtype), self.num_heads) if raw else k

    def _pseudo_queries(self, packed: Tensor, heads: int) -> Tensor:
        """P W_pq / sqrt(D), (B, H, l, D)."""
        queries = self._projected("query", packed, heads)
        queries = by_heads(packed, heads) if queries is None else queries
        return queries * queries.shape[-1] ** -0.5

    # ---------------------------------------------------------------------------------------------------------- states
    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> State:
        like = accumulated(like)
        shapes = (self.head_dim, self.slots), (self.slots, value_dim)
        keys, values = (like.new_zeros(batch, self.num_heads, *shape) for shape in shapes)
        if mask is None:
            nothing = like.new_zeros(batch, self.slots, dtype=torch.bool)
            return PackedState(keys, values, nothing, like.new_zeros(batch, self.slots, self.head_dim * self.num_heads))
        with without_autocast(like.device):
            packed, keep = self._packed(key, batch, like)
            return LunaState(keys, values, self._pseudo_queries(packed, self.num_heads), keep)

    @in_float32
    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> State:
        k = self._keys(k, key)
        if isinstance(state, LunaState):
            keys, values, queries, keep = self._tensors(state)
            alpha = self._written(queries, k, key)
            return LunaState(added(keys, k.mT, alpha), added(values, alpha.mT, v), queries, keep)
        keep = state.of(PackedState).keep
        if state.batch_size and keep.is_cpu and not dispatch.is_traced() and keep.any():
            raise LeapformerError("luna packs all keys at once and cannot append some; give it whole sequences")
        return self._pack(k, v, key, self.dropping())[1]

    @in_float32
    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        if isinstance(state, PackedState):
            return self._unpack(q, state, self.dropping()) @ state.values
        keys, values, _, keep = self._tensors(state)
        return self._read(self._scaled(q) @ keys, _count(query, q), keep, self.dropping()) @ values

    def kernel(self) -> PackedKernel:
        write: Any = dict(self.own).get("write")
        raw = self.projections == "raw" and bool(self.stock)
        return PackedKernel(lambda x, queries: self.alpha(x, queries, self.dropping()), write, raw)

    # -------------------------------------------------------------------------------------------------- bidirectional
    def _pack(self, k: Tensor, v: Tensor, key: TokenInfo, dropout: float) -> tuple[Tensor, PackedState]:
        """The weights A, (B, heads that pack, l, S), and the state after packing."""
        packed, _ = self._packed(key, k.shape[0], k)
        hidden = None if key.keep is None else ~key.keep[:, None, None]
        heads = self.pack_heads
        to_pack = k if heads == self.num_heads else by_heads(_joined(k), heads)
        weights = slot_weights(self._pseudo_queries(packed, heads) @ to_pack.mT, hidden, dropout)
        content = _joined(weights @ (v if heads == self.num_heads else by_heads(_joined(v), heads)))  # Y, (B, l, H E)
        keys = self._projected("unpack_key", content)
        values = keys if self.projections == "tied" else self._projected("unpack_value", content)
        if keys is None:  # raw keys; in library use keys are given apart from values
            keys = by_heads(_joined(weights @ to_pack) if values is None else content, self.num_heads)
        values = by_heads(content, self.num_heads) if values is None else values
        # In library use values may have another width than P, and then cannot be added to it.
        packed = packed + content if content.shape == packed.shape else packed
        lengths = key.positions.new_full((1,), k.shape[2]) if key.keep is None else key.keep.sum(1)
        # A sentence shorter than P uses as many vectors as it has tokens.
        in_use = (torch.arange(packed.shape[1], device=k.device) < lengths.unsqueeze(1)) | self.chosen.luna_fixed_length
        return weights, PackedState(keys.mT.contiguous(), values.contiguous(), in_use.expand(k.shape[0], -1), packed)

    def _unpack(self, q: Tensor, state: PackedState, dropout: float) -> Tensor:
        """Weights (B, H, T, l) of the packed vectors for queries q (B, H, T, D)."""
        return slot_weights(self._scaled(q) @ state.keys, ~state.keep[:, None, None], dropout)

    # --------------------------------------------------------------------------------------------------------- causal
    def _written(self, queries: Tensor, k: Tensor, tokens: TokenInfo) -> Tensor:
        """a: how strongly each token is written into each slot, (B, H, S, l)."""
        x = self._projected_input("write", tokens, k)
        return kept(self.alpha(k if x is None else x, queries, self.dropping()), tokens)

    def alpha(self, x: Tensor, queries: Tensor, dropout: float) -> Tensor:
        """a (B, H, S, l), given tokens x (B, H, S, D) that are already projected for writing."""
        alpha = self.activation(x @ queries.mT)
        return F.dropout(alpha, dropout) if dropout else alpha

    def _read(self, logits: Tensor, count: Tensor, keep: Tensor, dropout: float) -> Tensor:
        """Weights (B, H, T, l) of the sums of values, given products of queries with sums of keys.

        `count` is the number of tokens that each query sees.
        """
        return slot_weights(logits / count, ~keep[:, None, None], dropout) / count

    def _causal(self, state: State, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> tuple[Tensor, LunaState]:
        keys, values, queries, keep = self._tensors(state)
        k = self._keys(k, tokens)
        alpha = self._written(queries, k, tokens)
        logits, keys = causal_sums(self._scaled(q), k, alpha, keys)
        weights = self._read(logits, _count(tokens, logits), keep, self.dropping())
        out, values = causal_sums(weights, alpha, v, values)
        return out, LunaState(keys, values, queries, keep)

    # ------------------------------------------------------------------------------------------------------ quadratic
    def _reference(self, x: Inputs) -> Tensor:
        # What is unpacked is projected again, or split into other heads, which `weights` do not include.
        if x.mask is None and (self.stock or self.pack_heads != self.num_heads):
            state = self.write(self.init_state(len(x.q), x.v.shape[3], x.k, x.key), x.k, x.v, x.key)
            return self.read(state, x.q, x.query)
        return super()._reference(x)

    def _composed(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        k = self._keys(k, key)
        if mask is None:
            values = self._projected_input("value", key, k)
            weights, state = self._pack(k, k if values is None else values, key, dropout)
            weights = weights if self.pack_heads == self.num_heads else weights.mean(1, keepdim=True)
            return self._unpack(q, state, dropout) @ weights
        _, _, queries, keep = self._tensors(self.init_state(k.shape[0], 1, k, key, mask))
        alpha = self._written(queries, k, key)
        scores = linear.scores(self._scaled(q), k)
        return (self._read(scores.tril() @ alpha, _count(key, scores), keep, dropout) @ alpha.mT).tril()


def _count(tokens: TokenInfo, like: Tensor) -> Tensor:
    """The number of tokens up to and including each token, (B or 1, 1, T, 1), at least 1."""
    return tokens.positions[:, None, :, None].clamp_min(1).to(like.dtype)


def _joined(x: Tensor) -> Tensor:
    """(B, heads, R, D) to (B, R, heads * D)."""
    return x.transpose(1, 2).flatten(2)


def _linear(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    nn.init.xavier_uniform_(layer.weight, gain=2**-0.5)
    return layer
