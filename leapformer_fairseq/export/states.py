"""The states of a model's attention as tensors with names: what goes into a graph and comes out of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..attention import State
from ..modules import attentions
from ..modules.attention import MechanismAttention
from ..runtime.folder import CROSS, HEARD, LENGTH, SELF, Shapes
from ..support.errors import LeapformerError

BLOCK = {SELF: "decoder self-attention", CROSS: "cross-attention", HEARD: "encoder self-attention"}


@dataclass(frozen=True)
class Held:
    """The state of one attention block.

    shapes: of its tensors by name, without the batch dimension, which is the first.
    """

    attention: MechanismAttention
    side: str
    layer: int
    kind: type[State]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def names(self) -> list[str]:
        """Of its tensors in a graph, such as self.0.kv."""
        return [f"{self.side}.{self.layer}.{name}" for name in self.shapes]

    def taken(self, tensors: Iterator[Tensor]) -> State:
        """The state made of the next tensors."""
        return self.kind(**{name: next(tensors) for name in self.shapes})


def held(stack: Any, side: str) -> list[Held]:
    """The states of a stack's self-attention or cross-attention, layer by layer.

    Raises LeapformerError for a mechanism whose state grows, or that asks for more than what was read.
    """
    found: list[Held] = []
    for attention in attentions(stack):
        if attention.self_attention == (side == CROSS):
            continue
        layer, mechanism = len(found), attention.mechanism
        where = f"{BLOCK[side]}, layer {layer + 1}: {mechanism.name}"
        if not mechanism.capabilities.constant_state:
            raise LeapformerError(f"{where} has a state that grows; export a model without it")
        if mechanism.capabilities.carry_width is not None:
            raise LeapformerError(f"{where} hands something on to the next layer, which graphs do not; leave it out")
        state = attention.empty_state(1)
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in state.tensors().items()}
        found.append(Held(attention, side, layer, type(state), shapes))
    return found


def tensors_of(states: Iterable[State]) -> list[Tensor]:
    """All tensors, in the order of `shapes_of`."""
    return [tensor for state in states for tensor in state.tensors().values()]


def shapes_of(blocks: Sequence[Held]) -> Shapes:
    """Shapes of all tensors by name, without the batch dimension."""
    return {
        name: list(shape) for block in blocks for name, shape in zip(block.names, block.shapes.values(), strict=True)
    }


def starts_of(decoder: Any) -> dict[str, list[Any]]:
    """Of a decoder's states, without the batch dimension, those that are not zeros before anything was read."""
    first = {
        name: tensor[0].float()
        for block in (*held(decoder, SELF), *held(decoder, CROSS))
        for name, tensor in zip(block.names, block.attention.empty_state(1).tensors().values(), strict=True)
    }
    return {name: tensor.tolist() for name, tensor in first.items() if tensor.any()}


def source_shapes(decoder: Any) -> Shapes:
    """The same of all that a decoder's steps need of a source: cross-attention's, and the predicted length."""
    length: Shapes = {LENGTH: []} if decoder.context.facts.knows_lengths else {}
    return {**shapes_of(held(decoder, CROSS)), **length}
