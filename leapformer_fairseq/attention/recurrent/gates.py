"""Forget gates, computed from the block's input: how much of the state is kept at each token.

Weight decay pulls parameters to zero. A gate's initial logit is therefore a buffer and only the difference from it is
learned, so that weight decay pulls gates back to their initial value instead of closing them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..layers import by_heads, projected
from ..options import Option
from ..tokens import TokenInfo

GATE_INIT = Option(
    "gate_init",
    "open",
    "forget gates: they begin open, so that little is forgotten, or as published",
    ("open", "published"),
)


class Gate(nn.Module):
    """Logits W x + b + c of the block's input x (B, S, C), one per head (B, H, S, 1) or per feature (B, H, S, D).

    `begin` is c, a constant per head (H,) or per feature of every head (H D,). `rank` limits the rank of W, and `quiet`
    initialises W to zero.
    """

    begin: Tensor

    def __init__(
        self, input_dim: int, num_heads: int, begin: Tensor, rank: int | None = None, quiet: bool = False
    ) -> None:
        super().__init__()
        if not begin.numel() or begin.numel() % num_heads:
            raise LeapformerError(
                f"a Gate that begins with {begin.numel()} numbers for {num_heads} heads: give one for each head "
                "(num_heads), or for each feature (num_heads * head_dim)"
            )
        self.num_heads = num_heads
        self.inner = None if rank is None else nn.Linear(input_dim, rank, bias=False)
        self.outer = nn.Linear(rank or input_dim, begin.numel())
        nn.init.zeros_(self.outer.bias)
        if quiet:
            nn.init.zeros_(self.outer.weight)
        self.register_buffer("begin", begin.flatten().clone())

    def forward(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        """The logits for keys k (B, H, S, D), in their precision."""
        x = tokens.required_inputs(k.dtype)
        x = x if self.inner is None else projected(self.inner, x)
        return by_heads(projected(self.outer, x) + self.begin.to(x.dtype), self.num_heads)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the logits as one product, for the decoding step."""
        weight = self.outer.weight if self.inner is None else self.outer.weight @ self.inner.weight
        return weight, self.outer.bias + self.begin


def logit(share: Tensor) -> Tensor:
    """The inverse of the sigmoid."""
    return share.log() - (-share).log1p()


def spread_half_lives(num_heads: int, shortest: float, longest: float) -> Tensor:
    """The share of the state that each head keeps per token, (H,), for logarithmically spaced half-lives in tokens."""
    lives = torch.logspace(0, 1, num_heads, base=longest / shortest) * shortest
    return torch.exp2(-1 / lives)
