"""One decoding step with fused projections: what generation runs for every token and layer.

Queries, keys and values come out of one product, the state changes in place, and what does not depend on the token is
prepared once. What follows the projections is the mechanism's `write` and `read`, or a kernel where one serves.

Shapes: B batch entries, H heads, D head dimension, E value dimension, C width of the block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .tokens import TokenInfo


class Projections(NamedTuple):
    """The projections of a block; cross-attention, whose keys are in the state, has no `k` and `v`."""

    q: nn.Linear
    out: nn.Linear
    k: nn.Linear | None = None
    v: nn.Linear | None = None


class Step(ABC):
    """The step of one attention block, self-attention or cross-attention.

    It holds copies of the projections' weights, transposed, which makes a product with few tokens a quarter faster; so
    it serves as long as they do not change.
    """

    def __init__(self, heads: int, projections: Projections, ones: bool = False) -> None:
        """`ones`: the values get one more channel per head that is always 1."""
        q, out, k, v = projections
        self.heads, self.dim, self.self_attention = heads, q.out_features // heads, k is not None
        parts = [_affine(x) for x in (q, k) if x is not None]
        if v is not None:
            parts.append(_with_ones(*_affine(v), heads) if ones else _affine(v))
        self.weight = torch.cat([weight for weight, _ in parts]).t().contiguous()
        self.bias = torch.cat([bias for _, bias in parts])
        out_weight, self.out_bias = _affine(out)
        self.out_weight = out_weight.t().contiguous()

    def __call__(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        """Output (B, C) of tokens x (B, C) at `position` (from 1).

        Self-attention: their keys and values are written to the state, in place, and they see it. Cross-attention: they
        see the state of B sequences, or of B / n, each shared by n neighbours. `lengths` (B,) are those of the
        sequences, if known. Raises ValueError where the batch does not fit the state.
        """
        states = state.batch_size
        if len(x) != states and (self.self_attention or not states or len(x) % states or not len(x)):
            raise ValueError(
                f"{len(x)} batch entries for the state of {states} sequences; reorder the state when the batch changes"
            )
        heads = self.attend(torch.addmm(self.bias, x, self.weight), x, state, position, lengths)
        return torch.addmm(self.out_bias, heads.to(self.out_bias.dtype), self.out_weight)

    @abstractmethod
    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        """What the heads read, concatenated, (B, H * E), given all projections of x, concatenated."""

    def also_project(self, weight: Tensor, bias: Tensor) -> None:
        """Append weight x + bias to what is projected."""
        self.weight = torch.cat([self.weight, weight.t().to(self.weight)], 1)
        self.bias = torch.cat([self.bias, bias.to(self.bias)])


def at(position: int, like: Tensor, lengths: Tensor | None = None) -> TokenInfo:
    """One token per sequence at a position (from 1), on the device of `like`."""
    return TokenInfo(torch.full((1, 1), position, device=like.device), lengths)


def read_shared(q: Tensor, states: int, read: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `read` to queries (B, H, 1, D) of which neighbours share one of so many states, (B, H, 1, E)."""
    together = q.unflatten(0, (states, -1)).squeeze(3).transpose(1, 2)
    return read(together).transpose(1, 2).flatten(0, 1).unsqueeze(2)


def _affine(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of a projection; a bias of zeros where it has none."""
    weight = linear.weight.detach()
    return weight, weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()


def _with_ones(weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The projection to values with one more channel per head that is always 1."""
    weight, bias = weight.unflatten(0, (heads, -1)), bias.unflatten(0, (heads, -1))
    weight = torch.cat([weight, weight.new_zeros(heads, 1, weight.shape[2])], 1)
    return weight.flatten(0, 1), torch.cat([bias, bias.new_ones(heads, 1)], 1).flatten()
