"""The decoding step of linear mechanisms: the state is K^T [V, 1], `state.kv` (B, H, F, E + 1).

One more channel per head, with weight 0 and bias 1, makes the projected values [v, 1]. Everything after the projections
is one call of a C function (`cpu`), if it could be compiled.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels import LinearKernel, Network, Projections
from ..mechanism import Mechanism
from . import cpu
from .step import Step


class LinearStep(Step):
    """The step of a feature map, with or without a forget gate."""

    @staticmethod
    def fits(kernel: LinearKernel, projections: Projections) -> bool:
        # The fused product would round the logits of gates to half precision.
        return kernel.gate is None or projections.q.weight.dtype == torch.float32

    def __init__(self, mechanism: Mechanism, projections: Projections, kernel: LinearKernel) -> None:
        super().__init__(mechanism, projections, ones=True)
        self.kernel = kernel
        self.gate = 0  # the first column of the gates' logits; 0: no gates
        if kernel.gate is not None and self.self_attention:
            self.gate = self.end
            self.also_project(*(part.detach() for part in kernel.gate))
        self.packed = [_packed(network) for network in kernel.networks[: 1 + self.self_attention]]

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        step, kv = cpu.step(), state.kv
        if step is None or not self._kernel_fits(kv):
            return super().attend(projected, x, state, position, lengths)
        sizes = self.sizes_of((len(projected), *kv.shape), self._sizes)
        networks = [packed.numbers.data_ptr() for packed in self.packed] + [None, None]
        proportions, rotation = None, None
        if self.kernel.proportion is not None:
            proportions = self.kernel.proportion(position, lengths).float().expand(len(projected)).contiguous()
        if self.kernel.rotation is not None:
            rotation = self.kernel.rotation(position).float()
            sizes.pairs = len(rotation)
        projected = projected.float()
        out = projected.new_empty(len(projected), self.heads * (sizes.values - 1))
        step(
            ctypes.byref(sizes),
            *(projected.data_ptr(), projected.stride(0)),
            kv.data_ptr(),
            *networks[:2],
            *(None if table is None else table.data_ptr() for table in (proportions, rotation)),
            out.data_ptr(),
        )
        return out

    def _kernel_fits(self, kv: Tensor) -> bool:
        return kv.dtype == torch.float32 and kv.is_contiguous() and max(self.dim, kv.shape[-1]) <= cpu.MAX_DIM

    def _sizes(self, batch: int, states: int, heads: int, features: int, values: int) -> cpu.Sizes:
        packed = self.packed[0] if self.packed else None
        return cpu.Sizes(
            rows=batch,
            heads=heads,
            dim=self.dim,
            values=values,
            shared=batch // states,
            update=self.self_attention,
            activation=self.kernel.activation == "elu",
            reweighted=features == 2 * self.dim,
            hidden=packed.hidden if packed else 0,
            network_stride=packed.stride if packed else 0,
            raw=self.kernel.raw,
            gate=self.gate,
            floor=self.kernel.floor,
        )


@dataclass(frozen=True)
class _Packed:
    """The parameters of a proportion network in the layout of linear_step.c: one row per head, or one row for all."""

    numbers: Tensor
    hidden: int

    @property
    def stride(self) -> int:
        return self.numbers.shape[1] if len(self.numbers) > 1 else 0


def _packed(network: Network) -> _Packed:
    # Weights (1 or heads, in, out) and biases (1 or heads, 1, out), layer by layer.
    layers = [part.detach().float() for pair in zip(network.weights, network.biases, strict=True) for part in pair]
    numbers = [part.reshape(1 if network.shared else len(part), -1) for part in layers]
    hidden = network.weights[0].shape[-1] if len(network.weights) > 1 else 0
    return _Packed(torch.cat(numbers, 1).contiguous().cpu(), hidden)
