"""One decoding step with fused projections, which generation runs for every token and layer.

One matrix product, with weights that were transposed once, computes queries, keys and values. The mechanism's `write`
and `read` follow, or a kernel (`linear.py`, `recurrent.py`, `slots.py`).

Shapes: B batch entries, H heads, D head dimension, E value dimension, C width of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..kernels import Projections
from ..linear.base import LinearState
from ..mechanism import Mechanism, State
from ..ops import scan
from ..tokens import TokenInfo

_Sizes = TypeVar("_Sizes")
Columns = Callable[[int, int], Tensor]  # of a prompt's projections, from one to another, as (B, H, T, ..)


class Step:
    """The step of one attention block, self-attention or cross-attention.

    It holds transposed copies of the projections' weights, which makes a product with few tokens a quarter faster, and
    is valid until the weights change. `key`, `value` and `end` are the columns of the product where keys begin, values
    begin, and values end.
    """

    #: whether the kernel for whole sequences computes the mechanism; set by subclasses
    reads_prompts = False

    @staticmethod
    def fits(kernel: Any, projections: Projections) -> bool:
        """Whether a step of this class computes what its kind of description says."""
        return True

    def __init__(self, mechanism: Mechanism, projections: Projections, ones: bool = False) -> None:
        """`ones`: add a channel that is always 1 to the values of each head."""
        q, out, k, v = projections
        self.mechanism, self.heads, self.self_attention = mechanism, mechanism.num_heads, k is not None
        self.dim, self.ones = q.out_features // self.heads, ones
        parts = [affine(x) for x in (q, k) if x is not None]
        if v is not None:
            parts.append(_with_ones(*affine(v), self.heads) if ones else affine(v))
        self.weight = torch.cat([weight for weight, _ in parts]).t().contiguous()
        self.bias = torch.cat([bias for _, bias in parts])
        self.key, self.value, self.end = q.out_features, 2 * q.out_features, self.weight.shape[1]
        out_weight, self.out_bias = affine(out)
        self.out_weight = out_weight.t().contiguous()
        self._sizes_by_shape: dict[tuple[int, ...], Any] = {}

    def __call__(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        """Output (B, C) of tokens x (B, C) at `position` (from 1).

        In self-attention their keys and values are written to the state, in place, before they read it. In
        cross-attention they read the state of B sequences, or of B / n sequences if n neighbouring batch entries share
        one. `lengths` (B,) are the lengths of the sequences, if known. Raises ValueError if the batch does not fit the
        state.
        """
        batch, states = x.shape[0], state.batch_size
        if batch != states and (self.self_attention or not states or batch % states or not batch):
            raise ValueError(
                f"{batch} batch entries for the state of {states} sequences; reorder the state when the batch changes"
            )
        heads = self.attend(torch.addmm(self.bias, x, self.weight), x, state, position, lengths)
        return torch.addmm(self.out_bias, heads.to(self.out_bias.dtype), self.out_weight)

    def prompt(
        self, x: Tensor, state: State | None, by_heads: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, State] | None:
        """What the next tokens x read in self-attention, (B, H, T, E), and the state after them, by one kernel.

        `by_heads` brings projections in the layout of x to (B, H, T, D). A state of None is empty. The result is None
        if the kernel for whole sequences is not there, or cannot read these tokens.
        """
        if not self.reads_prompts or not isinstance(state, LinearState | None) or not scan.runs(x):
            return None
        projected = torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])

        def columns(start: int, stop: int) -> Tensor:
            return by_heads(projected[..., start:stop])

        out, last = self.read_prompt(columns, None if state is None else state.kv)
        return out, LinearState(last)

    def read_prompt(self, columns: Columns, first: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result of `prompt` and K^T V after it, given K^T V before it; only if `reads_prompts`."""
        raise NotImplementedError

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        """What the heads read, concatenated, (B, H * E), given all projections of x, also concatenated."""
        q = self._heads(projected[:, : self.key])
        inputs = x.unsqueeze(1) if self.mechanism.capabilities.needs_inputs else None
        tokens = TokenInfo(torch.full((1, 1), position, device=x.device), lengths, inputs=inputs)
        if not self.self_attention:
            return self.mechanism.read_shared(state, q, tokens, len(x) // state.batch_size).flatten(1)
        k = self._heads(projected[:, self.key : self.value])
        v = self._heads(projected[:, self.value : self.end])
        v = v[..., :-1] if self.ones else v
        k = v if self.mechanism.capabilities.keys_are_values else k
        out, after = self.mechanism.extend(state, q, k, v, tokens)
        if after is not state:
            vars(state).update(vars(after))
        return out.flatten(1)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, H D) to (B, H, 1, D)."""
        return x.view(len(x), self.heads, 1, -1)

    def sizes_of(self, shape: tuple[int, ...], make: Callable[..., _Sizes]) -> _Sizes:
        """The sizes that a kernel gets for a batch and a state of this shape: `make(*shape)`, called once per shape."""
        if shape not in self._sizes_by_shape:
            self._sizes_by_shape[shape] = make(*shape)
        return self._sizes_by_shape[shape]

    def also_project(self, weight: Tensor, bias: Tensor) -> None:
        """Append weight x + bias to what is projected."""
        self.weight = torch.cat([self.weight, weight.t().to(self.weight)], 1)
        self.bias = torch.cat([self.bias, bias.to(self.bias)])


def affine(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of a projection; zeros if it has no bias."""
    weight = linear.weight.detach()
    return weight, weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()


def _with_ones(weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The projection to values, with an additional channel per head that is always 1."""
    weight, bias = weight.unflatten(0, (heads, -1)), bias.unflatten(0, (heads, -1))
    weight = torch.cat([weight, weight.new_zeros(heads, 1, weight.shape[2])], 1)
    return weight.flatten(0, 1), torch.cat([bias, bias.new_ones(heads, 1)], 1).flatten()
