"""Longformer: a window, and a first token that sees all and is seen by all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..options import Option
from ..registry import register
from .chosen import Chosen, ChosenKeys

WINDOW = Option("longformer_window", 512, "longformer: a token sees those at most half of this many away; even")


@register("longformer", WINDOW)
class Longformer(ChosenKeys):
    """Softmax over a window of w + 1 tokens; the first token is global (Beltagy et al., 2020, arXiv:2004.05150).

    The projections of global attention are those of the window.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        width = self.chosen.longformer_window
        if width < 2 or width % 2:
            raise LeapformerError(f"{WINDOW.flag} {width}: give an even number from 2")
        self.size = width // 2

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        z = self.size
        query = torch.arange(-(-count // z) * z, device=lengths.device).view(-1, z)
        key = query[:, :1] + torch.arange(-z, 2 * z, device=lengths.device)
        used = ((query.unsqueeze(-1) - key.unsqueeze(-2)).abs() <= z) & (key > 0).unsqueeze(-2)
        first = torch.zeros_like(query[:, :1])
        units = torch.cat([first, key.clamp_min(0)], 1)
        used = torch.cat([torch.ones_like(used[..., :1]), used], -1)
        whole = lengths.new_zeros(1, 1)
        return Chosen(units[None, None], used[None, None], 1, whole, whole == 0)
