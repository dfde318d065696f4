"""One decoding step over a memory of slots (ABC, `bounded.SlotSums`) in few operations.

As for linear mechanisms (`step`): one product for all projections, here also for the logits of a learned control; the
state is changed in place; and on a CPU all sums are one call of C (`native`), where it compiles. Otherwise they are the
mechanism's own `write` and `lookup`.

Shapes: B rows, H heads, n slots, D head dimension, E value dimension, C width of the block's input.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from . import native
from .masks import Rows
from .step import Projections, Step

if TYPE_CHECKING:
    from .slot_sums import SlotState, SlotSums

# Positions whose control is computed at once; a row's own would take longer than all the rest of a step.
STRETCH = 64


class InputControl(NamedTuple):
    """A control that is a function of the block's input x: `alpha` of the logits W x, with the `weight` W (H n, C)."""

    weight: Tensor
    alpha: Callable[[Tensor], Tensor]


class SlotStep(Step):
    """The step of a memory that is a sum over the keys.

    Self-attention asks for a control of the block's input or of positions alone, whatever the lengths of the
    sequences; cross-attention only reads, so any control will do.
    """

    def __init__(self, mechanism: SlotSums, projections: Projections) -> None:
        super().__init__(mechanism.num_heads, projections)
        self.mechanism = mechanism
        self.width = self.weight.shape[1]  # of queries, keys and values
        self.learned = mechanism.input_control() if self.sides == 2 else None
        self.logit_weight: Tensor | None = None
        self.stretch = (0, self.weight.new_empty(0))  # first position, and what rows write from there on
        self.sizes: dict[tuple[int, ...], native.SlotSizes] = {}
        if self.learned is not None:
            weight = self.learned.weight.detach().t()
            if self.weight.dtype in (torch.float32, torch.float64):
                self.weight = torch.cat([self.weight, weight.to(self.weight)], 1)
                self.bias = torch.cat([self.bias, self.bias.new_zeros(weight.shape[1])])
            else:  # The logits of a control are float32 at least: in half precision they take a product of their own.
                self.logit_weight = weight.float().contiguous()

    def extend(self, x: Tensor, state: SlotState, position: int, lengths: Tensor | None = None) -> Tensor:
        projected = self.project(x).to(state.keys.dtype)
        control = self._control(x, projected, position)
        heads = self._native(projected, state, control)
        if heads is None:
            start, middle = self.heads * self.dim, 2 * self.heads * self.dim
            k = projected[:, start:middle].view(len(x), self.heads, 1, -1)
            v = projected[:, middle : self.width].view(len(x), self.heads, 1, -1)
            memory = state.keys, state.values, state.mass
            state.keys, state.values, state.mass = self.mechanism.write(memory, k, v, control.unsqueeze(2))
            heads = self._lookup(projected, state)
        return self.project_out(heads)

    def attend(self, x: Tensor, state: SlotState, position: int, lengths: Tensor | None = None) -> Tensor:
        projected = self.project(x).to(state.keys.dtype)
        heads = self._native(projected, state)
        return self.project_out(self._lookup(projected, state) if heads is None else heads)

    def _control(self, x: Tensor, projected: Tensor, position: int) -> Tensor:
        """What the rows write into the slots, (B, H, n)."""
        if self.learned is None:
            return self._control_at(position, projected).expand(len(x), self.heads, -1)
        logits = projected[:, self.width :] if self.logit_weight is None else x.float() @ self.logit_weight
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

    def _lookup(self, projected: Tensor, state: SlotState) -> Tensor:
        """What the queries read, (B, H * E)."""
        q = projected[:, : self.heads * self.dim].view(len(projected), self.heads, self.dim)
        together = q.unflatten(0, (len(state.keys), -1)).transpose(1, 2)  # those that share a state
        read = self.mechanism.lookup((state.keys, state.values, state.mass), together)
        return read.transpose(1, 2).reshape(len(projected), -1)

    def _native(self, projected: Tensor, state: SlotState, control: Tensor | None = None) -> Tensor | None:
        """What the queries read, (B, H * E), after the rows were written, by the compiled step.

        None where that does not serve; then nothing was written.
        """
        keys, values, mass = memory = state.keys, state.values, state.mass
        if keys.dtype != torch.float32 or not keys.is_cpu or (step := native.slot_step()) is None:
            return None
        if self.mechanism.slots > native.MAX_SLOTS or (self.mechanism.training and self.mechanism.dropout):
            return None
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
            *(tensor.data_ptr() for tensor in (*memory, out)),
        )
        return out

    def _native_sizes(self, rows: int, states: int, heads: int, slots: int, value_dim: int) -> native.SlotSizes:
        return native.SlotSizes(
            rows=rows,
            heads=heads,
            dim=self.dim,
            value_dim=value_dim,
            slots=slots,
            shared=rows // states,
            normalized=self.mechanism.normalized,
            masked=self.mechanism.masks_empty,
            floor=self.mechanism.floor,
            scale=self.dim**-0.5,
        )
