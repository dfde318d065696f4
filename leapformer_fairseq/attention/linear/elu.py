"""Linear attention with the elu + 1 feature map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import LinearKernel
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1 > 0: x + 1 above 0, exp(x) below.

    exp(x) is computed directly: in float32, (exp(x) - 1) + 1 is 0 from about -18 downwards.
    """
    return _ELU1.apply(x) if torch.is_grad_enabled() else _ELU1.forward(x)


class _ELU1(torch.autograd.Function):
    """The derivative is min(1, output), so only the output is saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp_max(0).exp_().add_(x.relu())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return out.clamp_max(1) * grad


@register("elu", NORMALIZER_FLOOR)
class ELULinear(LinearMechanism):
    """ELU linear attention: phi(x) = elu(x) + 1 > 0 (Katharopoulos et al., 2020, arXiv:2006.16236, eq. 7)."""

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(elu1(x))

    map_keys = map_queries

    def feature_map(self) -> LinearKernel:
        return LinearKernel("elu", self.normalizer_floor)
