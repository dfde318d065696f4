"""cosFormer: linear attention that favours keys at the same relative position."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import Capabilities
from ..kernels import LinearKernel
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import NORMALIZER_FLOOR, Features, LinearMechanism
from .reweighting import CosReweighted

_REMEDY = (
    "give --cosformer-length N (say, the longest target) or, where the model has it, --length-predictor, or choose a "
    "mechanism without lengths, e.g. leap"
)


@register(
    "cosformer",
    NORMALIZER_FLOOR,
    Option(
        "cosformer_length",
        0,
        "cosformer: length assumed for a sequence still being written (decoders) where none is predicted; 0 means none",
    ),
    Option(
        "cosformer_overrun",
        "saturate",
        "cosformer: beyond the assumed or predicted length, proportions stay at 1 (saturate) or, as in the paper, keep "
        "growing until weights turn negative (extrapolate)",
        ("saturate", "extrapolate"),
    ),
    Option(
        "cosformer_step",
        0,
        "cosformer: the length of a sequence still being written, if neither known nor predicted, is assumed to be the "
        "next multiple of this; 0 means none",
        least=0,
    ),
)
class CosFormer(LinearMechanism):
    """cosFormer: relu(q_i) . relu(k_j) cos(pi/2 (i/N - j/M)), positions from 1.

    Qin et al., 2022, arXiv:2202.08791, eq. 10. N and M are the lengths of the two sides (Agostinelli et al., 2023,
    Modular Linearized Attention, eq. 8). While a target is being generated its length is unknown: a predicted length
    is used, or else `cosformer_length`, also in training, which must not see a length that generation will not know.
    Beyond this length the proportion stays at 1, so no weight is negative; with `cosformer_overrun` "extrapolate" it
    grows as in the paper; models, and `Attention`, refuse targets longer than `cosformer_length`. With `cosformer_step`
    the length is the next multiple of it instead (after Agostinelli et al., 2024, arXiv:2405.13046, appendix A.8). Keys
    keep the proportions they were written with, because a state cannot be rescaled.
    """

    features_per_dim = 2
    # A longer source changes j/M of every earlier key.
    capabilities = Capabilities(needs_length=True, append=False, prefixes=False, length_remedy=_REMEDY)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        cosformer_length: int = self.chosen.cosformer_length
        if cosformer_length < 0:
            raise LeapformerError(
                f"--cosformer-length {cosformer_length} is negative; give a length >= 1, or 0 for none"
            )
        self.assumed_length, self.length_step = cosformer_length, self.chosen.cosformer_step
        if cosformer_length and self.length_step:
            raise LeapformerError(
                f"--cosformer-step {self.length_step} and --cosformer-length {cosformer_length}: give one of them; a "
                "length of 0 is none"
            )
        self.largest = 1.0 if self.chosen.cosformer_overrun == "saturate" else math.inf
        if cosformer_length:
            self.capabilities = replace(
                self.capabilities,
                length_remedy="",
                max_target=cosformer_length,
                limit_options="--cosformer-length",
            )
        elif self.length_step:
            self.capabilities = replace(self.capabilities, length_remedy="", guesses_length=True)

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        proportion = self._proportions(tokens.positions, tokens.lengths).to(x.dtype)
        return CosReweighted(F.relu(x), proportion=proportion[:, None, :, None])

    map_keys = map_queries

    def _proportions(self, positions: Tensor, lengths: Tensor | None) -> Tensor:
        """Proportions i/N, (B or 1, T), in float64, of positions (B or 1, T) in sequences of `lengths` (B or 1,)."""
        positions = positions.double()
        if lengths is not None:
            whole: Tensor | int = lengths.double().clamp_min(1).unsqueeze(1)
        elif self.length_step:
            whole = (positions / self.length_step).ceil().clamp_min(1) * self.length_step
        elif self.assumed_length:
            whole = self.assumed_length
        else:
            raise self.refusal(f"cosformer was asked for tokens of unknown length; {_REMEDY}")
        return (positions / whole).clamp_max(self.largest)

    def feature_map(self) -> LinearKernel:
        return LinearKernel("relu", self.normalizer_floor, proportion=self._proportions)
