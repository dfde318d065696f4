"""ABC with a learned control that depends only on positions: Linformer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..capabilities import Capabilities
from ..ops.precision import accumulated
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import SLOTS, set_limit
from .sums import UNTIED, SlotSums

MAX_LENGTH = Option("abc_max_length", 1024, "abc-linformer: longest sequence, the columns of its table")


@register(
    "abc-linformer",
    SLOTS,
    UNTIED,
    MAX_LENGTH,
)
class Linformer(SlotSums):
    """Linformer as ABC: the control phi_i is column i of a learned table (n, N_max), the same for all heads.

    All layers of a block share the table unless `abc_untied`. Sequences shorter than N_max use its first columns; a
    causal query reads the sum over its prefix. (Wang et al., 2020, arXiv:2006.04768; Peng et al., 2022,
    arXiv:2110.02488, section 3.1.)
    """

    capabilities = Capabilities(prefixes=False, normalized=False)
    gaps = False  # every token is written into all slots
    positional = True

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        abc_max_length: int = self.chosen.abc_max_length
        if self.slots > abc_max_length:
            raise LeapformerError(
                f"abc-linformer: {self.slots} slots for at most {abc_max_length} tokens; give fewer --abc-slots, or a "
                "larger --abc-max-length"
            )
        set_limit(self, abc_max_length, MAX_LENGTH.flag)
        self.tied = () if self.chosen.abc_untied else ("control_table",)
        self.control_table = nn.Parameter(torch.empty(self.slots, abc_max_length))
        nn.init.xavier_uniform_(self.control_table, gain=2**-0.5)

    def control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        self.check_limit(tokens, self.limit)
        columns = (tokens.positions - 1).clamp_min(0)
        return accumulated(F.embedding(columns, self.control_table.t())).unsqueeze(1)
