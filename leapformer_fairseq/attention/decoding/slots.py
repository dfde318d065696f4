"""The decoding step over a memory of slots (ABC and Luna); the logits of a control are projected, too.

On a CPU, one call of a C function (`cpu`) computes all sums, if it could be compiled.

Shapes: B batch entries, H heads, n slots, D head dimension, E value dimension, C width of the block's input.
"""

from __future__ import annotations

import ctypes
import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..bounded.sums import SlotSums
from ..kernels import PackedKernel, Projections, Reading, SlotKernel
from ..mechanism import Mechanism
from ..ops import cpu
from ..tokens import TokenInfo
from .step import Step

# How many positions' controls are computed together: one at a time, each would take longer than the rest of a step.
POSITIONS = 64


class MemoryStep(Step):
    """The step over a state of sums, `keys` (B, H, D, n) and `values` (B, H, n, E).

    A subclass defines what a token writes.
    """

    reading: Reading

    @abstractmethod
    def control(self, x: Tensor, projected: Tensor, state: Any, position: int) -> Tensor:
        """How much the tokens write into each slot, (B, H, n)."""

    @abstractmethod
    def mass(self, state: Any, position: int) -> Tensor:
        """The mass of each slot, in the form that `reading` describes: (B, H, n) or (B, n)."""

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        kernel, keys, values = cpu.slot_step(), state.keys, state.values
        if kernel is None or not self._kernel_fits(keys, values):
            return super().attend(projected, x, state, position, lengths)
        projected, mass = projected.float(), self.mass(state, position)
        control = self.control(x, projected, state, position).float() if self.self_attention else None
        shape = (len(projected), *values.shape)
        sizes = self.sizes_of(shape, self._sizes)
        out = projected.new_empty(len(projected), self.heads * shape[-1])
        kernel(
            ctypes.byref(sizes),
            *(projected.data_ptr(), projected.stride(0)),
            *((None, 0, 0) if control is None else (control.data_ptr(), *control.stride()[:2])),
            *(tensor.data_ptr() for tensor in (keys, values, mass, out)),
        )
        return out

    def _kernel_fits(self, keys: Tensor, values: Tensor) -> bool:
        fits = keys.dtype == torch.float32 and keys.is_cpu and values.shape[2] <= cpu.MAX_SLOTS
        return fits and keys.is_contiguous() and values.is_contiguous() and not self.mechanism.dropping()

    def _sizes(self, batch: int, states: int, heads: int, slots: int, value_dim: int) -> cpu.SlotSizes:
        return cpu.SlotSizes(
            rows=batch,
            heads=heads,
            dim=self.dim,
            value_dim=value_dim,
            slots=slots,
            shared=batch // states,
            key=self.value if self.mechanism.capabilities.keys_are_values else self.key,
            value=self.value,
            scale=self.dim**-0.5,
            **self.reading._asdict(),
        )


class SlotStep(MemoryStep):
    """The step of a memory that is a sum over the keys (ABC).

    In self-attention the kernel needs a control that depends only on the block's input, or only on positions.
    """

    mechanism: SlotSums

    @staticmethod
    def fits(kernel: SlotKernel, projections: Projections) -> bool:
        of_input = kernel.weight is not None and kernel.weight.shape[1] == projections.q.in_features
        return projections.k is None or kernel.positional or of_input

    def __init__(self, mechanism: Mechanism, projections: Projections, kernel: SlotKernel) -> None:
        super().__init__(mechanism, projections)
        self.reading = kernel.reading
        self.alpha = kernel.alpha
        self.logit_weight: Tensor | None = None
        self.positions = (0, self.weight.new_empty(0))  # the first cached position; the control from there on
        if kernel.weight is not None and self.self_attention:
            weight = kernel.weight.detach()
            if self.weight.dtype in (torch.float32, torch.float64):
                self.also_project(weight, weight.new_zeros(len(weight)))
            else:  # The logits of a control are at least float32, so in half precision they need a separate product.
                self.logit_weight = weight.t().float().contiguous()

    def control(self, x: Tensor, projected: Tensor, state: Any, position: int) -> Tensor:
        if self.alpha is None:
            return self._control_at(position, projected).expand(len(x), self.heads, -1)
        logits = projected[:, self.end :] if self.logit_weight is None else x.float() @ self.logit_weight
        return self.alpha(logits).view(len(x), self.heads, -1)

    def _control_at(self, position: int, like: Tensor) -> Tensor:
        """The control of any token at this position, (H or 1, n)."""
        start, control = self.positions
        if not start <= position < start + len(control):
            start = position - (position - 1) % POSITIONS
            # Not beyond the maximum length, where some controls end.
            last = min(start + POSITIONS - 1, self.mechanism.capabilities.max_target or math.inf)
            positions = torch.arange(start, max(position, last) + 1, device=like.device)
            k = like.new_zeros(1).expand(1, self.heads, len(positions), self.dim)
            control = self.mechanism.control(k, TokenInfo(positions.unsqueeze(0)))[0].transpose(0, 1)
            control = control.to(like).contiguous()
            self.positions = start, control
        return control[position - start]

    def mass(self, state: Any, position: int) -> Tensor:
        return state.mass


class PackedStep(MemoryStep):
    """The step of Luna: slots hold means over the tokens so far; unpacking only reads them.

    How much of a token is written into a slot depends on the similarity of the token's projection to the packed
    sequence. This projection is that of the keys (tied, or standard), a separate one (untied), or the input itself
    (raw).
    """

    def __init__(self, mechanism: Mechanism, projections: Projections, kernel: PackedKernel) -> None:
        super().__init__(mechanism, projections)
        self.reading = Reading(summed=False, normalized=self.self_attention, masked=True)
        self.kernel = kernel
        self.writes = self.key  # the first column of the projection that decides what is written
        if kernel.raw and self.self_attention:  # the input itself takes the place of projected keys
            self.weight[:, self.key : self.value] = torch.eye(len(self.weight), device=self.weight.device)
            self.bias[self.key : self.value] = 0
        if kernel.write is not None and self.self_attention:
            self.writes = self.end
            self.also_project(kernel.write.weight.detach(), kernel.write.bias.detach())

    def control(self, x: Tensor, projected: Tensor, state: Any, position: int) -> Tensor:
        seen = projected[:, self.writes : self.writes + self.heads * self.dim].view(len(x), self.heads, 1, -1)
        return self.kernel.alpha(seen, state.queries).squeeze(2)

    def _sizes(self, *shape: int) -> cpu.SlotSizes:
        sizes = super()._sizes(*shape)
        if self.kernel.raw:
            sizes.key = self.key
        return sizes

    def mass(self, state: Any, position: int) -> Tensor:
        return (state.keep * float(position)).float()
