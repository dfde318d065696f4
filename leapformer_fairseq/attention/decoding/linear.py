"""The decoding step of linear mechanisms: the state is K^T [V, 1], `state.kv` (B, H, F, E + 1).

One more channel per head, with weight 0 and bias 1, makes the projected values [v, 1]. Everything after the projections
is one call of a C function (`cpu`), if it could be compiled.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import LinearKernel, Projections
from ..masks import CAUSAL
from ..mechanism import Mechanism
from ..ops import cpu
from ..ops.scan import Map, scan
from .step import Columns, Step


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
        networks = kernel.networks[: 1 + self.self_attention]
        self.packed = [network.packed().detach().float().contiguous() for network in networks]
        self.hidden = networks[0].hidden if networks else 0
        by_position = kernel.proportion is not None or kernel.rotation is not None
        self.reads_prompts = not by_position and bool(self.hidden or not networks)

    def read_prompt(self, columns: Columns, first: Tensor | None) -> tuple[Tensor, Tensor]:
        kernel = self.kernel
        q, k, v = columns(0, self.key), columns(self.key, self.value), columns(self.value, self.end)[..., :-1]
        decay = F.logsigmoid(columns(self.gate, self.gate + self.heads)) if self.gate else None
        networks = (self.packed[0], self.packed[1]) if self.packed else None
        features = Map(kernel.activation, networks=networks, hidden=self.hidden, raw=kernel.raw)
        return scan(q, k, v, CAUSAL, features, floor=kernel.floor, decay=decay, first=first)

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        step, kv = cpu.step(), state.kv
        if step is None or not self._kernel_fits(kv):
            return super().attend(projected, x, state, position, lengths)
        sizes = self.sizes_of((len(projected), *kv.shape), self._sizes)
        networks = [packed.data_ptr() for packed in self.packed] + [None, None]
        proportions, rotation = None, None
        if self.kernel.proportion is not None:
            here = torch.tensor([[position]], device=None if lengths is None else lengths.device)
            proportions = self.kernel.proportion(here, lengths).float().flatten().expand(len(projected)).contiguous()
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
        packed = self.packed[0] if self.packed else None  # one row per head, or one row for all
        return cpu.Sizes(
            rows=batch,
            heads=heads,
            dim=self.dim,
            values=values,
            shared=batch // states,
            update=self.self_attention,
            activation=self.kernel.activation == "elu",
            reweighted=features == 2 * self.dim,
            hidden=self.hidden,
            network_stride=packed.shape[1] if packed is not None and len(packed) > 1 else 0,
            raw=self.kernel.raw,
            gate=self.gate,
            floor=self.kernel.floor,
        )
