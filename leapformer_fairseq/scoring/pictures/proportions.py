"""Distributions of the proportions of LeaPformer and cosFormer, and shares of saturated ones.

A proportion network ends in a sigmoid: near 0 and 1 its gradient vanishes, and if all proportions are equal, the
reweighting has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...modules.capture import Captured
from ..names import plan_title
from .heatmaps import draw_shares

LOW, HIGH = 0.05, 0.95  # proportions below and above are saturated
Place = tuple[str, int, str]  # block, layer, mechanism


class Proportions:
    """Collects the proportions of the queries and keys of many sentences, by block, layer and mechanism."""

    def __init__(self) -> None:
        self.values: dict[Place, tuple[list[Tensor], list[Tensor]]] = {}

    def add(self, captured: Iterable[Captured]) -> None:
        """Add a sentence; mechanisms without proportions are skipped."""
        for layer in captured:
            both = layer.proportions()
            if both is not None:
                lists = self.values.setdefault((layer.block, layer.layer, layer.mechanism.name), ([], []))
                for values, new in zip(lists, both, strict=True):
                    values.append(new.flatten())

    def sides(self) -> list[tuple[Place, str, Tensor]]:
        """(place, "query" or "key", proportions (N,)): of every token in every head that has its own proportions."""
        return [
            (place, side, torch.cat(values))
            for place, lists in self.values.items()
            for side, values in zip(("query", "key"), lists, strict=True)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row per place and side: count, mean, standard deviation and saturation."""
        return [
            {"block": place[0], "layer": place[1] + 1, "mechanism": place[2], "side": side, **saturation(values)}
            for place, side, values in self.sides()
        ]

    def draw(self, path: Path) -> None:
        """Draw histograms, a panel per block and layer; saturated ranges are shaded."""
        panels: dict[str, dict[str, Any]] = {}
        for (block, layer, mechanism), side, values in self.sides():
            panels.setdefault(f"{block}, layer {layer + 1}, {plan_title(mechanism)}", {})[side] = values.numpy()
        draw_shares(panels, "proportion", ((0, LOW), (HIGH, 1)), path)


def saturation(values: Tensor) -> dict[str, float | int]:
    """Count, mean and standard deviation of proportions (N,), and the shares below LOW and above HIGH."""
    values = values.double()
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "below": float((values < LOW).double().mean()),
        "above": float((values > HIGH).double().mean()),
    }
