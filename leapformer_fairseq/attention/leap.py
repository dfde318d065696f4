"""LeaPformer: the cosine re-weighting of cosFormer with proportions learned from the content."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LeapformerError
from .linear import NORMALIZER_FLOOR, Features, LinearMechanism
from .masks import Rows
from .registry import Option, register
from .reweighting import CosReweighted


class ProportionNetwork(nn.Module):
    """The LeaP module: one proportion in (0, 1) per row, (B, H, T, D) to (B, H, T, 1).

    Linear(D, D / factor), ReLU, Linear(D / factor, 1), sigmoid; with factor = D there is no hidden layer. The heads
    share it unless `heads` is given. Initialised as nn.Linear. (arXiv:2405.13046, section 3.2.)
    """

    def __init__(self, head_dim: int, factor: int, heads: int | None = None) -> None:
        super().__init__()
        widths = [head_dim, 1] if factor == head_dim else [head_dim, head_dim // factor, 1]
        lead = () if heads is None else (heads,)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in pairwise(widths):
            bound = n_in**-0.5
            self.weights.append(torch.empty(*lead, n_in, n_out).uniform_(-bound, bound))
            self.biases.append(torch.empty(*lead, 1, n_out).uniform_(-bound, bound))
        self.shared = heads is None

    def forward(self, x: Tensor) -> Tensor:
        # Rows become columns: with so few outputs a matrix product is more than twice as fast this way round, and with
        # a contiguous weight so is that of its gradient.
        columns = x.flatten(0, 2).t() if self.shared else x.mT
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            columns = (weight.to(x.dtype).mT.contiguous() @ columns).add_(bias.to(x.dtype).mT)
            if i < last:
                columns = columns.relu_()
        return columns.sigmoid().view(*x.shape[:3], 1)


@register(
    "leap",
    NORMALIZER_FLOOR,
    Option(
        "leap_factor",
        4,
        "leap: head dimension over hidden width of the proportion network; the head dimension means no hidden layer",
    ),
    Option("leap_per_head", False, "leap: a proportion network for every head instead of one per block"),
)
class LeaP(LinearMechanism):
    """LeaPformer: relu(q) . relu(k) cos(pi/2 (LeaP_Q(q) - LeaP_K(k))).

    The proportion networks read the rows after the ReLU, as the released code does. Weights are positive, positions
    enter only through the embeddings, and no length is needed, so the state can grow with a stream.
    (Agostinelli et al., 2024, arXiv:2405.13046, eq. 6.)
    """

    features_per_dim = 2

    def __init__(
        self, head_dim: int, num_heads: int, *, leap_factor: int = 4, leap_per_head: bool = False, **options: Any
    ) -> None:
        super().__init__(head_dim, num_heads, **options)
        if leap_factor < 1 or head_dim % leap_factor:
            divisors = [n for n in range(1, head_dim + 1) if head_dim % n == 0]
            raise LeapformerError(
                f"--leap-factor {leap_factor} does not divide the head dimension {head_dim}; choose from {divisors}"
            )
        heads = num_heads if leap_per_head else None
        self.query_proportion = ProportionNetwork(head_dim, leap_factor, heads)
        self.key_proportion = ProportionNetwork(head_dim, leap_factor, heads)

    def map_queries(self, x: Tensor, rows: Rows) -> Features:
        x = F.relu(x)
        return CosReweighted(x, proportion=self.query_proportion(x))

    def map_keys(self, x: Tensor, rows: Rows) -> Features:
        x = F.relu(x)
        return CosReweighted(x, proportion=self.key_proportion(x))
