"""Gates, from the block's input: how much of what was read before is forgotten at each token.

Weight decay draws parameters to zero; a gate's constant is therefore a buffer, and what is learned is the difference to
it, so that weight decay draws gates to where they began, and does not close them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..layers import projected
from ..options import Option
from ..tokens import TokenInfo

GATE_INIT = Option(
    "gate_init",
    "open",
    "forget gates: they begin open, so that little is forgotten, or as published",
    ("open", "published"),
)


class Gate(nn.Module):
    """Logits W x + b + c, (B, H, S, 1) or for each feature (B, H, S, D), of the block's input x (B, S, C).

    c, `begin`, is fixed: a number for each head, or for each feature of all heads. W has a low `rank`, or begins at
    zero (`quiet`), where that is wanted.
    """

    begin: Tensor

    def __init__(
        self, input_dim: int, num_heads: int, begin: Tensor, rank: int | None = None, quiet: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inner = None if rank is None else nn.Linear(input_dim, rank, bias=False)
        self.outer = nn.Linear(rank or input_dim, begin.numel())
        nn.init.zeros_(self.outer.bias)
        if quiet:
            nn.init.zeros_(self.outer.weight)
        self.register_buffer("begin", begin.flatten().clone())

    def forward(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        """Of keys (B, H, S, D), in their precision."""
        x = tokens.inputs_or(k)
        x = x if self.inner is None else projected(self.inner, x)
        return by_heads(projected(self.outer, x) + self.begin.to(x.dtype), self.num_heads)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the logits as one product, for the decoding step."""
        weight = self.outer.weight if self.inner is None else self.outer.weight @ self.inner.weight
        return weight, self.outer.bias + self.begin


def by_heads(x: Tensor, num_heads: int) -> Tensor:
    """Numbers of all heads (B, S, ..) as (B, H, S, numbers of a head)."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def logit(share: Tensor) -> Tensor:
    """What sigmoid makes `share` of."""
    return share.log() - (-share).log1p()


def spread_half_lives(num_heads: int, shortest: float, longest: float) -> Tensor:
    """Shares kept at each token, (H,), whose half-lives in tokens are spread evenly over their logarithm."""
    lives = torch.logspace(0, 1, num_heads, base=longest / shortest) * shortest
    return torch.exp2(-1 / lives)
