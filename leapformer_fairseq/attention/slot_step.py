"""One decoding step over a memory of slots (`bounded`: ABC and Luna) in few operations.

As for linear mechanisms (`step`): one product for all projections, here also for the logits of a learned control; the
state is changed in place; and on a CPU all sums are one call of C (`native`), where it compiles. Otherwise they are the
mechanism's own functions.

Shapes: B rows, H heads, n slots, D head dimension, E value dimension, C width of the block's input.
"""

from __future__ import annotations

import ctypes
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from . import native
from .masks import Rows
from .step import Projections, Step

if TYPE_CHECKING:
    from .bounded import BoundedMechanism
    from .slot_sums import SlotState, SlotSums

# Positions whose control is computed at once; a row's own would take longer than all the rest of a step.
STRETCH = 64


class InputControl(NamedTuple):
    """A control that is a function of the block's input x: `alpha` of the logits W x, with the `weight` W (H n, C)."""

    weight: Tensor
    alpha: Callable[[Tensor], Tensor]


class Reading(NamedTuple):
    """What the mass of the slots, how much is in each, does when they are read.

    summed:     it is the sum of the control, (B, H, n), which a row adds to; or else it is given, (B, n).
    normalized: sums in the slots are divided by it, by at least `floor`.
    masked:     slots without any are left out of the softmax.
    """

    summed: bool
    normalized: bool
    masked: bool
    floor: float = 1.0


