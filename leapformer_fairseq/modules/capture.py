"""Captures the inputs of a trained model's attention for one sentence, and computes matrices from them.

Shapes: H heads, T queries, S keys, D head dimension; the batch is 1, one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Averaging, LinearMechanism, Mask, Mechanism, TokenInfo
from ..attention.linear.reweighting import CosReweighted, angle
from ..attention.ops.precision import accumulated
from ..support.errors import LeapformerError
from .attention import MechanismAttention
from .swap import BLOCKS, layers_of

Choice = dict[str, list[int]]  # block -> layers, from 0


@dataclass(frozen=True)
class Captured:
    """The inputs of one attention's mechanism: q (1, H, T, D), k (1, H, S, D), their tokens and the mask.

    Matrices are computed on request, because those of a whole model at once would fill the memory.
    """

    block: str
    layer: int
    mechanism: Mechanism
    q: Tensor
    k: Tensor
    query: TokenInfo
    key: TokenInfo
    mask: Mask

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The attention weights, (H, T, S)."""
        return self.mechanism.weights(self.q, self.k, query=self.query, key=self.key, mask=self.mask)[0]

    @torch.no_grad()
    def proportions(self) -> tuple[Tensor, Tensor] | None:
        """Proportions of queries (H or 1, T) and keys (H or 1, S), in [0, 1]; None if the mechanism has none.

        One row means that they are the same for all heads, as with positions; heads that share a network differ.
        """
        if not isinstance(self.mechanism, LinearMechanism | Averaging):
            return None
        queries = self.mechanism.map_queries(accumulated(self.q), self.query)
        keys = self.mechanism.map_keys(accumulated(self.k), self.key)
        if not isinstance(queries, CosReweighted) or not isinstance(keys, CosReweighted):
            return None
        return queries.proportion[0, ..., 0], keys.proportion[0, ..., 0]

    def reweighting(self) -> Tensor | None:
        """cos(pi/2 (p_q - p_k)), (H or 1, T, S), arXiv:2405.13046, eq. 7-9; None for mechanisms without proportions."""
        proportions = self.proportions()
        if proportions is None:
            return None
        p_q, p_k = proportions
        return angle(p_q.unsqueeze(-1) - p_k.unsqueeze(-2)).cos()

    def hidden(self) -> Tensor:
        """True where the mask hides the key from the query, (T, S)."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        if self.mask is None:
            return torch.zeros(queries, keys, dtype=torch.bool)
        return ~self.mask.mask(queries, keys)


def attentions_by_block(model: nn.Module) -> dict[str, list[MechanismAttention]]:
    """The swapped attention of every layer, for each block that is swapped in all layers."""
    by_block: dict[str, list[MechanismAttention]] = {}
    for block in BLOCKS:
        if not hasattr(model, block.stack):
            continue
        layers = layers_of(getattr(model, block.stack))
        # By index, because iteration skips layers under layer drop.
        attentions = [getattr(layers[i], block.attribute, None) for i in range(len(layers))]
        parts = [part for part in attentions if isinstance(part, MechanismAttention)]
        if parts and len(parts) == len(attentions):
            by_block[block.name] = parts
    return by_block


def choose(model: nn.Module, block: str | None = None, layer: int | None = None, head: int | None = None) -> Choice:
    """The chosen blocks, each with its chosen layers; `layer` counts from 1, `head` from 0, and None means all.

    Raises LeapformerError for a block that the model does not have, and for a layer or head out of range.
    """
    by_block = attentions_by_block(model)
    if block is not None and block not in by_block:
        known = block in [known_block.name for known_block in BLOCKS]
        reason = "this model has no such block" if known else "there is no such block"
        raise LeapformerError(f"--block {block}: {reason}; choose from: {', '.join(by_block)}")
    wanted = by_block if block is None else {block: by_block[block]}
    if layer is None:
        chosen = {name: list(range(len(parts))) for name, parts in wanted.items()}
    else:
        chosen = {name: [layer - 1] for name, parts in wanted.items() if 0 < layer <= len(parts)}
    if not chosen:
        ranges = ", ".join(f"1 to {len(parts)} in {name}" for name, parts in wanted.items())
        raise LeapformerError(f"--layer {layer}: there is no such layer; choose from {ranges}, or all")
    for name, layers in chosen.items():
        heads = by_block[name][layers[0]].num_heads
        if head is not None and not 0 <= head < heads:
            raise LeapformerError(f"--head {head}: {name} has heads 0 to {heads - 1}; choose one of them, mean or all")
    return chosen


@torch.no_grad()
def capture(model: nn.Module, batch: Mapping[str, Tensor | list[Tensor]], chosen: Choice) -> list[Captured]:
    """Run one pass over a whole sentence (teacher forcing); return the chosen attentions' inputs by block and layer.

    `batch` has the arguments of the model's `forward`, with a batch of 1.
    """
    captured: list[Captured] = []
    attentions = attentions_by_block(model)
    watched = [(block, layer, attentions[block][layer]) for block, layers in chosen.items() for layer in layers]
    try:
        for block, layer, attention in watched:
            watcher = partial(_record, captured, block, layer, attention.mechanism)
            attention.context.watchers[attention.slot] = watcher
        model(**batch)
    finally:
        for _, _, attention in watched:
            attention.context.watchers.pop(attention.slot, None)
    order = list(chosen)
    return sorted(captured, key=lambda part: (order.index(part.block), part.layer))


def _record(
    captured: list[Captured], block: str, layer: int, mechanism: Mechanism, q: Tensor, k: Tensor, **where: Any
) -> None:
    captured.append(Captured(block, layer, mechanism, q, k, **where))
