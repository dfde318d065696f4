"""Baseline in the manner of BigBird with blocks of one token: a window, global ends, and random keys for each query."""

from __future__ import annotations

import torch
from torch import Tensor

from ..capabilities import ENCODER_SELF, Capabilities
from ..ops.random import hashed
from ..options import Option
from ..registry import register
from .pattern import COMMON, COUNTS, SEED, SELF_ONLY, Pattern, at_ends, near, positions

RANDOM = Option("bigbird_random", 4, "entmax-bigbird: random keys of a query", least=0)
WINDOW = 3  # always there, also with a smaller --sparse-window


@register("entmax-bigbird", *COMMON, SEED, RANDOM)
class BigBird(Pattern):
    """Entmax over a window of at least 3, the first and the last token, and random keys (Zaheer et al., 2020).

    (arXiv:2007.14062; blocks of one token as in Treviso et al., 2022, section 5.) In a decoder the last token is not
    global, since it is another one after each token, and a query draws among the keys before it: the same ones however
    long the text becomes.
    """

    capabilities = Capabilities(constant_state=False, append=False, prefixes=False, unsupported=SELF_ONLY)
    grids = {
        "section5": tuple({"bigbird_random": n} for n in COUNTS),
        "c2": tuple({"bigbird_random": n} for n in COUNTS[:5]),
        "small": tuple({"bigbird_random": n} for n in (4, 16)),
    }

    def depends_on_later_tokens(self) -> bool:
        return self.block == ENCODER_SELF

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        query, key = positions(seen)
        head = torch.arange(self.num_heads, device=q.device)[:, None, None]
        drawn = hashed(self.chosen.sparse_seed, head, query, key).masked_fill(~seen, 2**32)
        count = min(self.chosen.bigbird_random, drawn.shape[-1])
        found = near(seen, WINDOW) | at_ends(seen, last=self.block == ENCODER_SELF)
        return found if count == 0 else found | (drawn <= drawn.kthvalue(count, -1, keepdim=True).values)
