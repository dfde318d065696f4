"""Baseline: a window, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from ..capabilities import Capabilities
from ..registry import register
from .pattern import COMMON, SELF_ONLY, Pattern


@register("entmax-window", *COMMON)
class Window(Pattern):
    """Entmax over the tokens of `--sparse-window` and `--sparse-global` (Treviso et al., 2022, section 5)."""

    capabilities = Capabilities(constant_state=False, append=False, prefixes=False, unsupported=SELF_ONLY)
    grids = {"section5": ({},), "c2": ({},), "small": ({},)}

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        return torch.zeros_like(seen)
