"""Linear attention with rotary positions."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..errors import LeapformerError
from .linear import NORMALIZER_FLOOR, Features, LinearMechanism
from .masks import Rows
from .registry import Option, register
from .rotation import rotate, rotation, rotation_at
from .step import StepMap


@register(
    "rope",
    NORMALIZER_FLOOR,
    Option("rope_theta", 10_000.0, "rope: base of the rotation frequencies"),
    Option(
        "rope_dims",
        0,
        "rope: leading head dimensions that are rotated, even; 0 means half of them, as in LeaPformer's baseline",
    ),
)
class RoPELinear(LinearMechanism):
    """Rotary linear attention: rotate phi = elu + 1 in the numerator only, so the normalizer stays positive.

    Su et al., 2021, arXiv:2104.09864, eq. 19. Pairs are neighbouring dimensions; the dimensions after `rope_dims` are
    not rotated.
    """

    # Numerator and normalizer see different features, which the recomputing form does not handle.
    forms = ("parallel", "chunkwise")

    def __init__(
        self, head_dim: int, num_heads: int, *, rope_theta: float = 10_000.0, rope_dims: int = 0, **options: Any
    ) -> None:
        super().__init__(head_dim, num_heads, **options)
        dims = rope_dims or head_dim // 4 * 2
        if dims % 2 or not 0 < dims <= head_dim:
            raise LeapformerError(f"--rope-dims {dims} must be even and between 2 and the head dimension {head_dim}")
        self.dims, self.theta = dims, rope_theta

    def map_queries(self, x: Tensor, rows: Rows) -> Features:
        x = F.elu(x) + 1
        return Features(rotate(x, rotation(rows.positions.unsqueeze(1), self.dims, self.theta).to(x.dtype)), x)

    map_keys = map_queries

    def step_map(self) -> StepMap:
        return StepMap("elu", rotation=lambda position: rotation_at(position, self.dims, self.theta))
