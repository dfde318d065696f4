"""BigBird: neighbouring blocks, the first and the last one, and random ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops.random import hashed
from ..options import Option
from ..registry import register
from .chosen import Chosen, ChosenKeys

SIZE = Option("bigbird_block_size", 64, "bigbird: tokens of a block", least=1)
RANDOM = Option(
    "bigbird_random_blocks",
    3,
    "bigbird: random blocks that a block sees beside 3 neighbouring and 2 global",
    least=0,
)
SEED = 1


@register("bigbird", SIZE, RANDOM)
class BigBird(ChosenKeys):
    """Softmax over blocks: itself and its neighbours, the first and the last, which see all, and random ones.

    Zaheer et al., 2020, arXiv:2007.14062, section 2 and appendix D. Each head draws its own blocks; what is drawn does
    not change while training.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size = self.chosen.bigbird_block_size
        self.random = self.chosen.bigbird_random_blocks

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        row = torch.arange(-(-count // self.size), device=lengths.device).view(-1, 1)
        last = ((lengths - 1).clamp_min(0) // self.size).view(-1, 1, 1, 1)
        around = torch.cat([row - 1, row, row + 1], 1)
        random, drawn = self._drawn(row, last)
        parts = (
            (torch.zeros_like(row), row > 1),
            (around, (around >= 0) & (around < len(row))),
            (last, (last - row).abs() > 1),
            (random, drawn),
        )
        blocks, used = (
            torch.cat([part[i].expand(len(last), self.num_heads, len(row), -1) for part in parts], -1) for i in (0, 1)
        )
        ends = torch.cat([torch.zeros_like(last), last], 1).flatten(2)  # (B or 1, 2, 1)
        whole = ends * self.size + torch.arange(self.size, device=row.device)
        once = (whole < lengths.view(-1, 1, 1)) & torch.cat([ends[:, :1] >= 0, ends[:, 1:] > 0], 1)
        whole, once = whole.flatten(1), once.flatten(1)
        return Chosen(blocks.clamp(0, len(row) - 1), used.unsqueeze(-2), self.size, whole.where(once, 0), once)

    def _drawn(self, row: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Random blocks, (B or 1, H, N, r), and whether there are so many that are neither near nor global."""
        column, head = row.mT, torch.arange(self.num_heads, device=row.device).view(-1, 1, 1)
        free = ((row - column).abs() > 1) & (column > 0) & (column < last)
        drawn, order = hashed(SEED, head, row, column).masked_fill(~free, 2**32).sort(dim=-1)
        return order[..., : self.random], drawn[..., : self.random] < 2**32
