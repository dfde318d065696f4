"""The decoding step of recurrent mechanisms without a normalizer; the logits of all gates are projected, too.

In float32 everything after the projections is one call of a C function (`cpu`), if it could be compiled; only a short
convolution runs in PyTorch, in place on the projections.

Shapes: H heads, D head dimension, C width of the block's input.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import FEATURES, Projections, RecurrentKernel
from ..masks import CAUSAL
from ..mechanism import Mechanism
from ..ops import cpu
from ..ops.scan import IDENTITY, Map, scan
from ..ops.unit import unit
from ..recurrent.base import SMALLEST
from .step import Columns, Step


class RecurrentStep(Step):
    """The step of a recurrence."""

    @staticmethod
    def fits(kernel: RecurrentKernel, projections: Projections) -> bool:
        return projections.q.weight.dtype == torch.float32 and (projections.k is not None or kernel.convolution is None)

    def __init__(self, mechanism: Mechanism, projections: Projections, kernel: RecurrentKernel) -> None:
        super().__init__(mechanism, projections)
        self.kernel = kernel
        self.rates = kernel.rates.detach().float().contiguous()
        self.decays = bool(self.rates.any())
        known = kernel.features in ("plain", "direction")
        self.reads_prompts = known and kernel.convolution is None and not kernel.floor
        self.places = {"gate": 0, "strength": 0, "output": 0}
        if self.self_attention:
            self._place("gate", *(kernel.gate or (None,)))
            self._place("strength", kernel.strength)
        self._place("output", kernel.output)

    def _place(self, name: str, weight: Tensor | None, bias: Tensor | None = None) -> None:
        """Append these logits to what is projected, and save their first column in `places`."""
        if weight is not None:
            self.places[name] = self.weight.shape[1]
            self.also_project(weight.detach(), weight.new_zeros(len(weight)) if bias is None else bias.detach())

    def read_prompt(self, columns: Columns, first: Tensor | None) -> tuple[Tensor, Tensor]:
        kernel, directions, scale = self.kernel, self.kernel.features == "direction", self.dim**-0.5
        q, k, v = columns(0, self.key), columns(self.key, self.value), columns(self.value, self.end)

        def logits(name: str, count: int) -> Tensor | None:
            at = self.places[name]
            return columns(at, at + count) if at else None

        gate = logits("gate", 0 if kernel.gate is None else len(kernel.gate[0]))
        strength, output = logits("strength", self.heads), logits("output", len(self.out_weight))
        decay = self.rates.view(-1, 1, 1) * (-1 if gate is None else F.logsigmoid(-gate))
        out, last = scan(
            q if directions else q * scale,
            *(k, v, CAUSAL, Map("direction", query_scale=scale) if directions else IDENTITY),
            decay=decay.expand(*k.shape[:3], -1) if self.decays else None,
            strength=None if strength is None else kernel.most * strength.sigmoid(),
            first=first,
        )
        out = unit(out, 1 / out.shape[3], SMALLEST)
        if output is not None:
            out = (F.silu(output) if kernel.swish else output.sigmoid()) * out
        return out, last

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        step, kv = cpu.recurrent_step(), state.kv
        if step is None or not self._kernel_fits(kv):
            return super().attend(projected, x, state, position, lengths)
        sizes = self.sizes_of((len(projected), *kv.shape), self._sizes)
        if self.kernel.convolution is not None:
            projected[:, : self.end] = self.kernel.convolution(projected[:, : self.end], state.tail)
        out = projected.new_empty(len(projected), self.heads * sizes.values)
        step(
            ctypes.byref(sizes),
            *(projected.data_ptr(), projected.stride(0)),
            *(tensor.data_ptr() for tensor in (self.rates, kv, out)),
        )
        return out

    def _kernel_fits(self, kv: Tensor) -> bool:
        return kv.dtype == torch.float32 and kv.is_contiguous() and max(kv.shape[2:]) <= cpu.MAX_DIM

    def _sizes(self, batch: int, states: int, heads: int, dim: int, values: int) -> cpu.RecurrentSizes:
        kernel = self.kernel
        return cpu.RecurrentSizes(
            rows=batch,
            heads=heads,
            dim=dim,
            values=values,
            shared=batch // states,
            update=self.self_attention,
            features=FEATURES.index(kernel.features),
            gates=0 if kernel.gate is None else len(kernel.gate[0]) // heads,
            swish=kernel.swish,
            scale=1.0 if kernel.features == "forgotten" else dim**-0.5,
            floor=kernel.floor,
            most=kernel.most,
            **self.places,
        )
