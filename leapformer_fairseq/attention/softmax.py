"""Exact softmax attention with a preallocated key/value cache: the baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Form, Mechanism, State
from .masks import CAUSAL, Blocks, Rows, Visible
from .registry import register
from .step import Projections, Step


@dataclass
class KVCache(State):
    """Keys (B, H, capacity, D), values (B, H, capacity, E), which are real (B, capacity), columns in `used`, (B,).

    The capacity doubles when it is full, so a step copies nothing but its own row.
    """

    k: Tensor
    v: Tensor
    keep: Tensor
    used: Tensor

    @classmethod
    def empty(cls, k: Tensor, v: Tensor) -> KVCache:
        batch = len(k)
        keep = torch.zeros(batch, 0, dtype=torch.bool, device=k.device)
        return cls(k[:, :, :0], v[:, :, :0], keep, torch.zeros(batch, dtype=torch.long))

    @property
    def count(self) -> int:
        """Columns in use, the same in every row. (Kept on the CPU: reading it never waits for a GPU.)"""
        return int(self.used[0])

    def __post_init__(self) -> None:
        # Asked at every step, so not counted each time: whether some column is padding.
        self.padded = not bool(self.keep[:, : self.count].all())

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None) -> None:
        start, stop = self.count, self.count + k.shape[2]
        if stop > self.k.shape[2]:
            extra = max(stop, 2 * start) - self.k.shape[2]
            self.k, self.v = (F.pad(x, (0, 0, 0, extra)) for x in (self.k, self.v))
            self.keep = F.pad(self.keep, (0, extra))
        self.k[:, :, start:stop], self.v[:, :, start:stop] = k, v
        self.keep[:, start:stop] = True if keep is None else keep
        self.padded = self.padded or not (keep is None or bool(keep.all()))
        self.used += k.shape[2]

    def reorder(self, order: Tensor) -> KVCache:
        k, v = (_reordered(x, order, self.count) for x in (self.k, self.v))
        return KVCache(k, v, self.keep.index_select(0, order), self.used.index_select(0, order.to(self.used.device)))


@register("softmax")
class Softmax(Mechanism):
    """Scaled dot-product attention, softmax(q . k / sqrt(D)) v (Vaswani et al., 2017, arXiv:1706.03762, eq. 1)."""

    constant_state = False

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | Blocks | None = None,
        form: Form = "auto",
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        keep = None if key is None else key.keep
        if keep is None and visible == CAUSAL and q.shape[2] == k.shape[2]:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        mask = _mask(q, k, keep, visible)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | Blocks | None = None,
    ) -> Tensor:
        scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        mask = _mask(q, k, None if key is None else key.keep, visible)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)

    def blockwise(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, blocks: Blocks) -> Tensor:
        return self(q, k, v, query=rows, key=rows, visible=CAUSAL if blocks == Blocks() else blocks)

    def extend_blocks(
        self, state: State | None, q: Tensor, k: Tensor, v: Tensor, rows: Rows, blocks: Blocks
    ) -> tuple[Tensor, State]:
        """The cache keeps the last `blocks.past` rows."""
        if blocks.past is None:
            return super().extend_blocks(state, q, k, v, rows, blocks)
        cache, count = KVCache.empty(k, v) if state is None else _cache(state), q.shape[2]
        n = cache.count
        keep = k.new_ones(len(k), count, dtype=torch.bool) if rows.keep is None else rows.keep
        keep = torch.cat([cache.keep[:, :n], keep], 1)
        k, v = torch.cat([cache.k[:, :, :n], k], 2), torch.cat([cache.v[:, :, :n], v], 2)
        columns = torch.arange(count, device=q.device)
        # Of what is in the cache the last row stands just before the first block.
        distance = (columns // blocks.rows * blocks.size).unsqueeze(1) + torch.arange(n, 0, -1, device=q.device)
        mask = torch.cat([distance <= blocks.past, blocks.mask(count, count, q.device)], 1) & keep[:, None, None]
        mask = mask | ~mask.any(-1, keepdim=True)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        own = torch.cat([torch.arange(n, device=q.device), n + columns[columns % blocks.rows < blocks.size]])
        last = own[max(0, len(own) - blocks.past) :]
        return out, KVCache(k[:, :, last], v[:, :, last], keep[:, last], torch.full_like(cache.used, len(last)))

    def update(self, state: State | None, k: Tensor, v: Tensor, key: Rows) -> State:
        cache = KVCache.empty(k, v) if state is None else _cache(state)
        cache.append(k, v, key.keep)
        return cache

    def attend(self, state: State, q: Tensor, query: Rows) -> Tensor:
        return _over(_cache(state), q)

    def step(self, projections: Projections) -> Step:
        return SoftmaxStep(self.num_heads, projections)

    def empty_state(self, rows: int, value_dim: int, like: Tensor) -> KVCache:
        return KVCache.empty(*(like.new_zeros(rows, self.num_heads, 0, dim) for dim in (self.head_dim, value_dim)))

    def extend(self, state: State | None, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, State]:
        cache = _cache(self.update(state, k, v, rows))
        before = cache.count - q.shape[2]
        return _over(cache, q, Visible(lagging=before + 1) if q.shape[2] > 1 else None), cache


class SoftmaxStep(Step):
    """The step of softmax attention over a KV cache."""

    def extend(self, x: Tensor, state: KVCache, position: int, lengths: Tensor | None = None) -> Tensor:
        projected, width = self.project(x), self.heads * self.dim
        q, k = projected[:, : 2 * width].view(len(x), 2, self.heads, 1, self.dim).unbind(1)
        state.append(k, projected[:, 2 * width :].view(len(x), self.heads, 1, -1), None)
        return self.project_out(_over(state, q).flatten(1))

    def attend(self, x: Tensor, state: KVCache, position: int, lengths: Tensor | None = None) -> Tensor:
        q = self.project(x).view(len(state.k), -1, self.heads, self.dim)  # those that share a cache together
        return self.project_out(_over(state, q.transpose(1, 2)).transpose(1, 2).reshape(len(x), -1))


def _over(cache: KVCache, q: Tensor, visible: Visible | Blocks | None = None) -> Tensor:
    """Attention of queries (B, H, T, D) to what is in the cache."""
    n = cache.count
    k, v = cache.k[:, :, :n], cache.v[:, :, :n]
    mask = _mask(q, k, cache.keep[:, :n] if cache.padded else None, visible)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _mask(q: Tensor, k: Tensor, keep: Tensor | None, visible: Visible | Blocks | None) -> Tensor | None:
    """True where a query may look, broadcastable to (B, H, T, S); None when everywhere.

    A query that may look nowhere (a padded row) is let look everywhere: softmax over nothing is NaN.
    """
    mask = None if visible is None else visible.mask(q.shape[2], k.shape[2], q.device)[None, None]
    if keep is not None:
        real = keep[:, None, None, :]
        mask = real if mask is None else mask & real
        mask = mask | ~mask.any(-1, keepdim=True)
    return mask


def _reordered(x: Tensor, order: Tensor, used: int) -> Tensor:
    """Rows of a cache (B, H, capacity, D) in another order; only the columns in use are copied."""
    if x.requires_grad:
        return x.index_select(0, order)
    new = x.new_empty(len(order), *x.shape[1:])
    torch.index_select(x[:, :, :used], 0, order, out=new[:, :, :used])
    return new


def _cache(state: State) -> KVCache:
    if not isinstance(state, KVCache):
        raise TypeError(f"a {type(state).__name__} does not belong to softmax attention")
    return state