class MemoryStep(Step):
    """The step over a state of sums, `keys` (B, H, D, n) and `values` (B, H, n, E): all but what is written, how much.

    `key` and `value` are where the keys and the values stand in a projected row.
    """

    def __init__(self, mechanism: BoundedMechanism, projections: Projections, reading: Reading) -> None:
        super().__init__(mechanism.num_heads, projections)
        self.mechanism, self.reading = mechanism, reading
        self.key, self.value = self.heads * self.dim, 2 * self.heads * self.dim
        self.end = self.weight.shape[1]  # of queries, keys and values
        self.sizes: dict[tuple[int, ...], native.SlotSizes] = {}

    @abstractmethod
    def _control(self, x: Tensor, projected: Tensor, state: Any, position: int) -> Tensor:
        """What the rows write into the slots, (B, H, n)."""

    @abstractmethod
    def _mass(self, state: Any, position: int) -> Tensor:
        """How much is in the slots, as `reading` says."""

    @abstractmethod
    def _write(self, state: Any, k: Tensor, v: Tensor, control: Tensor) -> None:
        """Write rows k (B, H, 1, D), v (B, H, 1, E) into the state by their control (B, H, 1, n)."""

    @abstractmethod
    def _lookup(self, state: Any, q: Tensor, position: int) -> Tensor:
        """What queries (B, H, T, D) read, (B, H, T, E)."""

    def extend(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        projected = self.project(x).to(state.keys.dtype)
        control = self._control(x, projected, state, position).to(state.keys.dtype)
        heads = self._native(projected, state, position, control)
        if heads is None:
            k = projected[:, self.key : self.key + self.heads * self.dim].view(len(x), self.heads, 1, -1)
            v = projected[:, self.value : self.end].view(len(x), self.heads, 1, -1)
            self._write(state, k, v, control.unsqueeze(2))
            heads = self._read(projected, state, position)
        return self.project_out(heads)

    def attend(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        projected = self.project(x).to(state.keys.dtype)
        heads = self._native(projected, state, position)
        return self.project_out(self._read(projected, state, position) if heads is None else heads)

    def _read(self, projected: Tensor, state: Any, position: int) -> Tensor:
        """What the queries read, (B, H * E)."""
        q = projected[:, : self.heads * self.dim].view(len(projected), self.heads, self.dim)
        together = q.unflatten(0, (len(state.keys), -1)).transpose(1, 2)  # those that share a state
        return self._lookup(state, together, position).transpose(1, 2).reshape(len(projected), -1)

    def _native(self, projected: Tensor, state: Any, position: int, control: Tensor | None = None) -> Tensor | None:
        """What the queries read, (B, H * E), after the rows were written, by the compiled step.

        None where that does not serve; then nothing was written.
        """
        keys, values = state.keys, state.values
        if keys.dtype != torch.float32 or not keys.is_cpu or (step := native.slot_step()) is None:
            return None
        if values.shape[2] > native.MAX_SLOTS or self.mechanism.dropping():
            return None
        mass = self._mass(state, position)
        if not (keys.is_contiguous() and values.is_contiguous() and mass.is_contiguous()):
            return None
        shape = (len(projected), *values.shape)
        if shape not in self.sizes:
            self.sizes[shape] = self._native_sizes(*shape)
        out = projected.new_empty(len(projected), self.heads * shape[-1])
        step(
            ctypes.byref(self.sizes[shape]),
            *(projected.data_ptr(), projected.stride(0)),
            *((None, 0, 0) if control is None else (control.data_ptr(), *control.stride()[:2])),
            *(tensor.data_ptr() for tensor in (keys, values, mass, out)),
        )
        return out

    def _native_sizes(self, rows: int, states: int, heads: int, slots: int, value_dim: int) -> native.SlotSizes:
        return native.SlotSizes(
            rows=rows,
            heads=heads,
            dim=self.dim,
            value_dim=value_dim,
            slots=slots,
            shared=self.sharing(rows, states),
            key=self.key,
            value=self.value,
            scale=self.dim**-0.5,
            **self.reading._asdict(),
        )


class SlotStep(MemoryStep):
    """The step of a memory that is a sum over the keys (ABC).

    Self-attention asks for a control of the block's input or of positions alone, whatever the lengths of the
    sequences; cross-attention only reads, so any control will do.
    """

    mechanism: SlotSums

    def __init__(self, mechanism: SlotSums, projections: Projections) -> None:
        reading = Reading(True, mechanism.normalized, mechanism.masks_empty, mechanism.floor)
        super().__init__(mechanism, projections, reading)
        self.learned = mechanism.input_control() if self.sides == 2 else None
        self.logit_weight: Tensor | None = None
        self.stretch = (0, self.weight.new_empty(0))  # first position, and what rows write from there on
        if self.learned is not None:
            weight = self.learned.weight.detach()
            if self.weight.dtype in (torch.float32, torch.float64):
                self.project_more(weight, weight.new_zeros(len(weight)))
            else:  # The logits of a control are float32 at least: in half precision they take a product of their own.
                self.logit_weight = weight.t().float().contiguous()

    def _control(self, x: Tensor, projected: Tensor, state: SlotState, position: int) -> Tensor:
        if self.learned is None:
            return self._control_at(position, projected).expand(len(x), self.heads, -1)
        logits = projected[:, self.end :] if self.logit_weight is None else x.float() @ self.logit_weight
        return self.learned.alpha(logits).view(len(x), self.heads, -1)

    def _control_at(self, position: int, like: Tensor) -> Tensor:
        """What every row at a position writes, (H or 1, n)."""
        start, control = self.stretch
        if not start <= position < start + len(control):
            start = position - (position - 1) % STRETCH
            # not beyond the longest sequence: some controls end there
            last = min(start + STRETCH - 1, self.mechanism.max_positions or math.inf)
            positions = torch.arange(start, max(position, last) + 1, device=like.device)
            k = like.new_zeros(1).expand(1, self.heads, len(positions), self.dim)
            control = self.mechanism.control(k, Rows(positions.unsqueeze(0)))[0].transpose(0, 1).to(like).contiguous()
            self.stretch = start, control
        return control[position - start]

    def _mass(self, state: SlotState, position: int) -> Tensor:
        return state.mass

    def _write(self, state: SlotState, k: Tensor, v: Tensor, control: Tensor) -> None:
        memory = state.keys, state.values, state.mass
        state.keys, state.values, state.mass = self.mechanism.write(memory, k, v, control)

    def _lookup(self, state: SlotState, q: Tensor, position: int) -> Tensor:
        return self.mechanism.lookup((state.keys, state.values, state.mass), q)
