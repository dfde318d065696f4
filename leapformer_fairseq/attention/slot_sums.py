"""ABC with a memory that is a sum over the keys: K~ = sum_i phi_i k_i^T and V~ = sum_i phi_i v_i^T (see `bounded`).

The members differ in their control alone: what a key's row writes into which slot.

Shapes: B batch, H heads, T queries, S keys, n slots, D head dimension, E value dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from . import forms
from .base import State
from .bounded import BoundedMechanism, added, causal_sums, kept, read
from .linear import accumulated
from .masks import Rows, Visible
from .registry import Option
from .slot_step import InputControl, SlotStep
from .step import Projections, Step

UNTIED = Option("abc_untied", False, "abc: a learned control of its own in every layer, not one for all of a block")


@dataclass
class SlotState(State):
    """A memory of sums: K~ (B, H, D, n), V~ (B, H, n, E), and the sum of the control in each slot, (B, H, n)."""

    keys: Tensor
    values: Tensor
    mass: Tensor


class SlotSums(BoundedMechanism):
    """Members whose memory is a sum over the keys, K~ = sum_i phi_i k_i^T, with a control phi_i = alpha_i or
    phi_i = alpha_i / sum_j alpha_j, element by element.

    The quotient is taken when the memory is read, which makes the causal one linear in time (appendix B.1): over the
    keys so far there, over all keys in a bidirectional block.
    """

    state_class = SlotState
    #: whether the control is divided by its sum in each slot
    normalized: bool = False
    #: the least that it is divided by
    floor: float = 1.0
    #: whether a slot can be empty when something has been read
    gaps: bool = True
    #: whether `control` is a function of the rows' positions alone
    positional: bool = False

    @abstractmethod
    def control(self, k: Tensor, rows: Rows) -> Tensor:
        """What rows (B, H, S, D) write into every slot, alpha: (B or 1, H or 1, S, n); the caller masks padding."""

    def input_control(self) -> InputControl | None:
        """How `control` is a function of the block's input, row by row; None where it is none, or none of that kind."""
        return None

    def step(self, projections: Projections) -> Step | None:
        if projections.k is not None and not self.positional:
            learned = self.input_control()
            if learned is None or learned.weight.shape[1] != projections.q.in_features:
                return None
        return SlotStep(self, projections)

    def empty_state(self, rows: int, value_dim: int, like: Tensor) -> SlotState:
        return SlotState(*self._empty(rows, value_dim, like))

    def write(self, memory: Sequence[Tensor], k: Tensor, v: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        """The memory after rows were written into the slots by their control; may change the old one in place."""
        keys, values, mass = memory
        return added(keys, k.mT, alpha), added(values, alpha.mT, v), mass + alpha.sum(2)

    def lookup(self, memory: Sequence[Tensor], q: Tensor) -> Tensor:
        """What queries (B, H, T, D) read in all of the memory, (B, H, T, E)."""
        keys, values, mass = memory
        return self._read(self._scaled(q) @ keys, mass.unsqueeze(2), self.dropping()) @ values

    @property
    def masks_empty(self) -> bool:
        """Whether there may be slots that the softmax leaves out."""
        return self.gaps and not self.literal

    def _control(self, k: Tensor, rows: Rows) -> Tensor:
        return kept(self.control(k, rows), rows).expand(*k.shape[:3], self.slots)

    def _read(self, logits: Tensor, mass: Tensor, dropout: float) -> Tensor:
        """Weights (.., T, n) of the sums in V~, from the products of queries and the sums in K~."""
        empty = mass <= 0 if self.masks_empty else None
        if not self.normalized:
            return read(logits, empty, dropout)
        total = mass.clamp_min(self.floor)
        return read(logits / total, empty, dropout) / total

    def _weights(self, q: Tensor, k: Tensor, query: Rows, key: Rows, visible: Visible | None, dropout: float) -> Tensor:
        alpha = self._control(k, key)
        scores = forms.scores_of(self._scaled(q), k)
        if visible is None:
            return self._read(scores @ alpha, alpha.sum(2, keepdim=True), dropout) @ alpha.mT
        return (self._read(scores.tril() @ alpha, alpha.cumsum(2), dropout) @ alpha.mT).tril()

    def _empty(self, rows: int, value_dim: int, like: Tensor) -> tuple[Tensor, ...]:
        shapes = ((self.head_dim, self.slots), (self.slots, value_dim), (self.slots,))
        return tuple(accumulated(like).new_zeros(rows, self.num_heads, *shape) for shape in shapes)

    def _extend(
        self, memory: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, rows: Rows, chunk: int | None
    ) -> tuple[Tensor, ...]:
        keys, values, before = memory
        alpha = self._control(k, rows)
        logits, keys = causal_sums(self._scaled(q), k, alpha, keys, chunk)
        mass = alpha.cumsum(2) + before.unsqueeze(2)
        out, values = causal_sums(self._read(logits, mass, self.dropping()), alpha, v, values, chunk)
        return out, keys, values, mass[:, :, -1].clone()

    def _update(self, memory: Sequence[Tensor], k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        return self.write(memory, k, v, self._control(k, rows))

    def _attend(self, memory: Sequence[Tensor], q: Tensor, rows: Rows) -> Tensor:
        return self.lookup(memory, q)
