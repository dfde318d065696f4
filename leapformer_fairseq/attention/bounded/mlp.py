"""ABC with a learned control: a layer decides from each token what it writes where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..capabilities import Capabilities
from ..kernels import SlotKernel
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import EMPTY_SLOTS, SLOTS
from .sums import UNTIED, SlotSums

# The control's logits are kept within plus and minus this: exp(32) and its inverse, times any number of tokens that
# there are, are within float32, so that sums need no running maximum.
LOGIT_BOUND = 32.0
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"exp": torch.exp, "relu": F.relu, "sigmoid": torch.sigmoid}
# The least that a slot's sum is divided by. exp and sigmoid of a bounded logit are more than 1e-14, ReLU may be 0.
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

    x_i is the block's input (cross-attention: the encoder's output), W (H n, C) is separate for every head and has no
    bias, and all layers of a block share it unless `abc_untied`. Slot j is an attention whose query W_j does not
    depend on the text. (Peng et al., 2022, arXiv:2110.02488, section 4; causal sums: appendix B.1.)
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
        x = tokens.inputs_or(k)
        if x.shape[-1] != self.input_dim:
            raise LeapformerError(
                f"abc-mlp was built for inputs {self.input_dim} wide and got {x.shape[-1]}; give their width as "
                "input_dim when it is built, and the inputs themselves in TokenInfo.inputs"
            )
        logits = F.linear(x, self.control_weight.to(x.dtype))
        return self.alpha(logits).unflatten(-1, (self.num_heads, self.slots)).transpose(1, 2)

    def alpha(self, logits: Tensor) -> Tensor:
        """The control of its logits W x."""
        return self.activation(logits.clamp(-LOGIT_BOUND, LOGIT_BOUND))

    def kernel(self) -> SlotKernel:
        return SlotKernel(self.reading(), weight=self.control_weight, alpha=self.alpha)
