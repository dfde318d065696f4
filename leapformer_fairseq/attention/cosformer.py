"""cosFormer: linear attention that prefers keys at the same relative position."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import LeapformerError
from .linear import NORMALIZER_FLOOR, Features, LinearMechanism
from .masks import Rows
from .registry import Option, register
from .reweighting import CosReweighted
from .step import StepMap


@register(
    "cosformer",
    NORMALIZER_FLOOR,
    Option(
        "cosformer_length",
        0,
        "cosformer: length assumed for a sequence still being written (decoders); 0 means none",
    ),
)
class CosFormer(LinearMechanism):
    """cosFormer: relu(q_i) . relu(k_j) cos(pi/2 (i/N - j/M)), positions from 1.

    Qin et al., 2022, arXiv:2202.08791, eq. 10. N and M are the true lengths of the two sides (Agostinelli et al., 2023,
    Modular Linearized Attention, eq. 8). A target that is still being written has none: `cosformer_length` stands in,
    in training too, so that training does not see a length that generation will not know. Beyond it the proportion
    stays at 1 and weights stay positive.
    """

    features_per_dim = 2
    needs_length = True
    streaming = False  # a longer source changes j/M of every old key

    def __init__(self, head_dim: int, num_heads: int, *, cosformer_length: int = 0, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        if cosformer_length < 0:
            raise LeapformerError(
                f"--cosformer-length {cosformer_length} is negative; give a length >= 1, or 0 for none"
            )
        self.assumed_length = cosformer_length
        self.max_positions = cosformer_length or None

    def refusal(self, block: str) -> str | None:
        if block.startswith("decoder") and not self.assumed_length:
            return "it needs the target's length, which is unknown while decoding; " + self._remedy
        return super().refusal(block)

    _remedy = "give --cosformer-length N (say, the longest target), or choose a mechanism without lengths, e.g. leap"

    def map_queries(self, x: Tensor, rows: Rows) -> Features:
        return CosReweighted(F.relu(x), proportion=self._proportions(rows, x.dtype))

    map_keys = map_queries

    def _proportions(self, rows: Rows, dtype: torch.dtype) -> Tensor:
        """i/N, (B or 1, 1, T, 1), saturating at 1."""
        lengths: Tensor | int = self.assumed_length if rows.lengths is None else rows.lengths[:, None].clamp_min(1)
        if rows.lengths is None and not self.assumed_length:
            raise LeapformerError(f"cosformer was asked for rows of unknown length; {self._remedy}")
        return (rows.positions.to(dtype) / lengths).clamp_max(1.0)[:, None, :, None]

    def step_map(self) -> StepMap:
        return StepMap("relu", proportion=lambda position: min(position / self.assumed_length, 1.0))
