"""The delta rule: a value replaces what its key read from the state, instead of being added to it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import RecurrentKernel
from ..layers import by_heads, projected
from ..linear.base import still_described
from ..mechanism import Inputs
from ..ops.recurrent import Written
from ..ops.scan import Map
from ..ops.unit import unit
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .convolution import SHORT_CONV, ConvolvedMechanism
from .gates import GATE_INIT, Gate
from .normed import OUTPUT_GATE

NEGATIVE = Option(
    "delta_negative",
    False,
    "delta rule: strengths up to 2, so that what a key read before may change its sign (tracks states, as parity)",
)
SHORTEST = 1e-6  # queries and keys that are much shorter are not scaled to length one


class DeltaRule(ConvolvedMechanism):
    """u_s = b_s (v_s - k_s S), b_s = sigmoid(W x_s); keys are silu(k) scaled to length one, queries silu(q) likewise.

    If there is a short convolution, its SiLU takes the place of this one. Since keys have length one and strengths are
    at most 2, the state cannot grow without bound.
    """

    replaces = True
    block_queries = 32

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.strength = nn.Linear(self.input_dim, num_heads, bias=False)

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return self._direction(q, self.head_dim)

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        return Written(self._direction(k), v, self.log_decay(k, tokens), self.strengths(k, tokens))

    def strengths(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        strength = by_heads(projected(self.strength, tokens.required_inputs(k.dtype)), self.num_heads).sigmoid()
        return 2 * strength if self.chosen.delta_negative else strength

    def scan_map(self, x: Inputs) -> Map | None:
        described = still_described(type(self), "strengths", "queries", "written", "_direction")
        return Map("direction", query_scale=self.head_dim**-0.5) if described and self.convolution is None else None

    def recurrence(self) -> RecurrentKernel:
        weight = self.strength.weight
        most = 2.0 if self.chosen.delta_negative else 1.0
        features: Literal["direction", "unit"] = "direction" if self.convolution is None else "unit"
        return RecurrentKernel(features, weight.new_zeros(self.num_heads), strength=weight, most=most)

    def _direction(self, x: Tensor, share: int = 1) -> Tensor:
        """x, after SiLU unless a convolution has applied it, scaled to length 1 / sqrt(share)."""
        return unit(F.silu(x) if self.convolution is None else x, share, share * SHORTEST**2)


@register("delta", OUTPUT_GATE, NEGATIVE, SHORT_CONV)
class Delta(DeltaRule):
    """DeltaNet: S_s = (I - b_s k_s k_s^T) S_(s-1) + b_s k_s v_s^T.

    Schlag et al., 2021, arXiv:2102.11174, equation 24. Features, norm and block-parallel training follow Yang et al.,
    2024, arXiv:2406.06484, sections 3 and 4; `--short-conv 4` adds their short convolutions.
    """

    published_gate = "none"


def softplus_gate(input_dim: int, num_heads: int, count: int, chosen: str, rank: int | None = None) -> Gate:
    """The gate of Mamba-2, Gated DeltaNet and KDA for log-decays -e^a softplus(.); at first softplus(.) is dt.

    dt is drawn log-uniformly from [0.001, 0.1] if `chosen` is "published", otherwise from [0.0001, 0.01], which gives
    half-lives of 70 to 7,000 tokens.
    """
    low, high = (1e-3, 0.1) if chosen == "published" else (1e-4, 1e-2)
    dt = torch.empty(count).uniform_(math.log(low), math.log(high)).exp()
    return Gate(input_dim, num_heads, dt.expm1().log(), rank)


def log_rates(num_heads: int, chosen: str, low: float) -> Tensor:
    """a of -e^a softplus(.), (H, 1, 1): log of a uniform draw from [low, 16] if `chosen` is "published", else 0."""
    rates = torch.empty(num_heads, 1, 1).uniform_(low, 16).clamp_min(1e-4) if chosen == "published" else None
    return torch.zeros(num_heads, 1, 1) if rates is None else rates.log()


@register("gated-delta", OUTPUT_GATE, NEGATIVE, GATE_INIT, SHORT_CONV)
class GatedDelta(DeltaRule):
    """Gated DeltaNet: S_s = e^{g_s} (I - b_s k_s k_s^T) S_(s-1) + b_s k_s v_s^T, g_s = -e^a softplus(W x_s + t).

    One gate per head. Yang et al., 2024, arXiv:2412.06464, equation 10 and section 3.4; `--short-conv 4` adds their
    short convolutions.
    """

    #: whether each feature has a gate, of low rank, or each head
    by_feature: ClassVar[bool] = False
    #: the lower bound of the published initial rates e^a
    least_rate: ClassVar[float] = 0.0

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        chosen, count = self.chosen.gate_init, num_heads * (head_dim if self.by_feature else 1)
        self.gate = softplus_gate(self.input_dim, num_heads, count, chosen, head_dim if self.by_feature else None)
        self.log_rate = nn.Parameter(log_rates(num_heads, chosen, self.least_rate))

    def log_decay(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        # log sigmoid(-x) is -softplus(x); PyTorch 2.13 cannot trace the gradient of a transposed softplus (aot_eager).
        return self.log_rate.to(k.dtype).exp() * F.logsigmoid(-self.gate(k, tokens))

    def recurrence(self) -> RecurrentKernel:
        return replace(super().recurrence(), rates=self.log_rate.exp().flatten(), gate=self.gate.affine())


@register("kda", OUTPUT_GATE, NEGATIVE, GATE_INIT, SHORT_CONV)
class KDA(GatedDelta):
    """KDA: S_s = (I - b_s k_s k_s^T) diag(e^{g_s}) S_(s-1) + b_s k_s v_s^T, g_s = -e^a softplus(W2 W1 x_s + t).

    Kimi Team, 2025, arXiv:2510.26692, section 3; `--short-conv 4` adds their short convolutions. Here the output gate
    has full rank.
    """

    published_gate = "sigmoid"
    by_feature = True
    least_rate = 1.0
