"""Linear attention with the ReLU feature map."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .linear import NORMALIZER_FLOOR, Features, LinearMechanism
from .masks import Rows
from .registry import register
from .step import StepMap


@register("relu", NORMALIZER_FLOOR)
class ReLULinear(LinearMechanism):
    """ReLU linear attention: similarity relu(q) . relu(k) (the basis of cosFormer, arXiv:2202.08791, eq. 8)."""

    def map_queries(self, x: Tensor, rows: Rows) -> Features:
        return Features(F.relu(x))

    map_keys = map_queries

    def step_map(self) -> StepMap:
        return StepMap("relu")
