"""LeaPformer: cosFormer's cosine reweighting, with proportions that a network computes from each token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..kernels import LinearKernel
from ..layers import ProportionNetwork
from ..ops import dispatch
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism
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

    Weights are never negative, positions enter only through the embeddings, and no length is needed, so tokens of a
    stream can be added to the state as they arrive. The proportion networks read relu(q) and relu(k), as in the
    released code, or, with `leap_input` "raw", q and k, as in eq. 10. Neither is scaled by 1 / sqrt(D), unlike the
    queries in the released fairseq code. (Agostinelli et al., 2024, arXiv:2405.13046, eq. 8-10.)
    """

    features_per_dim = 2

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.query_proportion, self.key_proportion = proportion_networks(head_dim, num_heads, self.chosen)

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return leap_features(x, self.query_proportion, self.chosen)

    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        return leap_features(x, self.key_proportion, self.chosen)

    def feature_map(self) -> LinearKernel:
        return leap_kernel(self)


def proportion_networks(
    head_dim: int, num_heads: int, chosen: SimpleNamespace
) -> tuple[ProportionNetwork, ProportionNetwork]:
    """The networks for queries and for keys. Raises LeapformerError for a factor that does not divide `head_dim`."""
    factor: int = chosen.leap_factor
    if factor < 1 or head_dim % factor:
        divisors = [n for n in range(1, head_dim + 1) if head_dim % n == 0]
        raise LeapformerError(
            f"--leap-factor {factor} does not divide the head dimension {head_dim}; choose from {divisors}"
        )
    heads = num_heads if chosen.leap_per_head else None
    return ProportionNetwork(head_dim, factor, heads), ProportionNetwork(head_dim, factor, heads)


def leap_features(x: Tensor, network: ProportionNetwork, chosen: SimpleNamespace) -> Features:
    """relu(x) of queries or keys x (B, H, T, D), reweighted by the proportions that `network` computes."""
    features = F.relu(x)
    if dispatch.is_exported():
        halves = network.halves(x if chosen.leap_input == "raw" else features)
        return Features((features.unsqueeze(-2) * halves.unsqueeze(-1)).flatten(-2))
    return CosReweighted(features, proportion=network(x if chosen.leap_input == "raw" else features))


def leap_kernel(mechanism: Any) -> LinearKernel:
    """The description of a mechanism with these features."""
    networks = mechanism.query_proportion, mechanism.key_proportion
    return LinearKernel("relu", mechanism.normalizer_floor, networks, mechanism.chosen.leap_input == "raw")
