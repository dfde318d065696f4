"""The Sparse Transformer's fixed pattern: a block, and the last tokens of all blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..options import Option
from ..registry import register
from .chosen import Chosen, ChosenKeys

SIZE = Option("sparse_transformer_block_size", 128, "sparse-transformer: tokens of a block", least=1)
SUMMARY = Option(
    "sparse_transformer_summary", 32, "sparse-transformer: last tokens of a block that all blocks see", least=1
)


@register("sparse-transformer", SIZE, SUMMARY)
class SparseTransformer(ChosenKeys):
    """Softmax over a token's block and the last c tokens of every block (Child et al., 2019, arXiv:1904.10509, 4.3).

    In an encoder, so before and after it. All heads take both parts of the pattern.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.size = self.chosen.sparse_transformer_block_size
        self.summary = self.chosen.sparse_transformer_summary
        if self.summary > self.size:
            raise LeapformerError(f"{SUMMARY.flag} {self.summary}: a block has only {self.size} tokens ({SIZE.flag})")

    def choose(self, lengths: Tensor, count: int) -> Chosen:
        z, c = self.size, self.summary
        start = torch.arange(0, count, z, device=lengths.device)
        own = start.unsqueeze(1) + torch.arange(z, device=lengths.device)
        last = own[:, z - c :].flatten().expand(len(start), -1)
        elsewhere = last // z != (start // z).unsqueeze(1)
        units = torch.cat([own, last], 1)
        used = torch.cat([torch.ones_like(own, dtype=torch.bool), elsewhere], 1)
        return Chosen(units[None, None], used[None, None, :, None])
