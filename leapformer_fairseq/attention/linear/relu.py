"""Linear attention with the ReLU feature map."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..kernels import LinearKernel
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism


@register("relu", NORMALIZER_FLOOR)
class ReLULinear(LinearMechanism):
    """ReLU linear attention: similarity relu(q) . relu(k) (cosFormer without reweighting, arXiv:2202.08791, eq. 8)."""

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(F.relu(x))

    map_keys = map_queries

    def feature_map(self) -> LinearKernel:
        return LinearKernel("relu", self.normalizer_floor)
