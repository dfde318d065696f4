"""ABC with a memory that is a sum over the keys: K~ = sum_i phi_i k_i^T and V~ = sum_i phi_i v_i^T (see `base`).

The members differ only in their control: how much of a token is written into each slot.

Shapes: B batch, H heads, T queries, S keys, n slots, D head dimension, E value dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from ...support.errors import LeapformerError
from ..kernels import Reading, SlotKernel
from ..masks import Mask
from ..mechanism import State
from ..ops import linear
from ..ops.precision import accumulated, in_float32
from ..options import Option
from ..tokens import TokenInfo
from .base import BoundedMechanism, added, causal_sums, kept, slot_weights

UNTIED = Option("abc_untied", False, "abc: a separate learned control in every layer, not one for all of a block")


@dataclass
class SlotState(State):
    """The sums K~ (B, H, D, n) and V~ (B, H, n, E), and the sum of the control in each slot, (B, H, n)."""

    keys: Tensor
    values: Tensor
    mass: Tensor


class SlotSums(BoundedMechanism):
    """Members whose memory is a sum over the keys, with a control phi_i = alpha_i or alpha_i / sum_j alpha_j.

    The division, slot by slot, happens when the memory is read, which makes causal attention linear in time (appendix
    B.1). j runs over the keys so far in a causal block, over all keys in a bidirectional one.
    """

    state_class = SlotState
    #: whether the control is divided by its sum in each slot
    normalized: bool = False
    #: lower bound of the divisor
    floor: float = 1.0
    #: whether slots can be empty after tokens were written
    gaps: bool = True
    #: whether `control` depends only on the tokens' positions
    positional: bool = False

    @abstractmethod
    def control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        """The control alpha of keys (B, H, S, D) for each slot, (B or 1, H or 1, S, n). The caller masks padding."""

    def kernel(self) -> SlotKernel:
        return SlotKernel(self.reading(), self.positional)

    def reading(self) -> Reading:
        """How queries read the memory, for `kernel`."""
        return Reading(True, self.normalized, self.gaps and not self.literal, self.floor)

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> SlotState:
        shapes = ((self.head_dim, self.slots), (self.slots, value_dim), (self.slots,))
        return SlotState(*(accumulated(like).new_zeros(batch, self.num_heads, *shape) for shape in shapes))

    @in_float32
    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> SlotState:
        (keys, values, mass), alpha = self._tensors(state), self._control(k, key)
        return SlotState(added(keys, k.mT, alpha), added(values, alpha.mT, v), mass + alpha.sum(2))

    @in_float32
    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        keys, values, mass = self._tensors(state)
        return self._read(self._scaled(q) @ keys, mass.unsqueeze(2), self.dropping()) @ values

    def _control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        alpha = self.control(k, tokens)
        lead = tuple(k.shape[:3])
        whole = isinstance(alpha, Tensor) and alpha.dim() == 4 and alpha.shape[2] == lead[2]
        if not whole or any(given not in (1, size) for given, size in zip(alpha.shape[:2], lead[:2], strict=True)):
            shape = tuple(alpha.shape) if isinstance(alpha, Tensor) else f"a {type(alpha).__name__}"
            raise LeapformerError(
                f"control gives: {shape}; return {(*lead, self.slots)}, (batch, heads, tokens, slots), with 1 for "
                "batch or heads where they do not matter"
            )
        if alpha.shape[-1] != self.slots:
            raise LeapformerError(
                f"control gives {alpha.shape[-1]} numbers for a token, but there are {self.slots} slots; give one for "
                "each of self.slots"
            )
        return kept(alpha, tokens).expand(*k.shape[:3], self.slots)

    def _read(self, logits: Tensor, mass: Tensor, dropout: float) -> Tensor:
        """Weights (.., T, n) of the sums in V~, given the products of queries with K~ and the mass of each slot."""
        empty = mass <= 0 if self.gaps and not self.literal else None
        if not self.normalized:
            return slot_weights(logits, empty, dropout)
        total = mass.clamp_min(self.floor)
        return slot_weights(logits / total, empty, dropout) / total

    def _composed(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        alpha = self._control(k, key)
        scores = linear.scores(self._scaled(q), k)
        if mask is None:
            return self._read(scores @ alpha, alpha.sum(2, keepdim=True), dropout) @ alpha.mT
        return (self._read(scores.tril() @ alpha, alpha.cumsum(2), dropout) @ alpha.mT).tril()

    def _causal(self, state: State, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> tuple[Tensor, SlotState]:
        keys, values, before = self._tensors(state)
        alpha = self._control(k, tokens)
        logits, keys = causal_sums(self._scaled(q), k, alpha, keys)
        mass = linear.running_sums(alpha) + before.unsqueeze(2)
        out, values = causal_sums(self._read(logits, mass, self.dropping()), alpha, v, values)
        return out, SlotState(keys, values, mass[:, :, -1].clone())
