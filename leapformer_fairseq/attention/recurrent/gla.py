"""Gated linear attention: a gate for each feature."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.recurrent import Written
from ..registry import register
from ..tokens import TokenInfo
from .gates import GATE_INIT, Gate
from .normed import OUTPUT_GATE, NormedMechanism
from .simple_gla import OPEN, SLOWER

RANK = 16


@register("gla", OUTPUT_GATE, GATE_INIT)
class GLA(NormedMechanism):
    """GLA: S_s = diag(e^{g_s}) S_(s-1) + k_s v_s^T, g_s = logsigmoid(W2 W1 x_s + b) / 16, W1 of rank 16.

    Yang et al., 2023, arXiv:2312.06635, equation 3 and section 4.4, which halves the width of queries and keys; here
    they are as wide as values.
    """

    block_queries = 32

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        begin = torch.full((num_heads * head_dim,), OPEN if self.chosen.gate_init == "open" else 0.0)
        self.gate = Gate(self.input_dim, num_heads, begin, rank=RANK)

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        return Written(k, v, F.logsigmoid(self.gate(k, tokens)) / SLOWER)
