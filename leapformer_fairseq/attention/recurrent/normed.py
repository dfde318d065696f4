"""Recurrent mechanisms without a normalizer: what a query reads is brought to unit size, and a gate lets it through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ..capabilities import Capabilities
from ..kernels import RecurrentKernel
from ..layers import projected
from ..ops.precision import accumulated
from ..options import Option
from ..tokens import TokenInfo
from .base import RecurrentMechanism
from .gates import by_heads

OUTPUT_GATE = Option(
    "output_gate",
    "published",
    "recurrent attention without a normalizer: what its output is multiplied by, a function of the query's input; "
    "published is each mechanism's own",
    ("published", "swish", "sigmoid", "none"),
)
ACTIVATIONS = {"swish": F.silu, "sigmoid": F.sigmoid}


class NormedMechanism(RecurrentMechanism):
    """Each head's output is o / rms(o), times the gate's activation of W x of the query's input x.

    The sum of weights may be zero where scores are signed, so nothing is divided by it. Weights after the norm would
    make no difference, as the output projection follows. (Sun et al., 2023, arXiv:2307.08621, section 2.2; Yang et al.,
    2023, arXiv:2312.06635, section 4.4.)
    """

    averages = False
    capabilities = Capabilities(normalized=False, needs_inputs=True, needs_query_inputs=True)
    published_gate: ClassVar[str] = "swish"

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.features = head_dim
        chosen = self.chosen.output_gate
        self.activation = self.published_gate if chosen == "published" else chosen
        width = head_dim * num_heads
        self.output = None if self.activation == "none" else nn.Linear(width, width, bias=False)

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return q * self.head_dim**-0.5

    def recurrence(self) -> RecurrentKernel | None:
        """The recurrence without its output gate, as `kernel` needs it; None if the kernel does not know it."""
        return None

    def kernel(self) -> RecurrentKernel | None:
        recurrence = self.recurrence()
        if recurrence is None or self.output is None:
            return recurrence
        return replace(recurrence, output=self.output.weight, swish=self.activation == "swish")

    def gated(self, out: Tensor, q: Tensor, tokens: TokenInfo) -> Tensor:
        if self.output is None:
            return out
        x = tokens.inputs_or(q) if tokens.inputs is None else tokens.inputs  # in the precision of the model
        gate = accumulated(by_heads(projected(self.output, x), self.num_heads))
        return ACTIVATIONS[self.activation](gate) * out  # in this order it lies in memory as models go on with it
