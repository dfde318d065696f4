"""Kimi delta attention: the delta rule with a gate for each feature."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..registry import register
from ..tokens import TokenInfo
from .delta import NEGATIVE, DeltaRule, log_rates, softplus_gate
from .gates import GATE_INIT
from .normed import OUTPUT_GATE


@register("kda", OUTPUT_GATE, NEGATIVE, GATE_INIT)
class KDA(DeltaRule):
    """KDA: S_s = (I - b_s k_s k_s^T) diag(e^{g_s}) S_(s-1) + b_s k_s v_s^T, g_s = -e^a softplus(W2 W1 x_s + t).

    Kimi Team, 2025, arXiv:2510.26692, section 3, without short convolutions; the output gate is of full rank.
    """

    published_gate = "sigmoid"

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        chosen, width = self.chosen.gate_init, head_dim * num_heads
        self.gate = softplus_gate(self.input_dim, num_heads, width, chosen, rank=head_dim)
        self.log_rate = nn.Parameter(log_rates(num_heads, chosen, low=1.0))

    def log_decay(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        return -self.log_rate.to(k.dtype).exp() * F.softplus(self.gate(k, tokens))
