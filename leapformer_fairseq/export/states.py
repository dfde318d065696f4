"""The states of a model's attention as named tensors: inputs and outputs of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention import State, TokenInfo
from ..attention.softmax import GraphCache, Softmax
from ..modules import attentions
from ..modules.attention import MechanismAttention
from ..runtime.folder import CROSS, HEARD, KEYS, LENGTH, REAL, SELF, Shapes
from ..support.errors import LeapformerError

BLOCK = {SELF: "decoder self-attention", CROSS: "cross-attention", HEARD: "encoder self-attention"}


@dataclass(frozen=True)
class Held:
    """The state of one attention block.

    side:   SELF, CROSS or HEARD, see `BLOCK`.
    shapes: shapes of its tensors by name, without the batch dimension, which comes first; a size of 0 grows.
    masks:  the names of those that hold truth values.
    """

    attention: MechanismAttention
    side: str
    layer: int
    kind: type[State]
    shapes: Mapping[str, tuple[int, ...]]
    masks: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The names of its tensors in a graph, such as self.0.kv."""
        return [f"{self.side}.{self.layer}.{name}" for name in self.shapes]

    def empty(self, batch: int) -> State:
        """The state before anything is written."""
        state = self.attention.empty_state(batch)
        assert state is not None  # `held` refuses others
        return state

    def taken(self, tensors: Iterator[Tensor]) -> State:
        """A state of this block, built from the next tensors; masks are 0 and 1 in graphs."""
        given = {name: next(tensors) for name in self.shapes}
        return self.kind(**{name: x > 0.5 if name in self.masks else x for name, x in given.items()})


def held(stack: Any, side: str) -> list[Held]:
    """The states of an encoder's or decoder's self-attention or cross-attention (`side`), layer by layer.

    Raises LeapformerError for a mechanism whose state graphs cannot hold, or that has a carry.
    """
    blocks: list[Held] = []
    for attention in attentions(stack):
        if attention.self_attention == (side == CROSS):
            continue
        layer, mechanism = len(blocks), attention.mechanism
        where = f"{BLOCK[side]}, layer {layer + 1}: {mechanism.name}"
        if mechanism.capabilities.carry_width is not None:
            remedy = mechanism.capabilities.carry_remedy or "leave it out"
            raise LeapformerError(f"{where} hands something on to the next layer, which graphs do not; {remedy}")
        state = attention.empty_state(1)
        if state is None:
            raise LeapformerError(f"{where} has a state that graphs cannot hold; export a model without it")
        tensors = state.tensors()
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}
        masks = frozenset(name for name, tensor in tensors.items() if tensor.dtype == torch.bool)
        blocks.append(Held(attention, side, layer, type(state), shapes, masks))
    return blocks


@dataclass(frozen=True)
class Keys:
    """The keys of a source, from which decoding steps compute the attention weights of one layer.

    The state of softmax holds them. Sums do not, so keys become states of their own, which grow with the source.
    """

    block: Held

    @property
    def shapes(self) -> Shapes:
        """The shapes of these states by name, as `shapes_of`; none if the block's own state holds the keys."""
        if issubclass(self.block.kind, GraphCache):
            return {}
        attention, name = self.block.attention, f"{CROSS}.{self.block.layer}"
        return {f"{name}.{KEYS}": [attention.num_heads, 0, attention.mechanism.head_dim], f"{name}.{REAL}": [0]}

    def written(self, before: Sequence[Tensor], source: Tensor, tokens: TokenInfo) -> list[Tensor]:
        """These states after more of a source (S, B, C) is added to those `before`, if there are any."""
        if not self.shapes:
            return []
        assert tokens.keep is not None  # sources are padded
        keys = self.block.attention.source_keys(source, tokens)
        new = [keys, tokens.keep.to(keys.dtype)]
        return [torch.cat([before[i], new[i]], axis) for i, axis in ((0, 2), (1, 1))] if before else new

    def taken(self, state: State, tensors: Iterator[Tensor]) -> tuple[Tensor, TokenInfo]:
        """The keys (B, H, S, D) and their tokens, given the block's state and the tensors of these states."""
        if self.shapes:
            keys = next(tensors)
            return keys, TokenInfo.whole(keys.shape[2], next(tensors) > 0.5)
        keys, _, keep = state.of(GraphCache).columns()
        # A cache may hold more than the keys (`CachedMechanism._cached`).
        return keys[..., : self.block.attention.mechanism.head_dim], TokenInfo.whole(keys.shape[2], keep)


def keys_of(decoder: Any, layer: int) -> Keys:
    """The keys of cross-attention in a decoder layer, from 1, or from the last backwards, from -1.

    Raises LeapformerError if there is no such layer, and for mechanisms whose weights graphs do not compute.
    """
    blocks = held(decoder, CROSS)
    if not blocks:
        raise LeapformerError("--alignments: the model has no cross-attention, so no source to align; leave it out")
    if not 0 < abs(layer) <= len(blocks):
        raise LeapformerError(f"--alignments {layer}: the decoder has the layers 1 to {len(blocks)}")
    block = blocks[layer - (layer > 0)]
    mechanism = block.attention.mechanism
    if mechanism.capabilities.needs_inputs:
        raise LeapformerError(
            f"--alignments {layer}: {BLOCK[CROSS]}, layer {block.layer + 1}: the weights of {mechanism.name} depend on "
            "the encoder's states, which steps do not have; name a layer with softmax, entmax or linear attention"
        )
    return Keys(block)


def tensors_of(states: Iterable[State]) -> list[Tensor]:
    """The tensors of all states, in the order of `shapes_of`; masks as 0 and 1, in the type of the others."""
    found = [[*state.tensors().values()] for state in states]
    return [x.to(tensors[0].dtype) if x.dtype == torch.bool else x for tensors in found for x in tensors]


def shapes_of(blocks: Sequence[Held]) -> Shapes:
    """The shapes of all tensors by name, without the batch dimension."""
    return {
        name: list(shape) for block in blocks for name, shape in zip(block.names, block.shapes.values(), strict=True)
    }


def shared_of(decoder: Any) -> list[str]:
    """The names of those states of self-attention that stay where they are, in memory that steps share."""
    blocks = (block for block in held(decoder, SELF) if type(block.attention.mechanism) is Softmax)
    return [name for block in blocks for name in block.names]


def starts_of(decoder: Any) -> dict[str, list[Any]]:
    """The initial values of those tensors of a decoder's states that are not zeros, without the batch dimension."""
    first = {
        name: tensor[0].float()
        for block in (*held(decoder, SELF), *held(decoder, CROSS))
        for name, tensor in zip(block.names, block.empty(1).tensors().values(), strict=True)
    }
    return {name: tensor.tolist() for name, tensor in first.items() if tensor.any()}


def source_shapes(decoder: Any, keys: Keys | None = None) -> Shapes:
    """The shapes of what a decoder's steps need from a source: states of cross-attention, keys, a predicted length."""
    length: Shapes = {LENGTH: []} if decoder.context.facts.knows_lengths else {}
    return {**shapes_of(held(decoder, CROSS)), **({} if keys is None else keys.shapes), **length}
