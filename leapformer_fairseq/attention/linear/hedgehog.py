"""Hedgehog: learned feature maps as peaked as softmax, for converting trained softmax models into recurrent ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..ops.linear import by_head
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism

IMPORTANCE = Option(
    "hedgehog_importance",
    False,
    "hedgehog: multiply a key's features by sigmoid(w . k + b); their sum is otherwise the same for every key",
)
IMPORTANT = 4.0  # initial b: at first the factor is 0.98


@register("hedgehog", NORMALIZER_FLOOR, IMPORTANCE)
class Hedgehog(LinearMechanism):
    """Hedgehog: phi(x) = [softmax(W x), softmax(-W x)], with a learned W per head for queries and one for keys.

    W is initially the identity. Meant for converting a trained softmax model (`leapformer linearize`). Zhang et al.,
    2024, arXiv:2402.04347, section 4.2; the two softmaxes as in Zhang et al., 2024, arXiv:2410.10254.
    """

    features_per_dim = 2

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        identity = torch.eye(head_dim).repeat(num_heads, 1, 1)
        self.query_map, self.key_map = nn.Parameter(identity.clone()), nn.Parameter(identity.clone())
        self.importance: nn.Parameter | None = None
        if self.chosen.hedgehog_importance:
            self.importance = nn.Parameter(torch.zeros(num_heads, head_dim, 1))
            self.importance_bias = nn.Parameter(torch.full((num_heads, 1, 1), IMPORTANT))

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(_two_softmaxes(x, self.query_map))

    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        features = _two_softmaxes(x, self.key_map)
        if self.importance is not None:
            features = features * (by_head(x, self.importance.mT) + self.importance_bias.to(x.dtype)).sigmoid()
        return Features(features)


def _two_softmaxes(x: Tensor, weight: Tensor) -> Tensor:
    x = by_head(x, weight)
    return torch.cat([x.softmax(-1), (-x).softmax(-1)], -1)
