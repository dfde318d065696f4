"""A decay that depends on the data."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import (
    NORMALIZER_FLOOR,
    Averaging,
    Capabilities,
    Features,
    Gate,
    TokenInfo,
    Written,
    register,
)


@register("toy-gate", NORMALIZER_FLOOR)
class Gated(Averaging):
    """S_t = g_t S_(t-1) + softplus(k_t) [v_t, 1]^T with g_t = sigmoid(W x_t + b + 3), one gate per head."""

    capabilities = Capabilities(needs_inputs=True)  # x_t, the block's input before the projections

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.gate = Gate(self.input_dim, num_heads, torch.full((num_heads,), 3.0))  # at first a half-life of 14 tokens

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(F.softplus(x))

    map_keys = map_queries

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        log_decay = F.logsigmoid(self.gate(k, tokens))  # (B, H, S, 1)
        return Written(self.map_keys(k, tokens).x, v, log_decay)
