"""Linear attention with the elu + 1 feature map."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .linear import NORMALIZER_FLOOR, Features, LinearMechanism
from .masks import Rows
from .registry import register
from .step import StepMap


@register("elu", NORMALIZER_FLOOR)
class ELULinear(LinearMechanism):
    """ELU linear attention: phi(x) = elu(x) + 1 > 0 (Katharopoulos et al., 2020, arXiv:2006.16236, eq. 7)."""

    def map_queries(self, x: Tensor, rows: Rows) -> Features:
        return Features(F.elu(x) + 1)

    map_keys = map_queries

    def step_map(self) -> StepMap:
        return StepMap("elu")
