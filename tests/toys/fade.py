"""A delta rule with a decay for each feature."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import Capabilities, Gate, RecurrentMechanism, TokenInfo, Written, register


@register("toy-fade")
class Fade(RecurrentMechanism):
    """S_t = (I - b_t k_t k_t^T) diag(g_t) S_(t-1) + b_t k_t v_t^T with |k_t| = 1 and gates b_t and g_t; unit RMS."""

    averages = False
    replaces = True
    capabilities = Capabilities(normalized=False, needs_inputs=True)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.decay = Gate(self.input_dim, num_heads, torch.full((num_heads * head_dim,), 4.0))
        self.strength = Gate(self.input_dim, num_heads, torch.zeros(num_heads))

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return F.normalize(q, dim=-1, eps=1e-6)

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        log_decay, strength = F.logsigmoid(self.decay(k, tokens)), self.strength(k, tokens).sigmoid()
        return Written(F.normalize(k, dim=-1, eps=1e-6), v, log_decay, strength)
