"""Baseline in the manner of BigBird: each block of queries attends to random blocks of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.random import hashed
from ..registry import register
from .blocks import ATTENDED, SIZE, Blocked, top
from .pattern import COMMON, SEED


@register("entmax-bigbird-blocks", *COMMON, SEED, SIZE, ATTENDED)
class BigBirdBlocks(Blocked):
    """Entmax over random blocks beside the window and the ends (Zaheer et al., 2020, arXiv:2007.14062).

    The baseline of Treviso et al., 2022, section 6.1. Each head draws its own.
    """

    def _choose(self, q: Tensor, k: Tensor, real: Tensor, blocks: Tensor) -> Tensor:
        sizes = self.num_heads, -(-q.shape[2] // self.size), -(-k.shape[2] // self.size)
        head, row, column = (torch.arange(size, device=q.device) for size in sizes)
        drawn = hashed(self.chosen.sparse_seed, head[:, None, None], row[:, None], column)
        return top(-drawn.double().masked_fill(~blocks[:, None, None], torch.inf), self.attended)
