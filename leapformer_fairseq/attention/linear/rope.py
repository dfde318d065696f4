"""Linear attention with rotary positions."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import Capabilities
from ..kernels import LinearKernel
from ..options import Option
from ..positions import rotate, rotation, rotation_at
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism
from .elu import elu1


@register(
    "rope",
    NORMALIZER_FLOOR,
    Option("rope_theta", 10_000.0, "rope: base of the rotation frequencies", above=0),
    Option(
        "rope_dims",
        0,
        "rope: leading head dimensions that are rotated, even; 0 means half of them, as in LeaPformer's released "
        "baseline, -1 all, as in the RoFormer paper",
    ),
)
class RoPELinear(LinearMechanism):
    """Rotary linear attention: phi = elu + 1 is rotated in the numerator only, so the normalizer stays positive.

    Su et al., 2021, arXiv:2104.09864, eq. 19. Pairs are neighbouring dimensions; only the first `rope_dims` dimensions
    are rotated. The paper rotates all of them, and its models have no position embeddings. Ours have them unless
    `--no-token-positional-embeddings` (in classifiers `--positions none`) is given.
    """

    # The normalizer sums features before the rotation, so the weights of a query do not sum to one.
    capabilities = Capabilities(normalized=False)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        dims = {0: head_dim // 4 * 2, -1: head_dim}.get(self.chosen.rope_dims, self.chosen.rope_dims)
        if dims % 2 or not 0 < dims <= head_dim:
            raise LeapformerError(f"--rope-dims {dims} must be even and between 2 and the head dimension {head_dim}")
        self.dims, self.theta = dims, self.chosen.rope_theta

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        x = elu1(x)
        return Features(rotate(x, rotation(tokens.positions.unsqueeze(1), self.dims, self.theta).to(x.dtype)), x)

    map_keys = map_queries

    def feature_map(self) -> LinearKernel:
        rotation = partial(rotation_at, dims=self.dims, theta=self.theta)
        return LinearKernel("elu", self.normalizer_floor, rotation=rotation)
