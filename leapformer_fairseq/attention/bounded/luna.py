"""Luna: linear unified nested attention, through a packed sequence that flows from layer to layer.

Ma et al., 2021, arXiv:2106.01540. A packed sequence P of l vectors reads the keys (pack), and the queries read what it
found (unpack); P and what it found make the packed sequence of the next layer, which is the carry of this mechanism. A
causal query reads a memory of l slots as in ABC (see `base`), which tokens are written into by their similarity to P.

Shapes: B batch, H heads, T queries, S keys, l packed vectors, D head dimension, E value dimension, C = H D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..capabilities import DECODER_CROSS, DECODER_SELF, ENCODER_SELF, Capabilities
from ..kernels import PackedKernel, Projections
from ..layers import normalised, projected
from ..linear.elu import elu1
from ..masks import Mask
from ..mechanism import Inputs, State
from ..ops import linear
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
    pseudo-queries (B, H, l, D), and which of its vectors are in use, keep (B, l).
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
        "luna: matrices of a block: 5, keys are values (tied, its released code); 5, keys are what is read as it is "
        "(raw, the paper's section 3.1; 4 in causal blocks); 7 (untied; 6 in causal blocks); the 4 of standard "
        "attention, which pack and unpack (standard)",
        ("tied", "raw", "untied", "standard"),
    ),
    Option(
        "luna_pack_heads", 0, "luna: heads that pack, where all keys are packed at once (0: as many as the block has)"
    ),
    Option(
        "luna_positions",
        "sinusoidal",
        "luna: positions of the packed vectors, added to what is learned: sinusoidal, or learned as in the paper's "
        "masked language model",
        ("sinusoidal", "learned"),
    ),
    Option("luna_fixed_length", False, "luna: use all packed vectors, even for sentences that are shorter"),
    Option(
        "luna_packed",
        "encoder",
        "luna: a decoder's packed sequence, the one that the encoder hands on or a learned one for each layer "
        "(default of language models), or (non-contextual) for each layer of the encoder, too (the paper's table 6)",
        ("encoder", "learned", "non-contextual"),
        without_encoder="learned",
    ),
)
class Luna(BoundedMechanism):
    """Luna: a packed sequence P reads the keys, queries read what it found; P flows on to the next layer.

    Pack: A = softmax((P W_pq) K^T / sqrt(D)), Y = A V. Unpack: softmax(Q (Y W_k)^T / sqrt(D)) (Y W_v). The next layer
    gets P' = Y + P (section 3.2). The paper has no matrices of keys (section 3.1): K is the context as it is, and W_k
    the identity (`raw`). Its released code has one matrix for keys and values: K = V, W_k = W_v (`tied`). Causal: with
    a_i = g(x_i W_pc . P W_pq / sqrt(D)), a query reads the memory K~_t = 1/t sum_{i <= t} k_i a_i^T,
    V~_t = 1/t sum a_i v_i^T by a softmax (section 3.3); with raw keys W_pc is the identity, too.

    Here an attention normalises P when it reads it, and not what it hands on, so that the last layer has no
    normalisation without a use. So the first P is normalised, too, self- and cross-attention each have a normalisation,
    and it is the same in pre-norm models. Weights are dropped out, P itself is not, other than in the released code.
    W_pq is the layer's own, what else is projected is said at `receive`; without that, as a library, keys and values
    are unpacked and written as they are given.
    """

    # Each instance has a width of its own.
    capabilities = Capabilities(prefixes=False, append=False, normalized=False, needs_inputs=True, carry_width=0)
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
            carry_width=None if self.learned else width,  # nobody would read what learned ones hand on
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
        if self.projections == "raw":
            self.register_buffer("raw_keys", torch.tensor(1))  # without it a checkpoint with tied ones would load
            if self.block == DECODER_SELF:
                self.capabilities = replace(self.capabilities, unused_projections=("k_proj",))
        self.stock: dict[str, nn.Linear | None] = {}  # the block's, which a plain dictionary does not register here

    def _number_of_slots(self) -> int:
        return int(self.chosen.luna_length)

    def receive(self, projections: Projections) -> None:
        """Tied: one matrix makes keys and values; the other writes tokens into the slots, or unpacks.

        Raw: what packs, and what is unpacked, has a matrix of values each, of which a causal block needs one.
        """
        q, _, k, v = projections
        self.stock = {
            "tied": {"write": k, "unpack_key": k, "unpack_value": k},
            "raw": {"value": v, "unpack_value": k},
            "untied": {"value": v},
            "standard": {"query": q, "value": v, "unpack_key": k, "unpack_value": v},
        }[self.projections]
        unused = ("k_proj",) if self.projections in ("tied", "raw") else ()
        self.capabilities = replace(self.capabilities, unused_projections=unused)

    # -------------------------------------------------------------------------------------------- the packed sequence
    def first_carry(self, batch: int) -> Carry:
        packed = accumulated(self.packed)
        return Carry((packed * packed.shape[1] ** 0.5 + self.places.to(packed)).expand(batch, -1, -1))

    def carry(self, state: State) -> Carry:
        state = state.of(PackedState)
        return Carry(state.packed, state.keep)

    def _packed(self, tokens: TokenInfo | None, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The packed sequences of a batch, normalised, and which of their vectors are in use."""
        given = None if self.learned or tokens is None else tokens.carry
        if given is None and self.given:
            raise LeapformerError(
                "luna was given no packed sequence; let the encoder hand one on, or take --luna-packed learned"
            )
        given = given or self.first_carry(batch)
        x = normalised(self.packed_norm, given.values.to(like.dtype))
        return x, x.new_ones(x.shape[:2], dtype=torch.bool) if given.keep is None else given.keep

    def _projected(self, role: str, x: Tensor, heads: int | None = None) -> Tensor | None:
        """(B, R, C) to (B, H, R, D), or to other `heads`, by the projection that has this role; None without one."""
        layer: Any = self.own[role] if role in self.own else self.stock.get(role)
        if layer is None:
            return None
        return _split(projected(layer, x), heads or self.num_heads)

    def _keys(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        """The keys (B, H, S, D) that queries and P attend to: of a block with raw ones its input as it is."""
        raw = self.projections == "raw" and self.stock and tokens.inputs is not None
        return _split(tokens.inputs_or(k), self.num_heads) if raw else k

    def _pseudo_queries(self, packed: Tensor, heads: int) -> Tensor:
        """P W_pq / sqrt(D), (B, H, l, D)."""
        queries = self._projected("query", packed, heads)
        queries = _split(packed, heads) if queries is None else queries
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
        if state.batch_size and keep.is_cpu and keep.any():
            raise LeapformerError("luna packs all keys at once and cannot append some; give it whole sequences")
        return self._pack(k, v, key, self.dropping())[1]

    @in_float32
    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        if isinstance(state, PackedState):
            return self._unpack(q, state, self.dropping()) @ state.values
        keys, values, _, keep = self._tensors(state)
        return self._read(self._scaled(q) @ keys, _count(query, q), keep, self.dropping()) @ values

    def kernel(self) -> PackedKernel:
        own: Any = dict(self.own).get("write")
        raw = self.projections == "raw" and bool(self.stock)
        return PackedKernel(lambda seen, queries: self.alpha(seen, queries, self.dropping()), own, raw)

    # -------------------------------------------------------------------------------------------------- bidirectional
    def _pack(self, k: Tensor, v: Tensor, key: TokenInfo, dropout: float) -> tuple[Tensor, PackedState]:
        """A, (B, heads that pack, l, S), and what is left of the keys."""
        packed, _ = self._packed(key, len(k), k)
        hidden = None if key.keep is None else ~key.keep[:, None, None]
        heads = self.pack_heads
        to_pack = k if heads == self.num_heads else _split(_joined(k), heads)
        weights = slot_weights(self._pseudo_queries(packed, heads) @ to_pack.mT, hidden, dropout)
        content = _joined(weights @ (v if heads == self.num_heads else _split(_joined(v), heads)))  # Y, (B, l, H E)
        keys = self._projected("unpack_key", content)
        values = keys if self.projections == "tied" else self._projected("unpack_value", content)
        if keys is None:  # raw; as a library they are given apart from the values
            keys = _split(_joined(weights @ to_pack) if values is None else content, self.num_heads)
        values = _split(content, self.num_heads) if values is None else values
        # As a library it may be given values of another width than P, which cannot be added to it.
        packed = packed + content if content.shape == packed.shape else packed
        lengths = key.positions.new_full((1,), k.shape[2]) if key.keep is None else key.keep.sum(1)
        # of a sentence that is shorter than P, as many vectors are in use as it has tokens
        in_use = (torch.arange(packed.shape[1], device=k.device) < lengths.unsqueeze(1)) | self.chosen.luna_fixed_length
        return weights, PackedState(keys.mT.contiguous(), values.contiguous(), in_use.expand(len(k), -1), packed)

    def _unpack(self, q: Tensor, state: PackedState, dropout: float) -> Tensor:
        """Weights (B, H, T, l) of the packed vectors for queries."""
        return slot_weights(self._scaled(q) @ state.keys, ~state.keep[:, None, None], dropout)

    # --------------------------------------------------------------------------------------------------------- causal
    def _written(self, queries: Tensor, k: Tensor, tokens: TokenInfo) -> Tensor:
        """a, how strongly every token is written into every slot, (B, H, S, l)."""
        seen = self._projected("write", tokens.inputs_or(k))
        return kept(self.alpha(k if seen is None else seen, queries, self.dropping()), tokens)

    def alpha(self, seen: Tensor, queries: Tensor, dropout: float) -> Tensor:
        """The same of tokens as they are projected to write, (B, H, S, D)."""
        alpha = self.activation(seen @ queries.mT)
        return F.dropout(alpha, dropout) if dropout else alpha

    def _read(self, logits: Tensor, count: Tensor, keep: Tensor, dropout: float) -> Tensor:
        """Weights (B, H, T, l) of the sums of values, from the products of queries and sums of keys over `count`."""
        return slot_weights(logits / count, ~keep[:, None, None], dropout) / count

    def _causal(self, state: State, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> tuple[Tensor, LunaState]:
        keys, values, queries, keep = self._tensors(state)
        k = self._keys(k, tokens)
        alpha = self._written(queries, k, tokens)
        logits, keys = causal_sums(self._scaled(q), k, alpha, keys)
        weights = self._read(logits, _count(tokens, logits), keep, self.dropping())
        out, values = causal_sums(weights, alpha, v, values)
        return out, LunaState(keys, values, queries, keep)

    def _scan_parameters(self) -> Iterator[nn.Parameter]:
        yield from super()._scan_parameters()
        of_the_block = self.stock.get("write")
        if of_the_block is not None:
            yield from of_the_block.parameters()

    # ------------------------------------------------------------------------------------------------------ quadratic
    def _reference(self, x: Inputs) -> Tensor:
        # What is unpacked may be projected once more, or split into other heads: `weights` do not tell it.
        if x.mask is None and (self.stock or self.pack_heads != self.num_heads):
            state = self.write(self.init_state(len(x.q), x.v.shape[3], x.k, x.key), x.k, x.v, x.key)
            return self.read(state, x.q, x.query)
        return super()._reference(x)

    def _composed(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        k = self._keys(k, key)
        if mask is None:
            values = self._projected("value", key.inputs_or(k))
            weights, state = self._pack(k, k if values is None else values, key, dropout)
            weights = weights if self.pack_heads == self.num_heads else weights.mean(1, keepdim=True)
            return self._unpack(q, state, dropout) @ weights
        _, _, queries, keep = self._tensors(self.init_state(len(k), 1, k, key, mask))
        alpha = self._written(queries, k, key)
        scores = linear.scores(self._scaled(q), k)
        return (self._read(scores.tril() @ alpha, _count(key, scores), keep, dropout) @ alpha.mT).tril()


def _count(tokens: TokenInfo, like: Tensor) -> Tensor:
    """How many tokens there are up to each of them, (B or 1, 1, T, 1), at least 1."""
    return tokens.positions[:, None, :, None].clamp_min(1).to(like.dtype)


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, R, C) to (B, heads, R, C / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    """(B, heads, R, D) to (B, R, heads * D)."""
    return x.transpose(1, 2).flatten(2)


def _linear(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    nn.init.xavier_uniform_(layer.weight, gain=2**-0.5)
    return layer
