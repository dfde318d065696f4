"""Exact softmax attention with a preallocated key/value cache: the baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Form, Mechanism, State
from .masks import CAUSAL, Rows, Visible
from .registry import register


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

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None) -> None:
        start, stop = self.count, self.count + k.shape[2]
        if stop > self.k.shape[2]:
            extra = max(stop, 2 * start) - self.k.shape[2]
            self.k, self.v = (F.pad(x, (0, 0, 0, extra)) for x in (self.k, self.v))
            self.keep = F.pad(self.keep, (0, extra))
        self.k[:, :, start:stop], self.v[:, :, start:stop] = k, v
        self.keep[:, start:stop] = True if keep is None else keep
        self.used += k.shape[2]

    def reorder(self, order: Tensor) -> KVCache:
        k, v, keep = (x.index_select(0, order) for x in (self.k, self.v, self.keep))
        return KVCache(k, v, keep, self.used.index_select(0, order.to(self.used.device)))


@register("softmax")
class Softmax(Mechanism):
    """Scaled dot-product attention, softmax(q . k / sqrt(D)) v (Vaswani et al., 2017, arXiv:1706.03762, eq. 1)."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | None = None,
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
        visible: Visible | None = None,
    ) -> Tensor:
        scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        mask = _mask(q, k, None if key is None else key.keep, visible)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)

    def update(self, state: State | None, k: Tensor, v: Tensor, key: Rows) -> State:
        cache = KVCache.empty(k, v) if state is None else _cache(state)
        cache.append(k, v, key.keep)
        return cache

    def attend(self, state: State, q: Tensor, query: Rows) -> Tensor:
        return self._over(_cache(state), q, None)

    def extend(self, state: State | None, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, State]:
        cache = _cache(self.update(state, k, v, rows))
        before = cache.count - q.shape[2]
        return self._over(cache, q, Visible(lagging=before + 1) if q.shape[2] > 1 else None), cache

    def _over(self, cache: KVCache, q: Tensor, visible: Visible | None) -> Tensor:
        n = cache.count
        keep = cache.keep[:, :n]
        mask = _mask(q, cache.k[:, :, :n], None if bool(keep.all()) else keep, visible)
        return F.scaled_dot_product_attention(q, cache.k[:, :, :n], cache.v[:, :, :n], attn_mask=mask)


def _mask(q: Tensor, k: Tensor, keep: Tensor | None, visible: Visible | None) -> Tensor | None:
    """True where a query may look, broadcastable to (B, H, T, S); None when everywhere.

    A query that may look nowhere (a padded row) is let look everywhere: softmax over nothing is NaN.
    """
    mask = None if visible is None else visible.mask(q.shape[2], k.shape[2], q.device)[None, None]
    if keep is not None:
        real = keep[:, None, None, :]
        mask = real if mask is None else mask & real
        mask = mask | ~mask.any(-1, keepdim=True)
    return mask


def _cache(state: State) -> KVCache:
    if not isinstance(state, KVCache):
        raise TypeError(f"a {type(state).__name__} does not belong to softmax attention")
    return state
