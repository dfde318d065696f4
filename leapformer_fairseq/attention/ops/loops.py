"""A function applied to one token after the other, carrying states: a loop in a graph, and in Python otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Of the states and the parts of a token: the states after it, and its output.
Token = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], Tensor]]


def over_tokens(run: Token, states: Sequence[Tensor], tokens: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The states after all tokens, and all outputs, (T, ..); `tokens` have T tokens in their first dimension."""
    if torch.compiler.is_exporting():
        from torch._higher_order_ops.scan import scan  # what torch.export turns into a Scan of ONNX

        def cloned(states: list[Tensor], parts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            after, out = run(states, parts)
            return [x.clone() for x in after], out  # outputs of the loop may not be views of its inputs

        after, out = scan(cloned, [x.contiguous() for x in states], list(tokens), dim=0)
        return after, out
    after, outputs = list(states), []
    for parts in zip(*tokens, strict=True):
        after, out = run(after, list(parts))
        outputs.append(out)
    return after, torch.stack(outputs)
