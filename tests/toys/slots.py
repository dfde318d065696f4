"""A control of a bounded memory."""

from typing import Any

import torch
from torch import Tensor, nn

from leapformer_fairseq.attention import EMPTY_SLOTS, SLOTS, SlotSums, TokenInfo, register


@register("toy-slots", SLOTS, EMPTY_SLOTS)
class Assigned(SlotSums):
    """ABC with a soft assignment: token i writes softmax(W k_i) into the slots, and slots are means."""

    normalized = True
    floor = 1e-6  # of a slot that is divided by what was written into it

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.assign = nn.Parameter(torch.randn(head_dim, self.slots) * head_dim**-0.5)

    def control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        return (k @ self.assign.to(k.dtype)).softmax(-1)
