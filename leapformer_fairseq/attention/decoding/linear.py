"""The decoding step of linear mechanisms: the state is K^T [V, 1], `state.kv` (B, H, F, E + 1).

A channel of zero weight and bias 1 per head makes the projected values [v, 1]. On a CPU all that follows the
projections is one call of C (`ops.cpu`), where it compiles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..linear.proportion import ProportionNetwork
from . import cpu
from .step import Projections, Step

if TYPE_CHECKING:
    from ..linear.base import LinearMechanism


@dataclass(frozen=True)
class KernelMap:
    """How the kernel in decoding/cpu maps a token: an activation, then the cosine reweighting or a rotation, if any.

    Proportions come from a network each for queries and keys, which reads what was activated (with `raw`: what was
    projected), or are numbers, (B or 1,), for a position (from 1) in sequences of known lengths, (B,), or of unknown
    ones. A rotation is the cosine and sine for each leading pair of dimensions, (pairs, 2); the normalizer takes
    features as they were before.
    """

    activation: Literal["relu", "elu"]
    networks: Sequence[ProportionNetwork] = ()
    raw: bool = False
    proportion: Callable[[int, Tensor | None], Tensor] | None = None
    rotation: Callable[[int], Tensor] | None = None


class LinearStep(Step):
    """The step of a linear mechanism."""

    def __init__(
        self, mechanism: LinearMechanism, projections: Projections, gate: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """`gate`: weight (H, C) and bias (H,) of the logits of what is kept of a head's state when a key is written."""
        super().__init__(mechanism, projections, ones=True)
        self.map, self.floor = mechanism.kernel_map(), mechanism.normalizer_floor
        self.gate = 0  # where its logits begin
        if gate is not None and self.self_attention:
            if self.weight.dtype == torch.float32:
                self.gate = self.end
                self.also_project(*(part.detach() for part in gate))
            else:
                self.map = None  # gates are not rounded to half precision
        # The kernel's, on a CPU; elsewhere a copy would wait for the device.
        networks = self.map.networks[: 1 + self.self_attention] if self.map and self.weight.is_cpu else ()
        self.packed = [_packed(network) for network in networks]

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        heads = self._kernel(projected, state.kv, position, lengths)
        return super().attend(projected, x, state, position, lengths) if heads is None else heads

    def _kernel(self, projected: Tensor, kv: Tensor, position: int, lengths: Tensor | None) -> Tensor | None:
        """What the heads read, (B, H * E), by the compiled step; None where that does not serve."""
        if self.map is None or kv.dtype != torch.float32 or not kv.is_cpu or (step := cpu.step()) is None:
            return None
        sizes = self.sizes_of((len(projected), *kv.shape), self._sizes)
        if max(sizes.dim, sizes.values) > cpu.MAX_DIM or not kv.is_contiguous():
            return None
        networks = [packed.numbers.data_ptr() for packed in self.packed] + [None, None]
        proportions, rotation = None, None
        if self.map.proportion is not None:
            proportions = self.map.proportion(position, lengths).float().expand(len(projected)).contiguous()
        if self.map.rotation is not None:
            rotation = self.map.rotation(position).float()
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

    def _sizes(self, batch: int, states: int, heads: int, features: int, values: int) -> cpu.Sizes:
        assert self.map is not None
        packed = self.packed[0] if self.packed else None
        return cpu.Sizes(
            rows=batch,
            heads=heads,
            dim=self.dim,
            values=values,
            shared=batch // states,
            update=self.self_attention,
            activation=self.map.activation == "elu",
            reweighted=features == 2 * self.dim,
            hidden=packed.hidden if packed else 0,
            network_stride=packed.stride if packed else 0,
            raw=self.map.raw,
            gate=self.gate,
            floor=self.floor,
        )


@dataclass(frozen=True)
class _Packed:
    """A proportion network as linear_step.c wants it: the numbers of each head, or one set for all."""

    numbers: Tensor
    hidden: int

    @property
    def stride(self) -> int:
        return self.numbers.shape[1] if len(self.numbers) > 1 else 0


def _packed(network: ProportionNetwork) -> _Packed:
    # (1 or heads, in, out) and (1 or heads, 1, out), layer after layer
    layers = [part.detach().float() for pair in zip(network.weights, network.biases, strict=True) for part in pair]
    numbers = [part.reshape(1 if network.shared else len(part), -1) for part in layers]
    hidden = network.weights[0].shape[-1] if len(network.weights) > 1 else 0
    return _Packed(torch.cat(numbers, 1).contiguous().cpu(), hidden)
