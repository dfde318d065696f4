"""The decoding step of recurrent mechanisms without a normalizer: one product also gives the logits of all gates.

On a CPU, in float32, all that follows it is one call of C (`ops.cpu`), where it compiles.

Shapes: H heads, D head dimension, C width of the block's input.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..tokens import TokenInfo
from . import cpu
from .step import Projections, Step

if TYPE_CHECKING:
    from ..recurrent.convolution import ShortConvolution
    from ..recurrent.normed import NormedMechanism

FEATURES = ("plain", "direction", "forgotten", "unit")  # numbered as in recurrent_step.c


class KernelRecurrence(NamedTuple):
    """What the kernel in decoding/cpu reads with and writes, with log-decays g = -rate softplus(logit).

    features: q and k as they are; their directions after silu; silu(q) and, for k, the share that is forgotten; or
              directions of q and k as they are.
    rates:    (H,).
    gate:     weight (G, C) and bias (G,) of the logits, G being H or H D; None: g = -rate for every token.
    floor:    what is kept is floor + (1 - floor) e^g.
    strength: weight (H, C) of the logits of the delta rule's strengths; None: values are added.
    most:     strengths are most sigmoid(logit).
    """

    features: Literal["plain", "direction", "forgotten", "unit"]
    rates: Tensor
    gate: tuple[Tensor, Tensor] | None = None
    floor: float = 0.0
    strength: Tensor | None = None
    most: float = 1.0


class RecurrentStep(Step):
    """The step of a `NormedMechanism`.

    A short convolution is PyTorch's; where C then serves, it is applied in place to what was projected.
    """

    mechanism: NormedMechanism

    def __init__(
        self, mechanism: NormedMechanism, projections: Projections, convolution: ShortConvolution | None = None
    ) -> None:
        super().__init__(mechanism, projections)
        self.convolution = convolution
        fits = self.weight.is_cpu and self.weight.dtype == torch.float32
        fits = fits and (self.self_attention or convolution is None)
        self.kernel = mechanism.kernel_recurrence() if fits else None
        if self.kernel is None:
            return
        self.rates = self.kernel.rates.detach().float().contiguous()
        self.places = {"gate": 0, "strength": 0, "output": 0}
        if self.self_attention:
            self._place("gate", *(self.kernel.gate or (None,)))
            self._place("strength", self.kernel.strength)
        self._place("output", None if mechanism.output is None else mechanism.output.weight)

    def _place(self, name: str, weight: Tensor | None, bias: Tensor | None = None) -> None:
        """Project these logits, too, and note where they begin."""
        if weight is not None:
            self.places[name] = self.weight.shape[1]
            self.also_project(weight.detach(), weight.new_zeros(len(weight)) if bias is None else bias.detach())

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        step, kv = cpu.recurrent_step(), state.kv
        if step is None or self.kernel is None or not self._kernel_serves(kv):
            return super().attend(projected, x, state, position, lengths)
        sizes = self.sizes_of((len(projected), *kv.shape), self._sizes)
        if self.convolution is not None:
            projected[:, : self.end] = self.convolution.step(projected[:, : self.end], state.tail)
        out = projected.new_empty(len(projected), self.heads * sizes.values)
        step(
            ctypes.byref(sizes),
            *(projected.data_ptr(), projected.stride(0)),
            *(tensor.data_ptr() for tensor in (self.rates, kv, out)),
        )
        return out

    def extend(self, state: Any, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> Tensor:
        if self.convolution is None:
            return super().extend(state, q, k, v, tokens)
        out, written = self.mechanism.scan(state, q, k, v, tokens, tokens)
        vars(state).update(vars(written))
        return out

    def _kernel_serves(self, kv: Tensor) -> bool:
        return kv.dtype == torch.float32 and kv.is_contiguous() and max(kv.shape[2:]) <= cpu.MAX_DIM

    def _sizes(self, batch: int, states: int, heads: int, dim: int, values: int) -> cpu.RecurrentSizes:
        kernel = self.kernel
        assert kernel is not None
        return cpu.RecurrentSizes(
            rows=batch,
            heads=heads,
            dim=dim,
            values=values,
            shared=batch // states,
            update=self.self_attention,
            features=FEATURES.index(kernel.features),
            gates=0 if kernel.gate is None else len(kernel.gate[0]) // heads,
            swish=self.mechanism.activation == "swish",
            scale=1.0 if kernel.features == "forgotten" else dim**-0.5,
            floor=kernel.floor,
            most=kernel.most,
            **self.places,
        )
