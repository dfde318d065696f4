"""LeaPformer: the cosine reweighting of cosFormer with proportions learned from the content."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..decoding.linear import KernelMap
from ..registry import Option, register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism
from .proportion import ProportionNetwork
from .reweighting import CosReweighted


@register(
    "leap",
    NORMALIZER_FLOOR,
    Option(
        "leap_factor",
        4,
        "leap: head dimension over hidden width of the proportion network; the head dimension means no hidden layer",
    ),
    Option("leap_per_head", False, "leap: a proportion network for every head instead of one per block"),
    Option(
        "leap_input",
        "features",
        "leap: proportion networks read queries and keys after the ReLU (features), as the released code does, or as "
        "projected (raw), as eq. 10 of the paper has it",
        ("features", "raw"),
    ),
)
class LeaP(LinearMechanism):
    """LeaPformer: relu(q) . relu(k) cos(pi/2 (LeaP_Q(q) - LeaP_K(k))).

    Weights are positive, positions enter only through the embeddings, and no length is needed, so the state can grow
    with a stream. The proportion networks read features after the ReLU, as the released code does, unless `leap_input`
    asks for the queries and keys of eq. 10. These are not scaled by 1 / sqrt(D), as the queries of the released fairseq
    code are. (Agostinelli et al., 2024, arXiv:2405.13046, eq. 8-10.)
    """

    features_per_dim = 2

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        leap_factor: int = self.chosen.leap_factor
        if leap_factor < 1 or head_dim % leap_factor:
            divisors = [n for n in range(1, head_dim + 1) if head_dim % n == 0]
            raise LeapformerError(
                f"--leap-factor {leap_factor} does not divide the head dimension {head_dim}; choose from {divisors}"
            )
        heads = num_heads if self.chosen.leap_per_head else None
        self.query_proportion = ProportionNetwork(head_dim, leap_factor, heads)
        self.key_proportion = ProportionNetwork(head_dim, leap_factor, heads)
        self.reads_raw = self.chosen.leap_input == "raw"

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return self._reweighted(x, self.query_proportion)

    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        return self._reweighted(x, self.key_proportion)

    def _reweighted(self, x: Tensor, network: ProportionNetwork) -> Features:
        features = F.relu(x)
        return CosReweighted(features, proportion=network(x if self.reads_raw else features))

    def kernel_map(self) -> KernelMap:
        return KernelMap("relu", networks=(self.query_proportion, self.key_proportion), raw=self.reads_raw)
