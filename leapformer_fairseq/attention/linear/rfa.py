"""Random feature attention: the softmax kernel, estimated with random Fourier features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..capabilities import Capabilities
from ..ops.linear import by_head
from ..options import Option, per_block
from ..registry import register
from ..tokens import TokenInfo
from .base import Features, LinearMechanism
from .performer import orthogonal_rows

FEATURES = Option(
    "rfa_features",
    "256/128/256",
    "rfa: features of a head, half of them sines and half cosines, one number or ENCODER/DECODER/CROSS",
)
FLOOR = Option(
    "rfa_floor", 0.1, "rfa: its normalizer, an estimate that may be negative, is clamped from below by this", above=0
)
SHORTEST = 1e-3  # lower bound of the length that a query or key is divided by


@register("rfa", FEATURES, FLOOR)
class RFA(LinearMechanism):
    """RFA: phi(x) = sqrt(2/F) [sin(w_i . x), cos(w_i . x)] of x / |x|, w_i = sigma * a normal vector, sigma learned.

    The expected similarity is exp(-|sigma * (q - k)|^2 / 2) for queries and keys of length one; for sigma = 1 this is
    exp(q . k) up to a constant factor. The estimate may be negative. Peng et al., 2021, arXiv:2103.02143, section 3.1
    and equation 4. Each head has its own random vectors, which are fixed and saved with the model; the authors' code
    draws new ones for every training batch.
    """

    capabilities = Capabilities(normalized=False)
    projection: Tensor
    sigma: nn.Parameter

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        add_random_features(self)

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return random_features(x, self.sigma * self.projection)

    map_keys = map_queries


def add_random_features(mechanism: Any) -> None:
    """Add what these features need to a mechanism: `features`, `normalizer_floor`, `sigma` and the fixed `projection`.

    Raises LeapformerError for an odd number of features.
    """
    chosen, heads = mechanism.chosen, mechanism.num_heads
    features = per_block(FEATURES.flag, chosen.rfa_features, mechanism.block, least=2)
    if features % 2:
        raise LeapformerError(f"{FEATURES.flag} {features}: give an even number, of sines and cosines")
    mechanism.features, mechanism.normalizer_floor = features, float(chosen.rfa_floor)
    mechanism.sigma = nn.Parameter(torch.ones(heads, 1, mechanism.head_dim))
    rows = orthogonal_rows(heads * features // 2, mechanism.head_dim)
    mechanism.register_buffer("projection", rows.unflatten(0, (heads, -1)))


def random_features(x: Tensor, rows: Tensor) -> Features:
    """sqrt(1/n) [sin(w . x), cos(w . x)] of x / |x|, x (B, H, T, D), for the n rows w of each head, (H, n, D)."""
    angles = by_head(F.normalize(x, dim=-1, eps=SHORTEST), rows)
    return Features(torch.cat([angles.sin(), angles.cos()], -1) * rows.shape[1] ** -0.5)
