"""Synthesizer: weights that are learned for pairs of positions, independent of the tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..options import Option
from ..registry import register
from .base import Bidirectional, real

RANK = Option("synthesizer_rank", 32, "synthesizer: width of the two factors of its logits", least=1)
LENGTH = Option("synthesizer_max_length", 1024, "synthesizer: longest sequence, rows of its factors", least=1)


@register("synthesizer", RANK, LENGTH)
class Synthesizer(Bidirectional):
    """Factorised random Synthesizer: softmax(R_1 R_2^T) v, with R_1 and R_2 (N, k) learned for each head.

    Tay et al., 2020, arXiv:2005.00743, section 3.1.3.
    """

    capabilities = replace(Bidirectional.capabilities, unused_projections=("q_proj", "k_proj"))

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.longest = self.chosen.synthesizer_max_length
        rank = self.chosen.synthesizer_rank
        self.row_factor, self.column_factor = (
            nn.Parameter(torch.randn(num_heads, self.longest, rank) * rank**-0.25) for _ in range(2)
        )

    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        count = k.shape[2]
        if count > self.longest:
            raise self.refusal(
                f"synthesizer can read {self.longest} tokens and got {count}; cut the text, or train with a larger "
                f"{LENGTH.flag}"
            )
        logits = self.row_factor[:, :count].to(q.dtype) @ self.column_factor[:, :count].to(q.dtype).mT
        hidden = ~real(lengths, count)[:, None, None]
        weights = logits.masked_fill(hidden & ~hidden.all(-1, keepdim=True), torch.finfo(q.dtype).min)
        return F.dropout(weights.softmax(-1).expand(len(q), -1, -1, -1), dropout)
