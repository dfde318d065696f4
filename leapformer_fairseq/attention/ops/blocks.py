"""Attention of blocks of queries to chosen blocks of keys: only their scores are computed.

Shapes: B batch, H heads, T queries, S keys, D head dimension, E value dimension, z tokens of a block, N and M blocks of
queries and keys, m chosen blocks of keys for each block of queries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: weights (B, H, N, z, m * z) of queries (.., z, D) and keys (.., m * z, D), for True where a query may look
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]


def in_blocks(x: Tensor, size: int) -> Tensor:
    """(B, H, T, D) as (B, H, N, z, D), filled up with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))


def attend_chosen(q: Tensor, k: Tensor, v: Tensor, real: Tensor, chosen: Tensor, used: Tensor, weigh: Weigh) -> Tensor:
    """Output (B, H, N, z, E) of blocks q, k and v, (B, H, N, z, D), where block n sees the keys of blocks chosen[n].

    `real`, (B or 1, M, z), is False at padded keys. No block is in `chosen`, (B, H, N, m), twice where it is `used`.
    """
    rows = torch.arange(len(q), device=q.device)[:, None, None, None]
    visible = used.unsqueeze(-1) & real.expand(len(q), -1, -1)[rows, chosen]  # (B, H, N, m, z)
    weights = weigh(q, gathered(k, chosen), visible.flatten(-2).unsqueeze(-2))
    return weights @ gathered(v, chosen).to(weights.dtype)


def gathered(x: Tensor, chosen: Tensor) -> Tensor:
    """The tokens of chosen blocks, (B, H, N, m * z, D), of blocks x (B, H, M, z, D)."""
    batch, heads, blocks, size, dim = x.shape
    base = torch.arange(batch * heads, device=x.device).view(batch, heads, 1, 1) * blocks
    rows = x.reshape(batch * heads * blocks, size * dim).index_select(0, (chosen + base).flatten())
    return rows.view(batch, heads, chosen.shape[2], chosen.shape[3] * size, dim)


def chosen_blocks(graph: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The blocks that a graph (B, H, N, M) chooses, at most `most` a row, and whether they are used: (B, H, N, m)."""
    order = graph.byte().argsort(dim=-1, descending=True, stable=True)[..., :most]
    return order, graph.gather(-1, order)


def of_tokens(graph: Tensor, query_block: Tensor, key_block: Tensor) -> Tensor:
    """A graph of blocks (B, H, N, M) as one of tokens, (B, H, T, S), of blocks (B or 1, T) and (B or 1, S)."""
    batch, heads, _, columns = graph.shape
    graph = graph.gather(2, query_block[:, None, :, None].expand(batch, heads, -1, columns))
    return graph.gather(3, key_block[:, None, None, :].expand(batch, heads, graph.shape[2], -1))


def real_first(keep: Tensor) -> Tensor:
    """The order (B, T) in which padding comes last."""
    return (~keep).byte().argsort(dim=1, stable=True)


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """Tokens `order`, (B or 1, T), of (B, H, S, D)."""
    return x.gather(2, order[:, None, :, None].expand(len(x), x.shape[1], -1, x.shape[3]))
