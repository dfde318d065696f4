"""Random feature attention that forgets."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..capabilities import Capabilities
from ..linear.rfa import FEATURES, FLOOR, RFA
from ..ops.recurrent import Written
from ..registry import register
from ..tokens import TokenInfo
from .base import RecurrentMechanism
from .gates import Gate

OPEN = 3.0  # of a gate's logit at first: half of what was read is forgotten after 14 tokens


@register("rfa-gate", FEATURES, FLOOR)
class GatedRFA(RecurrentMechanism, RFA):
    """RFA-Gate: S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, and the normalizer alike, g_t = sigmoid(w . x_t + b).

    A gate for each head, of the block's input x_t. Peng et al., 2021, arXiv:2103.02143, section 3.2 and equation 7.
    """

    capabilities = Capabilities(normalized=False, needs_inputs=True)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.gate = Gate(self.input_dim, num_heads, torch.full((num_heads,), OPEN))

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return self.map_queries(q, tokens).expanded()

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        gate = self.gate(k, tokens)
        return Written(self.map_keys(k, tokens).expanded() * torch.sigmoid(-gate), v, F.logsigmoid(gate))
