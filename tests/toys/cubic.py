"""A feature map."""

import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import NORMALIZER_FLOOR, Features, LinearMechanism, Option, TokenInfo, register


@register("toy-cubic", NORMALIZER_FLOOR, Option("toy_scale", 1.0, "toy-cubic: factor before the power"))
class Cubic(LinearMechanism):
    """Cubed ReLU linear attention: similarity relu(s q)^3 . relu(s k)^3."""

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(F.relu(self.chosen.toy_scale * x).pow(3))

    map_keys = map_queries
