"""Recurrent mechanisms without a normalizer: sums are scaled to unit RMS, then multiplied by an output gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ..capabilities import Capabilities
from ..kernels import RecurrentKernel
from ..layers import by_heads, projected
from ..ops.precision import accumulated
from ..options import Option
from ..tokens import TokenInfo
from .base import RecurrentMechanism

OUTPUT_GATE = Option(
    "output_gate",
    "published",
    "recurrent attention without a normalizer: what its output is multiplied by, a function of the query's input; "
    "published is each mechanism's own",
    ("published", "swish", "sigmoid", "none"),
)
ACTIVATIONS = {"swish": F.silu, "sigmoid": F.sigmoid}


class NormedMechanism(RecurrentMechanism):
    """Each head's output is act(W x) o / rms(o): o is what the query reads, x the query's input to the block.

    Scores have signs and may sum to zero, so nothing is divided by their sum. The norm has no learned weights, since
    the output projection that follows can take them in. (Sun et al., 2023, arXiv:2307.08621, section 2.2; Yang et al.,
    2023, arXiv:2312.06635, section 4.4.)
    """

    averages = False
    capabilities = Capabilities(normalized=False, needs_inputs=True, needs_query_inputs=True)
    #: the activation act of the published output gate, or "none"
    published_gate: ClassVar[str] = "swish"

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        chosen = self.chosen.output_gate
        self.activation = self.published_gate if chosen == "published" else chosen
        width = head_dim * num_heads
        self.output = None if self.activation == "none" else nn.Linear(width, width, bias=False)
        self.value_dim = None if self.output is None else head_dim

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return q * self.head_dim**-0.5

    def recurrence(self) -> RecurrentKernel | None:
        """The kernel's description without the output gate; None if the fused step does not support the recurrence."""
        return None

    def kernel(self) -> RecurrentKernel | None:
        recurrence = self.recurrence()
        if recurrence is None or self.output is None:
            return recurrence
        return replace(recurrence, output=self.output.weight, swish=self.activation == "swish")

    def gated(self, out: Tensor, q: Tensor, tokens: TokenInfo) -> Tensor:
        if self.output is None:
            return out
        logits = projected(self.output, tokens.required_inputs())  # in the precision of the model
        gate = accumulated(by_heads(logits, self.num_heads))
        return ACTIVATIONS[self.activation](gate) * out  # the result takes gate's memory layout, which models need next
