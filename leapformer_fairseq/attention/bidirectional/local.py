"""Local attention: blocks that see themselves alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..options import Option
from ..registry import register
from .chosen import Chosen, ChosenKeys

SIZE = Option("local_block_size", 50, "local: tokens of a block", least=1)


@register("local", SIZE)
class Local(ChosenKeys):
    """Softmax within blocks of tokens: the baseline of Long Range Arena (Tay et al., 2021, arXiv:2011.04006)."""

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size = self.chosen.local_block_size

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        blocks = torch.arange(-(-count // self.size), device=lengths.device)
        units = blocks[None, None, :, None]
        return Chosen(units, torch.ones_like(units, dtype=torch.bool).unsqueeze(-2), self.size)
