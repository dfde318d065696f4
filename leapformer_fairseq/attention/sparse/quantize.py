"""Sparsefinder by quantization: an edge where query and key fall into the same bin of some projected dimension."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from ..options import Option
from ..registry import register
from .fitted import DIMENSIONS, FILE, Projected
from .pattern import COMMON, real_keys

BINS = Option("sparsefinder_bins", 4, "sparsefinder-quantize: bins of each projected dimension", least=1)
TOKENS = Option(
    "sparsefinder_bin_tokens",
    0,
    "sparsefinder-quantize: tokens of a bin instead, as the released code counts; 0: --sparsefinder-bins of equal size",
    least=0,
)
BINNING = Option(
    "sparsefinder_binning",
    "fixed",
    "sparsefinder-quantize: bins of equal numbers of tokens (fixed), or of equal width after tanh (dynamic)",
    ("fixed", "dynamic"),
)


@register("sparsefinder-quantize", *COMMON, FILE, DIMENSIONS, BINS, TOKENS, BINNING)
class Quantize(Projected):
    """Entmax over the pairs that share a bin in at least one dimension (Treviso et al., 2022, section 4).

    fixed:   queries are ranked in each dimension, and keys; a bin holds ceil(n / bins) of them, next to each other. A
             rank changes with later tokens.
    dynamic: bins of equal width over tanh(x) in [-1, 1].
    """

    capabilities = replace(Projected.capabilities, incremental=False, prefixes=False)
    grids = {
        "section5": tuple({"sparsefinder_bins": b} for b in (1, 2, 3, 4, 5)),
        "c2": tuple({"sparsefinder_bins": b} for b in (1, 2, 3)),
        "released": tuple({"sparsefinder_bin_tokens": n} for n in (4, 8, 12, 16, 20)),
        "small": tuple({"sparsefinder_bins": b} for b in (2, 4)),
    }

    def depends_on_later_tokens(self) -> bool:
        return self.ranked

    @property
    def ranked(self) -> bool:
        """Whether bins are of ranks."""
        return bool(self.chosen.sparsefinder_binning == "fixed")

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        q, k = self.project_queries(q), self._kept_projections(k)
        if self.ranked:
            real = real_keys(seen).mT  # (B or 1, 1, S, 1)
            same_tokens = self.same_tokens(q, k)
            bins = (self._by_rank(q, real if same_tokens else None), self._by_rank(k, real))
        else:
            bins = (self._by_value(q), self._by_value(k))
        parts = (a.unsqueeze(-1) == b.unsqueeze(-2) for a, b in zip(*(x.unbind(-1) for x in bins), strict=True))
        return reduce(torch.logical_or, parts)

    def _by_rank(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Bins (B, H, T, r) of the ranks of real tokens in each dimension; padding comes last."""
        count = torch.full((1, 1, 1, 1), x.shape[2], device=x.device)
        if real is not None:
            count = real.sum(2, keepdim=True)
            x = x.masked_fill(~real, torch.inf)
        ranks = x.argsort(dim=2, stable=True).argsort(dim=2)
        tokens = self.chosen.sparsefinder_bin_tokens
        size = -(-count // self.chosen.sparsefinder_bins) if tokens == 0 else torch.full_like(count, tokens)
        return ranks // size.clamp_min(1)

    def _by_value(self, x: Tensor) -> Tensor:
        bins = self.chosen.sparsefinder_bins
        return ((x.tanh() + 1) / 2 * bins).floor().clamp(0, bins - 1)
