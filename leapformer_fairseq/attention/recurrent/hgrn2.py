"""HGRN2: what is forgotten of a feature is what is written to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..decoding.recurrent import KernelRecurrence
from ..ops.recurrent import Written
from ..registry import Option, register
from ..tokens import TokenInfo
from .gates import GATE_INIT, Gate
from .normed import OUTPUT_GATE, NormedMechanism

FLOOR = Option(
    "hgrn_floor", 0.0, "hgrn2: at least so much of a feature is kept; the paper has more in higher layers, from 0 to 1"
)
OPEN = 3.0  # logit of an open gate, a half-life of 14 tokens


@register("hgrn2", OUTPUT_GATE, GATE_INIT, FLOOR)
class HGRN2(NormedMechanism):
    """HGRN2: S_s = diag(f_s) S_(s-1) + (1 - f_s) v_s^T, f_s = l + (1 - l) sigmoid(W x_s + b), read by silu(q).

    The state is a weighted mean of values. Keys are not used. Qin et al., 2024, arXiv:2404.07904, equations 6 and 7.
    """

    capabilities = replace(NormedMechanism.capabilities, unused_projections=("k_proj",))
    published_gate: ClassVar[str] = "none"
    block_queries = 32

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        begin = torch.full((num_heads * head_dim,), OPEN if self.chosen.gate_init == "open" else 0.0)
        self.gate = Gate(self.input_dim, num_heads, begin)

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return F.silu(q)

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        floor = self.chosen.hgrn_floor
        # the logarithm of l + (1 - l) sigmoid(z), which for l = 0 may be far below zero
        z = self.gate(k, tokens)
        decay = F.logsigmoid(z) if not floor else torch.log(floor + (1 - floor) * z.sigmoid())
        return Written((1 - floor) * torch.sigmoid(-z), v, decay)

    def kernel_recurrence(self) -> KernelRecurrence:
        weight, bias = self.gate.affine()
        rates = bias.new_ones(self.num_heads)
        return KernelRecurrence("forgotten", rates, (-weight, -bias), floor=self.chosen.hgrn_floor)
