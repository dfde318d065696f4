"""Linear attention with a forget gate: a weighted mean still, in which tokens age."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..capabilities import DECODER_CROSS, Capabilities
from ..decoding.linear import LinearStep
from ..decoding.step import Projections
from ..linear.base import NORMALIZER_FLOOR, LinearMechanism
from ..linear.leap import LeaP
from ..linear.relu import ReLULinear
from ..ops.recurrent import Written
from ..registry import Option, register
from ..tokens import TokenInfo
from .base import RecurrentMechanism
from .gates import Gate, logit, spread_half_lives

GATE_ORDER = Option(
    "gate_order",
    "importance",
    "gated-*, in cross-attention: gates weigh each source token alone (importance), or what came before it in the "
    "source fades (recency), which fits wait-k",
    ("importance", "recency"),
)
SHORTEST_LIFE, LONGEST_LIFE = 11.0, 700.0  # half-lives in tokens at first, from the first head to the last
WIDE_OPEN = 9.0  # logit of gates over a trained mechanism, a half-life of 5,600 tokens
IMPORTANT = 4.0  # logit of the importance of a source token at first


class ForgetGate(RecurrentMechanism, LinearMechanism):
    """A linear mechanism whose keys decay by e^{g_s}, g_s = logsigmoid(W x_s + b), a number for each head.

    The normalizer decays, too, so a query reads a weighted mean. To be written before the class of the feature map.
    Where queries read a source that has no end yet, or all of it, the order of reading may say nothing: with
    `--gate-order importance` the gate multiplies a key's own features.
    """

    capabilities = Capabilities(needs_inputs=True)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.weighs = self.block == DECODER_CROSS and self.chosen.gate_order == "importance"
        begin = logit(spread_half_lives(num_heads, SHORTEST_LIFE, LONGEST_LIFE))
        self.gate = Gate(self.input_dim, num_heads, begin.fill_(IMPORTANT) if self.weighs else begin, quiet=True)

    def continued(self) -> dict[str, Tensor]:
        """Gates that are open: a trained `leap` goes on as `gated-leap`."""
        return {
            "gate.outer.weight": torch.zeros_like(self.gate.outer.weight),
            "gate.outer.bias": torch.zeros_like(self.gate.outer.bias),
            "gate.begin": torch.full_like(self.gate.begin, WIDE_OPEN),
        }

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return self.map_queries(q, tokens).expanded()

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        x, gate = self.map_keys(k, tokens).expanded(), self.gate(k, tokens)
        return Written(x * gate.sigmoid(), v) if self.weighs else Written(x, v, F.logsigmoid(gate))

    def step(self, projections: Projections) -> LinearStep:
        return LinearStep(self, projections, self.gate.affine())


@register("gated-relu", NORMALIZER_FLOOR, GATE_ORDER)
class GatedReLU(ForgetGate, ReLULinear):
    """ReLU linear attention with a forget gate for each head."""


@register("gated-leap", NORMALIZER_FLOOR, GATE_ORDER, *LeaP.options[1:])
class GatedLeaP(ForgetGate, LeaP):
    """LeaPformer with a forget gate for each head: content, learned proportion and age in one weight."""
