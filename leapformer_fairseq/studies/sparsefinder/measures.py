"""Agreement of a predicted graph with the graph of full entmax (Treviso et al., 2022).

Shapes: H heads, T queries, S keys, W windows; one sentence without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Measures(NamedTuple):
    """Measures per head, (.., H), or averaged.

    sparsity:  1 - |predicted| / |visible pairs|.
    recall:    |predicted and gold| / |gold|.
    precision: |predicted and gold| / |predicted|; 1 where nothing is predicted.
    exact:     the share, of queries with an edge, whose gold edges are all predicted, so that their output is exact.
    """

    sparsity: Tensor
    recall: Tensor
    precision: Tensor
    exact: Tensor


def measure(predicted: Tensor, gold: Tensor, seen: Tensor) -> Measures:
    """Compare graphs (H, T, S); `seen` (T, S) is True where a query sees a key."""
    predicted = predicted & seen
    hits, edges, golden = ((x).sum((1, 2)).double() for x in (predicted & gold, predicted, gold))
    queries = gold.any(-1)
    exact = (queries & ~(gold & ~predicted).any(-1)).sum(-1) / queries.sum(-1)
    return _ratios(hits, edges, golden, seen.sum().double(), exact)


def measure_windows(predicted: Tensor, gold: Tensor, seen: Tensor, windows: Sequence[int]) -> Measures:
    """Compare, like `measure`, the predicted graph united with each window; returns measures (W, H).

    Window w holds the pairs with |i - j| <= w // 2, where queries are the last T of S tokens; a window of 0 holds none.
    All windows use one count of edges by their distance |i - j|.
    """
    heads, queries, keys = gold.shape
    at = torch.arange(keys, device=gold.device)
    away = (at[keys - queries :].unsqueeze(1) - at).abs()
    predicted = predicted & seen

    def by_distance(graph: Tensor) -> Tensor:
        counts = torch.zeros(len(graph), keys, dtype=torch.float64, device=graph.device)
        return counts.scatter_add_(1, away.flatten().expand(len(graph), -1), graph.flatten(1).double())

    pairs, golden = by_distance(seen.unsqueeze(0)), by_distance(gold)
    edges, hits = by_distance(predicted), by_distance(predicted & gold)
    farthest_missed = torch.where(gold & ~predicted, away, -1).amax(-1)
    with_edge = gold.any(-1)
    measures = []
    for window in windows:
        reach = window // 2 if window else -1
        inside = at <= reach
        exact = (with_edge & (farthest_missed <= reach)).sum(-1) / with_edge.sum(-1)
        all_hits = torch.where(inside, golden, hits).sum(-1)
        all_edges = torch.where(inside, pairs, edges).sum(-1)
        measures.append(_ratios(all_hits, all_edges, golden.sum(-1), pairs.sum(), exact))
    return Measures(*(torch.stack(values) for values in zip(*measures, strict=True)))


def _ratios(hits: Tensor, edges: Tensor, golden: Tensor, pairs: Tensor, exact: Tensor) -> Measures:
    precision = torch.where(edges > 0, hits / edges.clamp_min(1), 1.0)
    return Measures(1 - edges / pairs, hits / golden, precision, exact.double())
