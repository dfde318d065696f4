"""Recurrences that add values to a decaying state. Decays are fixed, or gates computed from the block's input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import RecurrentKernel
from ..ops.recurrent import Written
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .convolution import SHORT_CONV, ConvolvedMechanism
from .gates import GATE_INIT, Gate
from .normed import OUTPUT_GATE, NormedMechanism

FLOOR = Option(
    "hgrn_floor", 0.0, "hgrn2: at least so much of a feature is kept; the paper has more in higher layers, from 0 to 1"
)
HGRN_OPEN = 3.0  # initial logit of open gates, a half-life of 14 tokens
GATE_DIVISOR = 16  # log-sigmoids of gates are divided by this
RANK = 16  # of W in gates per feature
OPEN = 4.0  # initial logit of open gates, a half-life of 600 tokens


@register("retention", OUTPUT_GATE)
class Retention(NormedMechanism):
    """RetNet's retention: S_s = (1 - 2^(-5-h)) S_(s-1) + k_s v_s^T in head h = 0, 1, ..

    Sun et al., 2023, arXiv:2307.08621, equations 6 to 8, but without the rotation: the embeddings encode positions.
    """

    rates: Tensor

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        rates = torch.log1p(-torch.exp2(-5.0 - torch.arange(num_heads)))
        self.register_buffer("rates", rates.view(num_heads, 1, 1))

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        return Written(k, v, self.rates.to(k.dtype).expand(*k.shape[:3], 1))

    def recurrence(self) -> RecurrentKernel:
        return RecurrentKernel("plain", -self.rates.flatten())


@register("simple-gla", OUTPUT_GATE, GATE_INIT, SHORT_CONV)
class SimpleGLA(ConvolvedMechanism):
    """S_s = e^{g_s} S_(s-1) + k_s v_s^T, g_s = logsigmoid(W x_s + b) / 16: the recurrence of Mamba-2.

    Dao and Gu, 2024, arXiv:2405.21060, equation 16 with scalar decays; the gate is that of Yang et al., 2023,
    arXiv:2312.06635, section 4.4. With `--gate-init published` half-lives are 16 tokens at first. `--short-conv` adds
    Mamba-2's short convolution, but without its bias.
    """

    #: whether each feature has a gate, of low rank, or each head
    by_feature: ClassVar[bool] = False

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        count = num_heads * (head_dim if self.by_feature else 1)
        begin = torch.full((count,), OPEN if self.chosen.gate_init == "open" else 0.0)
        self.gate = Gate(self.input_dim, num_heads, begin, RANK if self.by_feature else None)

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        return Written(k, v, F.logsigmoid(self.gate(k, tokens)) / GATE_DIVISOR)

    def recurrence(self) -> RecurrentKernel:
        weight, bias = self.gate.affine()
        return RecurrentKernel("plain", bias.new_full((self.num_heads,), 1 / GATE_DIVISOR), (-weight, -bias))


@register("gla", OUTPUT_GATE, GATE_INIT)
class GLA(SimpleGLA):
    """GLA: S_s = diag(e^{g_s}) S_(s-1) + k_s v_s^T, g_s = logsigmoid(W2 W1 x_s + b) / 16, W1 of rank 16.

    Yang et al., 2023, arXiv:2312.06635, equation 3 and section 4.4. There queries and keys are half as wide as values,
    here equally wide. As in the paper, there is no short convolution.
    """

    by_feature = True
    block_queries = 32


@register("hgrn2", OUTPUT_GATE, GATE_INIT, FLOOR)
class HGRN2(NormedMechanism):
    """HGRN2: S_s = diag(f_s) S_(s-1) + (1 - f_s) v_s^T, f_s = l + (1 - l) sigmoid(W x_s + b), read by silu(q).

    The state is a weighted mean of values. The key projection is not used: 1 - f_s takes the place of keys. Qin et al.,
    2024, arXiv:2404.07904, equations 6 and 7.
    """

    capabilities = replace(NormedMechanism.capabilities, unused_projections=("k_proj",))
    published_gate: ClassVar[str] = "none"
    block_queries = 32

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        begin = torch.full((num_heads * head_dim,), HGRN_OPEN if self.chosen.gate_init == "open" else 0.0)
        self.gate = Gate(self.input_dim, num_heads, begin)

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return F.silu(q)

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        floor = self.chosen.hgrn_floor
        # log(l + (1 - l) sigmoid(z)); logsigmoid, since for l = 0 the sigmoid may underflow to 0
        z = self.gate(k, tokens)
        decay = F.logsigmoid(z) if not floor else torch.log(floor + (1 - floor) * z.sigmoid())
        return Written((1 - floor) * torch.sigmoid(-z), v, decay)

    def recurrence(self) -> RecurrentKernel:
        weight, bias = self.gate.affine()
        rates = bias.new_ones(self.num_heads)
        return RecurrentKernel("forgotten", rates, (-weight, -bias), floor=self.chosen.hgrn_floor)
