"""T2R: a learned feature map, for converting trained softmax models into recurrent ones."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.linear import by_head
from ..options import Option, per_block
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism

FEATURES = Option(
    "t2r_features",
    "32/4/32",
    "t2r: features of a head, one number or ENCODER/DECODER/CROSS; 32 in language models",
    without_encoder="32",
)


@register("t2r", NORMALIZER_FLOOR, FEATURES)
class T2R(LinearMechanism):
    """T2R: similarity phi(q) . phi(k), phi(x) = relu(W x + b), learned for each head, the same for q and k.

    Meant to start from a trained softmax model (`--finetune-from-model`), whose projections it keeps. Kasai et al.,
    2021, arXiv:2103.13076, section 3.1; 32 features in cross-attention and 4 in causal attention as in Peng et al.,
    2022, arXiv:2110.02488, figure 1.
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.features = per_block(FEATURES.flag, self.chosen.t2r_features, self.block, least=1)
        bound = head_dim**-0.5
        self.map_weight = nn.Parameter(torch.empty(num_heads, self.features, head_dim))
        self.map_bias = nn.Parameter(torch.empty(num_heads, 1, self.features))
        nn.init.kaiming_uniform_(self.map_weight.view(-1, head_dim), a=math.sqrt(5))
        nn.init.uniform_(self.map_bias, -bound, bound)

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(F.relu(by_head(x, self.map_weight) + self.map_bias.to(x.dtype)))

    map_keys = map_queries
