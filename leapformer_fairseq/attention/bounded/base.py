"""Attention with bounded-memory control (ABC): queries read n slots instead of N keys.

Every key and value is written into a memory of n slots, K~ = sum_i phi_i k_i^T and V~ = sum_i phi_i v_i^T, and a query
reads it with a softmax, o = V~^T softmax(K~ q / sqrt(D)) (Peng et al., 2022, arXiv:2110.02488, section 3). The members
of the family differ in their control phi, which says how much of a token is written into each slot.

A causal query reads the memory of its own prefix. Logits and outputs are then sums over visible keys as in linear
attention (`ops.linear`): for logits the control takes the place of the values, for outputs that of the keys. Training
is therefore linear in N, and no tensor has size N x n x D.

Shapes: B batch, H heads, T queries, S keys, n slots, D head dimension, E value dimension.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import DECODER_SELF, Capabilities
from ..masks import CAUSAL, ChunkMask, Mask, with_state
from ..mechanism import Inputs, Mechanism, State
from ..ops import dispatch, linear
from ..ops.precision import in_float32
from ..options import Option, per_block
from ..tokens import TokenInfo

SLOTS = Option(
    "abc_slots",
    "32/8/32",
    "abc: slots of the memory, one number or ENCODER/DECODER/CROSS; a window's are the tokens it sees; 32 in language "
    "models, 64 in masked ones",
    without_encoder="32",
)
EMPTY_SLOTS = Option(
    "abc_empty_slots",
    "mask",
    "abc: slots that nothing was written to are left out of the softmax (mask), or take part as zeros, as the paper's "
    "formula has it (literal)",
    ("mask", "literal"),
)


class BoundedMechanism(Mechanism):
    """A memory of n slots that is read with a softmax.

    A subclass defines the memory (`init_state`), how it is written and read, and causal attention over many tokens
    (`_causal`). The memory is float32 (float64 for double inputs). Dropout is applied to the weights of slots.
    """

    capabilities = Capabilities(prefixes=False)
    state_class: ClassVar[type[State]]

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.slots = self._number_of_slots()
        self.literal = getattr(self.chosen, EMPTY_SLOTS.name, EMPTY_SLOTS.default) == "literal"

    def _number_of_slots(self) -> int:
        return per_block(SLOTS.flag, getattr(self.chosen, SLOTS.name, str(SLOTS.default)), self.block, least=1)

    @abstractmethod
    def _causal(self, state: State, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> tuple[Tensor, State]:
        """Causal attention of tokens that follow `state`: the output and the new state."""

    @abstractmethod
    def _composed(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        """What every key contributes to every query, (B, H, T, S): the quadratic reference. Mask CAUSAL or None."""

    @in_float32
    def scan_(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        if with_state(mask) != CAUSAL or not q.shape[2]:
            return super().scan_(state, q, k, v, query, key, mask)
        if q.shape[2] == 1:  # in a decoding step, write and read do less than `_causal`
            state = self.write(state, k, v, key)
            return self.read(state, q, key), state
        return self._causal(state, q, k, v, key)

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        mask = with_state(mask)
        if isinstance(mask, ChunkMask):
            return super()._weights(q, k, query, key, mask, dropout)
        if mask is None:
            return self._composed(q, k, query, key, mask, dropout)
        queries, keys = q.shape[2], k.shape[2]
        self._check_causal(queries, keys)
        key = key.narrow(0, queries)  # under a causal mask queries and keys are the same tokens
        return F.pad(self._composed(q, k[:, :, :queries], key, key, CAUSAL, dropout), (0, keys - queries))

    def _in_segments(self, x: Inputs) -> Tensor:
        if x.mask == CAUSAL:
            self._check_causal(x.q.shape[2], x.k.shape[2])
        return super()._in_segments(x)

    def _check_causal(self, queries: int, keys: int) -> None:
        if queries > keys:
            raise LeapformerError(
                f"{self.name} attention of {queries} causal queries over {keys} keys; give as many of both"
            )

    def _limits(self, x: Inputs) -> tuple[float, int]:
        bounds = dispatch.bounds(x.q.device)
        # Without a mask little is saved for the backward pass in any case.
        kept = math.inf if x.mask is None else bounds.kept_slot_tokens
        return kept, bounds.segment_slot_tokens

    def _tensors(self, state: State) -> tuple[Tensor, ...]:
        return tuple(state.of(self.state_class).tensors().values())

    def _scaled(self, q: Tensor) -> Tensor:
        return q * self.head_dim**-0.5


def slot_weights(logits: Tensor, empty: Tensor | None, dropout: float) -> Tensor:
    """Softmax over the slots that are not `empty`. If all are, the weights do not matter: the slots hold 0."""
    if empty is not None:
        logits = logits.masked_fill(empty, torch.finfo(logits.dtype).min)
    weights = logits.softmax(-1)
    return F.dropout(weights, dropout) if dropout else weights


def kept(alpha: Tensor, tokens: TokenInfo) -> Tensor:
    """The control alpha (B, H, S, n) with zeros at padding, so that padding writes nothing."""
    return alpha if tokens.keep is None else alpha * tokens.keep[:, None, :, None].to(alpha.dtype)


def causal_sums(q: Tensor, k: Tensor, v: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Causal sums (B, H, T, M) over the state `first` (B, H, F, M) and the keys, and the state after all keys."""
    return linear.gained_sums(q, k, v, first, 1, dispatch.chunk_of(q.device, 1))


def added(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b; in place if gradients are disabled, for one token without allocating memory."""
    if torch.is_grad_enabled():
        return total + a @ b
    return total.addcmul_(a, b) if a.shape[-1] == 1 else total.add_(a @ b)


def set_limit(mechanism: Mechanism, limit: int, flag: str) -> None:
    """A mechanism can read at most `limit` tokens; `flag` names the options that set it."""
    decodes = mechanism.block in (None, DECODER_SELF)
    mechanism.limit, max_target = limit, limit if decodes else None
    mechanism.capabilities = replace(mechanism.capabilities, max_target=max_target, limit_options=flag)
