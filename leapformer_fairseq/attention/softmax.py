"""Softmax attention, the baseline of every comparison, and the base of all mechanisms that keep every key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .capabilities import Capabilities
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask
from .mechanism import Inputs, Mechanism, State
from .ops.precision import accumulated, without_autocast
from .registry import register
from .tokens import TokenInfo


@dataclass
class KVCache(State):
    """Keys (B, H, capacity, D) and values (B, H, capacity, E) of the tokens read so far.

    `keep` (B, capacity) is True at real tokens; `used` (B,) is the number of columns in use, the same in every row. The
    capacity doubles when it is full, so most steps copy only their own token.
    """

    k: Tensor
    v: Tensor
    keep: Tensor
    used: Tensor

    def __post_init__(self) -> None:
        # Every step needs these two, so they are computed once: the columns in use, and whether some may be padding.
        self.count = int(self.used[0]) if len(self.used) else 0  # `used` is on the CPU: this never waits for a GPU
        self.padded = self.count > 0 and (not self.keep.is_cpu or not bool(self.keep[:, : self.count].all()))

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None) -> None:
        """Add keys (B, H, S, D) and values (B, H, S, E); `keep` (B, S) is False at padding, None without padding."""
        start, stop = self.count, self.count + k.shape[2]
        if torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, self.k, self.v)):
            # Not in place: the backward pass needs the tensors that earlier queries read.
            self.k, self.v = (torch.cat([x[:, :, :start], new], 2) for x, new in ((self.k, k), (self.v, v)))
            self.keep = F.pad(self.keep[:, :start], (0, stop - start))
        else:
            if stop > self.k.shape[2]:
                extra = max(stop, 2 * start) - self.k.shape[2]
                self.k, self.v = (F.pad(x, (0, 0, 0, extra)) for x in (self.k, self.v))
                self.keep = F.pad(self.keep, (0, extra))
            self.k[:, :, start:stop], self.v[:, :, start:stop] = k, v
        self.keep[:, start:stop] = True if keep is None else keep
        self.padded = self.padded or keep is not None
        self.used, self.count = self.used + k.shape[2], stop

    def to(self, device: torch.device) -> KVCache:
        k, v, keep = (x.to(device, copy=True) for x in (self.k, self.v, self.keep))
        return KVCache(k, v, keep, self.used)

    @classmethod
    def cat(cls, states: Sequence[KVCache]) -> KVCache:
        """Shorter caches are padded on the left, so that the last tokens of all are in the same columns."""
        count = max(state.count for state in states)

        def padded(x: Tensor, state: KVCache, dim: int) -> Tensor:
            sides = [0, 0] * (x.dim() - 1 - dim) + [count - state.count, 0]
            return F.pad(x.narrow(dim, 0, state.count), sides)

        k, v, keep = (
            torch.cat([padded(getattr(state, name), state, dim) for state in states])
            for name, dim in (("k", 2), ("v", 2), ("keep", 1))
        )
        return cls(k, v, keep, torch.full((len(keep),), count))

    def reorder(self, order: Tensor) -> KVCache:
        k, v = (_reordered(x, order, self.count) for x in (self.k, self.v))
        return KVCache(k, v, self.keep.index_select(0, order), self.used[:1].repeat(len(order)))


class CachedMechanism(Mechanism):
    """Attention whose weights are a function of a query's scores q . k / sqrt(D) with all visible keys."""

    capabilities = Capabilities(constant_state=False)

    @abstractmethod
    def _attended(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, dropout: float) -> Tensor:
        """Output (B, H, T, E) for keys as `_cached` returns them.

        `visible`, broadcastable to (B, H, T, S), is True where a query sees a key; None: everywhere.
        """

    def _cached(self, k: Tensor) -> Tensor:
        """What the cache stores for keys (B, H, S, D): the keys, and what a step should not compute from them again."""
        return k

    def _to_cache(self, k: Tensor) -> Tensor:
        """`_cached` without autocast, which would round what queries are compared with."""
        with without_autocast(k.device):
            return self._cached(k)

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> KVCache:
        k, v = (like.new_zeros(batch, self.num_heads, 0, dim) for dim in (self.head_dim, value_dim))
        k = self._to_cache(k)
        keep = torch.zeros(batch, 0, dtype=torch.bool, device=like.device)
        return KVCache(k, v, keep, torch.zeros(batch, dtype=torch.long))

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> KVCache:
        cache = state.of(KVCache)
        cache.append(self._to_cache(k), v, key.keep)
        return cache

    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        return self._attend_cache(state.of(KVCache), q)

    def scan_(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        if isinstance(mask, ChunkMask) and mask.past is not None:
            return self._in_chunks(state.of(KVCache), q, k, v, key, mask)
        if mask != CAUSAL or not q.shape[2]:
            return super().scan_(state, q, k, v, query, key, mask)
        before = state.of(KVCache).count
        cache = self.write(state, k, v, key)
        return self._attend_cache(cache, q, CAUSAL.after(before) if q.shape[2] > 1 else None), cache

    def loop(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        if isinstance(mask, ChunkMask) and mask.past is not None:  # the default drops `past`
            return self.scan_(state, q, k, v, query, key, mask)
        return super().loop(state, q, k, v, query, key, mask)

    def _in_chunks(
        self, cache: KVCache, q: Tensor, k: Tensor, v: Tensor, key: TokenInfo, mask: ChunkMask
    ) -> tuple[Tensor, KVCache]:
        """Attention of the next chunks of a stream; the cache keeps only the last `mask.past` tokens."""
        assert mask.past is not None
        count, n, device = q.shape[2], cache.count, q.device
        keep = k.new_ones(len(k), count, dtype=torch.bool) if key.keep is None else key.keep
        keep = torch.cat([cache.keep[:, :n], keep], 1)
        k, v = torch.cat([cache.k[:, :, :n], self._to_cache(k)], 2), torch.cat([cache.v[:, :, :n], v], 2)
        # From the first token of a query's chunk back to each cached token; the last of these precedes the first chunk.
        distance = (torch.arange(count, device=device) // mask.tokens * mask.size).unsqueeze(1)
        distance = distance + torch.arange(n, 0, -1, device=device)
        visible = torch.cat([distance <= mask.past, mask.mask(count, count, device)], 1) & keep[:, None, None]
        out = self._attended(q, k, v, visible, 0.0)
        columns = [*range(n), *(n + t for t in range(count) if t % mask.tokens < mask.size)]  # without look-ahead
        last = columns[max(0, len(columns) - mask.past) :]
        used = torch.full((len(q),), len(last))
        return out, KVCache(k[:, :, last], v[:, :, last], keep[:, last], used)

    def _in_segments(self, x: Inputs) -> Tensor:
        """All tokens at once: there is no state to pass from segment to segment."""
        visible = visible_keys(x.q, x.k, x.key.keep, x.mask)
        return self._attended(x.q, self._to_cache(x.k), x.v, visible, self.dropping())

    def _attend_cache(self, cache: KVCache, q: Tensor, mask: PrefixMask | None = None) -> Tensor:
        """Output (B, H, T, E) of queries (B, H, T, D) over the cached keys."""
        n = cache.count
        k, v = cache.k[:, :, :n], cache.v[:, :, :n]
        return self._attended(q, k, v, visible_keys(q, k, cache.keep[:, :n] if cache.padded else None, mask), 0.0)


def visible_keys(q: Tensor, k: Tensor, keep: Tensor | None, mask: Mask) -> Tensor | None:
    """True where a query sees a key, broadcastable to (B, H, T, S); None: everywhere."""
    visible = None if mask is None else mask.mask(q.shape[2], k.shape[2], q.device)[None, None]
    if keep is None:
        return visible
    real = keep[:, None, None, :]
    return real if visible is None else visible & real


def _reordered(x: Tensor, order: Tensor, used: int) -> Tensor:
    """A cache (B, H, capacity, D) whose row i is the old row order[i]; only the columns in use are copied."""
    if x.requires_grad:
        return x.index_select(0, order)
    new = x.new_empty(len(order), *x.shape[1:])
    torch.index_select(x[:, :, :used], 0, order, out=new[:, :, :used])
    return new


@register("softmax")
class Softmax(CachedMechanism):
    """Scaled dot-product attention, softmax(q . k / sqrt(D)) v (Vaswani et al., 2017, arXiv:1706.03762, eq. 1)."""

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, dropout: float) -> Tensor:
        return _sdpa(q, k, v, attn_mask=_never_empty(visible), dropout_p=dropout)

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        scores = q @ k.mT * self.head_dim**-0.5
        visible = _never_empty(visible_keys(q, k, key.keep, mask))
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return F.dropout(scores.softmax(-1), dropout)

    def _in_segments(self, x: Inputs) -> Tensor:
        if x.key.keep is None and x.mask == CAUSAL and x.q.shape[2] == x.k.shape[2]:  # PyTorch has a kernel for this
            return _sdpa(x.q, x.k, x.v, dropout_p=self.dropping(), is_causal=True)
        return super()._in_segments(x)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """PyTorch's attention. Training on a CPU in half precision uses float32: the backward pass is 7 times as fast."""
    if not (q.is_cpu and torch.is_grad_enabled() and q.requires_grad):
        return F.scaled_dot_product_attention(q, k, v, **options)
    dtype = q.dtype
    q, k, v = (accumulated(x) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).to(dtype)


def _never_empty(visible: Tensor | None) -> Tensor | None:
    """`visible`, but queries that see no key (padding) see all keys: a softmax over nothing is NaN."""
    if visible is None:
        return None
    return visible | ~visible.any(-1, keepdim=True)
