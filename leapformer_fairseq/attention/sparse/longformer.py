"""Baseline in the manner of Longformer: a window, and some tokens that see all and are seen by all."""

from __future__ import annotations

import torch
from torch import Tensor

from ..capabilities import Capabilities
from ..ops.random import hashed
from ..options import Option
from ..registry import register
from .pattern import COMMON, COUNTS, SEED, SELF_ONLY, Pattern, positions, real_keys

GLOBALS = Option("longformer_globals", 4, "entmax-longformer: random global tokens of a head", least=0)


@register("entmax-longformer", *COMMON, SEED, GLOBALS)
class Longformer(Pattern):
    """Entmax over a window and the rows and columns of random global tokens (Beltagy et al., 2020, arXiv:2004.05150).

    Global tokens at random as in Treviso et al., 2022, section 5; each head draws its own. One that is drawn loses its
    place when a later token is drawn before it.
    """

    capabilities = Capabilities(
        constant_state=False, append=False, incremental=False, prefixes=False, unsupported=SELF_ONLY
    )
    grids = {
        "section5": tuple({"longformer_globals": n} for n in COUNTS),
        "c2": tuple({"longformer_globals": n} for n in (4, 8, 12, 16, 20)),
        "small": tuple({"longformer_globals": n} for n in (4, 16)),
    }

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        query, key = positions(seen)
        head = torch.arange(self.num_heads, device=q.device)[:, None, None]
        drawn = hashed(self.chosen.sparse_seed, head, key).masked_fill(~real_keys(seen), 2**32)
        count = min(self.chosen.longformer_globals, drawn.shape[-1])
        last = drawn.kthvalue(count, -1, keepdim=True).values if count > 0 else drawn.new_full((), -1)
        return (drawn <= last) | (hashed(self.chosen.sparse_seed, head, query) <= last)
