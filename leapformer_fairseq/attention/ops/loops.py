"""A function applied to one token after another, with states passed on: a loop node in a graph, or a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Maps the states and the tensors of one token to the states after it and its output.
Token = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], Tensor]]


def over_tokens(run: Token, states: Sequence[Tensor], tokens: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The states after all tokens, and the outputs, (T, ..). `tokens` are tensors with T tokens in dimension 0."""
    if torch.compiler.is_exporting():
        from torch._higher_order_ops.scan import scan  # torch.export turns it into a Scan node of ONNX

        def cloned(states: list[Tensor], parts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            after, out = run(states, parts)
            return [x.clone() for x in after], out  # the loop must not return views of its inputs

        after, out = scan(cloned, [x.contiguous() for x in states], list(tokens), dim=0)
        return after, out
    after, outputs = list(states), []
    for parts in zip(*tokens, strict=True):
        after, out = run(after, list(parts))
        outputs.append(out)
    return after, torch.stack(outputs)
