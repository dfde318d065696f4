"""Block-sparse attention: each block of queries is compared only with the blocks of keys chosen for it.

Shapes: B batch, H heads, T queries, S keys, D head dimension, E value dimension; blocks of z tokens, N blocks of
queries, M blocks of keys, m blocks of keys chosen for each block of queries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: Maps queries (.., z, D), keys (.., m * z, D) and a mask, True where a query may attend, to weights (.., z, m * z).
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]


def in_blocks(x: Tensor, size: int) -> Tensor:
    """Cut (B, H, T, D) into blocks of `size` tokens, (B, H, N, z, D); zeros fill the last one."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))


def attend_chosen(q: Tensor, k: Tensor, v: Tensor, real: Tensor, chosen: Tensor, used: Tensor, weigh: Weigh) -> Tensor:
    """Output (B, H, N, z, E) of blocks q (B, H, N, z, D), k (B, H, M, z, D) and v (B, H, M, z, E).

    Block n of queries sees the blocks of keys chosen[.., n, :]. `chosen` and `used` are (B, H, N, m); entries that are
    not `used` are ignored, the others of a row must differ. `real`, (B or 1, M, z), is False at padded keys.
    """
    rows = torch.arange(len(q), device=q.device)[:, None, None, None]
    visible = used.unsqueeze(-1) & real.expand(len(q), -1, -1)[rows, chosen]  # (B, H, N, m, z)
    weights = weigh(q, gathered(k, chosen), visible.flatten(-2).unsqueeze(-2))
    return weights @ gathered(v, chosen).to(weights.dtype)


def gathered(x: Tensor, chosen: Tensor) -> Tensor:
    """The tokens (B, H, N, m * z, D) of the chosen ones, (B, H, N, m), of blocks x (B, H, M, z, D)."""
    batch, heads, blocks, size, dim = x.shape
    base = torch.arange(batch * heads, device=x.device).view(batch, heads, 1, 1) * blocks
    rows = x.reshape(batch * heads * blocks, size * dim).index_select(0, (chosen + base).flatten())
    return rows.view(batch, heads, chosen.shape[2], chosen.shape[3] * size, dim)


def chosen_blocks(graph: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """`chosen` and `used` for `attend_chosen`, given a graph (B, H, N, M) that is True where a block is to be seen.

    m is at most `most`; a row with fewer blocks is filled with others, which are not used.
    """
    order = graph.byte().argsort(dim=-1, descending=True, stable=True)[..., :most]
    return order, graph.gather(-1, order)


def of_tokens(graph: Tensor, query_block: Tensor, key_block: Tensor) -> Tensor:
    """Expand a graph of blocks (B, H, N, M) to tokens, (B, H, T, S), given each token's block, (B or 1, T or S)."""
    batch, heads, _, columns = graph.shape
    graph = graph.gather(2, query_block[:, None, :, None].expand(batch, heads, -1, columns))
    return graph.gather(3, key_block[:, None, None, :].expand(batch, heads, graph.shape[2], -1))


def real_first(keep: Tensor) -> Tensor:
    """The order (B, T) that moves padding, where `keep` (B, T) is False, behind all other tokens."""
    return (~keep).byte().argsort(dim=1, stable=True)


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """The tokens of x (B, H, S, D) in this order, (B or 1, T): (B, H, T, D)."""
    return x.gather(2, order[:, None, :, None].expand(len(x), x.shape[1], -1, x.shape[3]))
