"""What the attention of a trained model is asked while it reads a sentence, and the matrices that come of it.

Shapes: H heads, T queries, S keys, D head dimension; one sentence, so the batch is 1.
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
    """What one attention was given, just as its mechanism got it: q (1, H, T, D) and k (1, H, S, D).

    The matrices are computed when they are asked for; those of a whole model at once would fill the memory.
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
        """Normalised attention, (H, T, S)."""
        return self.mechanism.weights(self.q, self.k, query=self.query, key=self.key, mask=self.mask)[0]

    @torch.no_grad()
    def proportions(self) -> tuple[Tensor, Tensor] | None:
        """Those of the queries, (H or 1, T), and of the keys, (H or 1, S), in [0, 1]; None where there are none.

        One row means that all heads have the same (positions). Heads that share a network still have their own.
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
        found = self.proportions()
        if found is None:
            return None
        p_q, p_k = found
        return angle(p_q.unsqueeze(-1) - p_k.unsqueeze(-2)).cos()

    def hidden(self) -> Tensor:
        """True where the query may not see the key, (T, S)."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        if self.mask is None:
            return torch.zeros(queries, keys, dtype=torch.bool)
        return ~self.mask.mask(queries, keys)


def attentions_by_block(model: nn.Module) -> dict[str, list[MechanismAttention]]:
    """The swapped attention of every layer, for each block that the model has."""
    found: dict[str, list[MechanismAttention]] = {}
    for block in BLOCKS:
        if not hasattr(model, block.stack):
            continue
        layers = layers_of(getattr(model, block.stack))
        # By index: iterating may skip layers (layer drop).
        attentions = [getattr(layers[i], block.attribute, None) for i in range(len(layers))]
        parts = [part for part in attentions if isinstance(part, MechanismAttention)]
        if parts and len(parts) == len(attentions):
            found[block.name] = parts
    return found


def choose(model: nn.Module, block: str | None = None, layer: int | None = None, head: int | None = None) -> Choice:
    """The blocks and layers to look at, of which `layer` is counted from one; None is all.

    Raises LeapformerError for a block that the model does not have, and for a layer or head out of range.
    """
    found = attentions_by_block(model)
    if block is not None and block not in found:
        known = block in [one.name for one in BLOCKS]
        reason = "this model has no such block" if known else "there is no such block"
        raise LeapformerError(f"--block {block}: {reason}; choose from: {', '.join(found)}")
    wanted = found if block is None else {block: found[block]}
    if layer is None:
        chosen = {name: list(range(len(parts))) for name, parts in wanted.items()}
    else:
        chosen = {name: [layer - 1] for name, parts in wanted.items() if 0 < layer <= len(parts)}
    if not chosen:
        ranges = ", ".join(f"1 to {len(parts)} in {name}" for name, parts in wanted.items())
        raise LeapformerError(f"--layer {layer}: there is no such layer; choose from {ranges}, or all")
    for name, layers in chosen.items():
        heads = found[name][layers[0]].num_heads
        if head is not None and not 0 <= head < heads:
            raise LeapformerError(f"--head {head}: {name} has heads 0 to {heads - 1}; choose one of them, mean or all")
    return chosen


@torch.no_grad()
def capture(model: nn.Module, batch: Mapping[str, Tensor | list[Tensor]], chosen: Choice) -> list[Captured]:
    """One pass over a whole sentence (teacher forcing); what the chosen attentions were asked, by block and layer.

    `batch` holds the arguments of the model's `forward` with a batch of 1.
    """
    found: list[Captured] = []
    attentions = attentions_by_block(model)
    watched = [(block, layer, attentions[block][layer]) for block, layers in chosen.items() for layer in layers]
    try:
        for block, layer, attention in watched:
            watcher = partial(_record, found, block, layer, attention.mechanism)
            attention.context.watchers[attention.slot] = watcher
        model(**batch)
    finally:
        for _, _, attention in watched:
            attention.context.watchers.pop(attention.slot, None)
    order = list(chosen)
    return sorted(found, key=lambda one: (order.index(one.block), one.layer))


def _record(
    found: list[Captured], block: str, layer: int, mechanism: Mechanism, q: Tensor, k: Tensor, **where: Any
) -> None:
    found.append(Captured(block, layer, mechanism, q, k, **where))
