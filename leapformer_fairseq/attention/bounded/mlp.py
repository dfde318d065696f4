"""ABC with a learned control: a linear layer computes from each token how much of it is written into each slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..capabilities import Capabilities
from ..kernels import SlotKernel
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import EMPTY_SLOTS, SLOTS
from .sums import UNTIED, SlotSums

# The control's logits are clamped to plus and minus this. Sums of exp(32) or exp(-32) over any practical number of
# tokens are within the range of float32, so no running maximum is needed.
LOGIT_BOUND = 32.0
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"exp": torch.exp, "relu": F.relu, "sigmoid": torch.sigmoid}
# Lower bounds of the divisor, a slot's sum of the control. exp and sigmoid of a clamped logit exceed 1e-14; ReLU can
# be 0.
_FLOORS = {"exp": 1e-15, "relu": 1e-6, "sigmoid": 1e-15}


@register(
    "abc-mlp",
    SLOTS,
    EMPTY_SLOTS,
    UNTIED,
    Option(
        "abc_activation",
        "exp",
        "abc-mlp: function of the control's logits; relu can leave slots empty",
        ("exp", "relu", "sigmoid"),
    ),
)
class MLP(SlotSums):
    """ABC-MLP: a learned control alpha_i = exp(W x_i), or relu or sigmoid, and phi_i = alpha_i / sum_j alpha_j.

    x_i is the block's input (in cross-attention the encoder's output). W (H n, C) has n rows for each head and no bias;
    all layers of a block share it unless `abc_untied`. With exp, slot j is a softmax attention whose query, W_j, does
    not depend on the text. (Peng et al., 2022, arXiv:2110.02488, section 4; causal sums: appendix B.1.)
    """

    capabilities = Capabilities(prefixes=False, needs_inputs=True)
    normalized = True

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        abc_activation: str = self.chosen.abc_activation
        self.activation, self.floor = _ACTIVATIONS[abc_activation], _FLOORS[abc_activation]
        self.gaps = abc_activation == "relu"
        self.tied = () if self.chosen.abc_untied else ("control_weight",)
        self.control_weight = nn.Parameter(torch.empty(num_heads * self.slots, self.input_dim))
        nn.init.xavier_uniform_(self.control_weight, gain=2**-0.5)

    def control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        x = tokens.required_inputs(k.dtype)
        logits = F.linear(x, self.control_weight.to(x.dtype))
        return self.alpha(logits).unflatten(-1, (self.num_heads, self.slots)).transpose(1, 2)

    def alpha(self, logits: Tensor) -> Tensor:
        """The control, given its logits W x."""
        return self.activation(logits.clamp(-LOGIT_BOUND, LOGIT_BOUND))

    def kernel(self) -> SlotKernel:
        return SlotKernel(self.reading(), weight=self.control_weight, alpha=self.alpha)
