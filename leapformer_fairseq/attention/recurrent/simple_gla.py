"""Linear attention with one gate for each head."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..decoding.recurrent import KernelRecurrence
from ..ops.recurrent import Written
from ..registry import register
from ..tokens import TokenInfo
from .convolution import SHORT_CONV, ConvolvedMechanism
from .gates import GATE_INIT, Gate
from .normed import OUTPUT_GATE

SLOWER = 16  # the logarithm of a gate is divided by this
RANK = 16  # of gates for each feature
OPEN = 4.0  # logit of an open gate, a half-life of 600 tokens


@register("simple-gla", OUTPUT_GATE, GATE_INIT, SHORT_CONV)
class SimpleGLA(ConvolvedMechanism):
    """S_s = e^{g_s} S_(s-1) + k_s v_s^T, g_s = logsigmoid(W x_s + b) / 16: the recurrence of Mamba-2.

    Dao and Gu, 2024, arXiv:2405.21060, equation 16 with scalar decays; the gate as in Yang et al., 2023,
    arXiv:2312.06635, section 4.4. As published it begins with a half-life of 16 tokens, and Mamba-2 has a short
    convolution, here without a bias.
    """

    #: a gate for each feature, of low rank
    by_feature: ClassVar[bool] = False

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        count = num_heads * (head_dim if self.by_feature else 1)
        begin = torch.full((count,), OPEN if self.chosen.gate_init == "open" else 0.0)
        self.gate = Gate(self.input_dim, num_heads, begin, RANK if self.by_feature else None)

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        return Written(k, v, F.logsigmoid(self.gate(k, tokens)) / SLOWER)

    def kernel_recurrence(self) -> KernelRecurrence:
        weight, bias = self.gate.affine()
        return KernelRecurrence("plain", bias.new_full((self.num_heads,), 1 / SLOWER), (-weight, -bias))
