"""Softmax attention, the baseline of every comparison, and the base of all mechanisms that keep every key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .capabilities import Capabilities
from .kernels import CachedKernel
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask
from .mechanism import Inputs, Mechanism, State
from .ops import dispatch
from .ops.packing import packed, unpacked
from .ops.precision import accumulated, without_autocast
from .registry import register
from .tokens import TokenInfo


class Cache(State):
    """Keys and values of the tokens read so far."""

    @property
    def count(self) -> int:
        """The number of columns in use, the same in every row."""
        raise NotImplementedError

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None) -> None:
        """Add keys (B, H, S, D) and values (B, H, S, E); `keep` (B, S) is False at padding, None without padding."""
        raise NotImplementedError

    def columns(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and their keep mask, of the columns in use; no mask: there is no padding."""
        raise NotImplementedError

    def holding(self, k: Tensor, v: Tensor, keep: Tensor) -> Self:
        """A cache of this kind of other columns."""
        raise NotImplementedError


@dataclass
class KVCache(Cache):
    """Keys (B, H, capacity, D) and values (B, H, capacity, E).

    `keep` (B, capacity) is True at real tokens; `used` (B,) is the number of columns in use, the same in every row. The
    capacity doubles when it is full, so most steps copy only their own token.
    """

    k: Tensor
    v: Tensor
    keep: Tensor
    used: Tensor

    # Every step needs these two, so they are computed once, and kept up to date.
    @cached_property
    def count(self) -> int:
        return int(self.used[0]) if len(self.used) else 0  # `used` is on the CPU: this never waits for a GPU

    @cached_property
    def padded(self) -> bool:
        """Whether a column in use may be padding."""
        return self.count > 0 and (not self.keep.is_cpu or not bool(self.keep[:, : self.count].all()))

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None) -> None:
        start, stop = self.count, self.count + k.shape[2]
        if torch.is_grad_enabled():
            # Not in place: the backward pass, if only of queries, needs the tensors that earlier queries read.
            self.k, self.v = (torch.cat([x[:, :, :start], new], 2) for x, new in ((self.k, k), (self.v, v)))
            self.keep = F.pad(self.keep[:, :start], (0, stop - start))
        else:
            if stop > self.k.shape[2]:
                extra = max(stop, 2 * start) - self.k.shape[2]
                self.k, self.v = (F.pad(x, (0, 0, 0, extra)) for x in (self.k, self.v))
                self.keep = F.pad(self.keep, (0, extra))
            self.k[:, :, start:stop], self.v[:, :, start:stop] = k, v
        self.keep[:, start:stop] = True if keep is None else keep
        self.used, self.count, self.padded = self.used + k.shape[2], stop, self.padded or keep is not None

    def columns(self) -> tuple[Tensor, Tensor, Tensor | None]:
        n = self.count
        return self.k[:, :, :n], self.v[:, :, :n], self.keep[:, :n] if self.padded else None

    def holding(self, k: Tensor, v: Tensor, keep: Tensor) -> KVCache:
        return KVCache(k, v, keep, torch.full((len(k),), k.shape[2]))

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
        cache = KVCache(k, v, self.keep.index_select(0, order), self.used[:1].expand(len(order)))
        cache.count, cache.padded = self.count, self.padded  # known, so not read again
        return cache


@dataclass
class GraphCache(Cache):
    """Keys (B, H, S, D) and values (B, H, S, E) in a graph, where S is a size of tensors rather than a number.

    `real` (B, S) is 1 at real tokens and 0 at padding, in the type of all states; None: no token is padding.
    """

    k: Tensor
    v: Tensor
    real: Tensor | None = None

    @property
    def count(self) -> int:
        return self.k.shape[2]

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None) -> None:
        if self.real is not None:
            real = k.new_ones(k.shape[0], k.shape[2]) if keep is None else keep.to(k.dtype).expand(k.shape[0], -1)
            self.real = torch.cat([self.real, real], 1)
        self.k, self.v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)

    def columns(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.k, self.v, None if self.real is None else self.real > 0.5

    def holding(self, k: Tensor, v: Tensor, keep: Tensor) -> GraphCache:
        return GraphCache(k, v, keep.to(k.dtype))

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in super().tensors().items() if tensor is not None}


@dataclass
class SharedCache(State):
    """Keys (B R, H, capacity, D) and values (B R, H, capacity, E) in a graph, in memory that its next step shares.

    A step writes one token of each of R hypotheses of B sentences behind the `used` (1,) tokens of all. Hypotheses have
    common tokens: `paths` (B, R, capacity) tells which of the `width` (1,) = R rows of its sentence holds a token of a
    hypothesis, so that nothing moves when beam search reorders them. These three are integers of 32 bits.
    """

    k: Tensor
    v: Tensor
    used: Tensor
    width: Tensor
    paths: Tensor

    def tensors(self) -> dict[str, Tensor]:
        return {"k": self.k, "v": self.v}


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

    def loop_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> GraphCache | None:
        """A cache that grows; under chunks with a limited past, one of that size, at first of padding."""
        if not self.capabilities.incremental:
            return None
        past = mask.past or 0 if isinstance(mask, ChunkMask) else 0
        k, v = (like.new_zeros(batch, self.num_heads, past, dim) for dim in (self.head_dim, value_dim))
        # A hypothesis has no padding.
        return GraphCache(self._to_cache(k), v, None if mask == CAUSAL else like.new_zeros(batch, past))

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> Cache:
        cache = state.of(Cache)
        cache.append(self._to_cache(k), v, key.keep)
        return cache

    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        return self._attend_cache(state.of(Cache), q)

    def scan_(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        if isinstance(mask, ChunkMask) and mask.past is not None:
            return self._in_chunks(state.of(Cache), q, k, v, key, mask)
        if mask != CAUSAL or not q.shape[2]:
            return super().scan_(state, q, k, v, query, key, mask)
        before = state.of(Cache).count
        cache = self.write(state, k, v, key)
        return self._attend_cache(cache, q, CAUSAL.after(before) if q.shape[2] > 1 else None), cache

    def loop(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        # The default drops `past`, and goes from token to token if causal.
        together = mask == CAUSAL and q.shape[2] == k.shape[2]
        if together or (isinstance(mask, ChunkMask) and mask.past is not None):
            return self.scan_(state, q, k, v, query, key, mask)
        return super().loop(state, q, k, v, query, key, mask)

    def _in_chunks(
        self, cache: Cache, q: Tensor, k: Tensor, v: Tensor, key: TokenInfo, mask: ChunkMask
    ) -> tuple[Tensor, Cache]:
        """Attention of the next chunks of a stream; the cache keeps only the last `mask.past` tokens."""
        assert mask.past is not None
        count, n, device = q.shape[2], cache.count, q.device
        before = cache.columns()
        keep, held = (
            k.new_ones(len(k), size, dtype=torch.bool) if given is None else given
            for given, size in ((key.keep, count), (before[2], n))
        )
        keep = torch.cat([held, keep], 1)
        k, v = torch.cat([before[0], self._to_cache(k)], 2), torch.cat([before[1], v], 2)
        # From the first token of a query's chunk back to each cached token; the last of these precedes the first chunk.
        distance = (torch.arange(count, device=device) // mask.tokens * mask.size).unsqueeze(1)
        distance = distance + torch.arange(n, 0, -1, device=device)
        visible = torch.cat([distance <= mask.past, mask.mask(count, count, device)], 1) & keep[:, None, None]
        out = self._attended(q, k, v, visible, 0.0)
        columns = [*range(n), *(n + t for t in range(count) if t % mask.tokens < mask.size)]  # without look-ahead
        last = columns[max(0, len(columns) - mask.past) :]
        return out, cache.holding(k[:, :, last], v[:, :, last], keep[:, last])

    def _in_segments(self, x: Inputs) -> Tensor:
        """All tokens at once: there is no state to pass from segment to segment."""
        visible = visible_keys(x.q, x.k, x.key.keep, x.mask)
        return self._attended(x.q, self._to_cache(x.k), x.v, visible, self.dropping())

    def _attend_cache(self, cache: Cache, q: Tensor, mask: PrefixMask | None = None) -> Tensor:
        """Output (B, H, T, E) of queries (B, H, T, D) over the cached keys."""
        k, v, keep = cache.columns()
        return self._attended(q, k, v, visible_keys(q, k, keep, mask), 0.0)


def visible_keys(q: Tensor, k: Tensor, keep: Tensor | None, mask: Mask) -> Tensor | None:
    """True where a query sees a key, broadcastable to (B, H, T, S); None: everywhere."""
    visible = None if mask is None else mask.mask(q.shape[2], k.shape[2], q.device)[None, None]
    if keep is None:
        return visible
    real = keep[:, None, None, :]
    return real if visible is None else visible & real


# Numbers of a cache that are copied faster than its columns in use are selected (measured with 5 rows).
_SMALL = 2**15


def _reordered(x: Tensor, order: Tensor, used: int) -> Tensor:
    """A cache (B, H, capacity, D) whose row i is the old row order[i], at least in the columns in use."""
    if x.requires_grad or x.numel() <= _SMALL:
        return x.index_select(0, order)
    new = x.new_empty(len(order), *x.shape[1:])
    torch.index_select(x[:, :, :used], 0, order, out=new[:, :, :used])
    return new


@register("softmax")
class Softmax(CachedMechanism):
    """Scaled dot-product attention, softmax(q . k / sqrt(D)) v (Vaswani et al., 2017, arXiv:1706.03762, eq. 1)."""

    def kernel(self) -> CachedKernel:
        return CachedKernel()

    def loop(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        if isinstance(state, SharedCache):
            return _one_more(q, k, v, state)
        x, cache = Inputs(q, k, v, query, key, mask), state.of(Cache)
        if not dispatch.is_exported() or not x.in_step or not isinstance(cache, GraphCache) or cache.real is not None:
            return super().loop(state, *x)
        out, k, v = _one_operator(q, (packed(k), packed(v)), (cache.k, cache.v))
        return out, GraphCache(k, v)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, dropout: float) -> Tensor:
        if dispatch.is_exported():  # PyTorch's kernel would become operators that copy and scale all keys
            return self._by_pairs(q, k, visible, dropout) @ v
        return _sdpa(q, k, v, attn_mask=never_empty(visible), dropout_p=dropout)

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        return self._by_pairs(q, k, visible_keys(q, k, key.keep, mask), dropout)

    def _by_pairs(self, q: Tensor, k: Tensor, visible: Tensor | None, dropout: float) -> Tensor:
        """Weights (B, H, T, S)."""
        scores, visible = q * self.head_dim**-0.5 @ k.mT, never_empty(visible)
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return F.dropout(scores.softmax(-1), dropout)

    def _in_segments(self, x: Inputs) -> Tensor:
        if dispatch.is_exported() and x.mask is None:
            return _one_operator(x.q, (x.k, x.v), keep=x.key.keep)[0]
        if x.key.keep is None and x.mask == CAUSAL and x.q.shape[2] == x.k.shape[2]:  # PyTorch has a kernel for this
            return _sdpa(x.q, x.k, x.v, dropout_p=self.dropping(), is_causal=True)
        return super()._in_segments(x)

    def _attend_cache(self, cache: Cache, q: Tensor, mask: PrefixMask | None = None) -> Tensor:
        if dispatch.is_exported() and mask is None:
            k, v, keep = cache.columns()
            return _one_operator(q, (k, v), keep=keep)[0]
        return super()._attend_cache(cache, q, mask)


def _one_operator(
    q: Tensor, keys: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None = None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of queries (B, H, T, D) as an operator of onnxruntime, `MultiHeadAttention`.

    Every query sees all keys and values (B, H, S, D) where `keep` (B, S) is True, or, with `past`, those of the past
    and of the tokens up to its own; keys and values of these tokens are then (B, T, H D), and the second and third
    result are keys and values of past and tokens.
    """
    batch, heads, count, _ = q.shape
    before = () if past is None else past
    after = [(batch, heads, x.shape[2] + count, x.shape[3]) for x in before]
    value_dim = (before or keys)[1].shape[3]
    shapes = [(batch, count, heads * value_dim), *after]
    mask = None if keep is None else keep.to(torch.int32)
    given = [packed(q), *keys, None, mask, None, *before]
    out, *both = _operator(
        "MultiHeadAttention", given, {"num_heads": heads, "unidirectional": len(before) // 2}, shapes
    )
    k, v = both or keys
    return unpacked(out, heads, count, value_dim), k, v


def _one_more(q: Tensor, k: Tensor, v: Tensor, cache: SharedCache) -> tuple[Tensor, SharedCache]:
    """Attention of the next token of each hypothesis, (B R, H, 1, D), as an operator of onnxruntime.

    `DecoderMaskedMultiHeadAttention` writes the token's key and value to the cache's memory if its results are bound to
    this memory; otherwise it copies all.
    """
    batch, heads, _, dim = q.shape
    past = [cache.k, cache.v]
    given = [*map(packed, (q, k, v)), None, None, *past, cache.used, cache.width, cache.paths]
    shapes = [(batch, 1, heads * dim), *(tuple(x.shape) for x in past)]
    options = {"num_heads": heads, "past_present_share_buffer": 1}
    out, k, v = _operator("DecoderMaskedMultiHeadAttention", given, options, shapes)
    return unpacked(out, heads, 1, dim), replace(cache, k=k, v=v)


def _operator(
    name: str, given: Sequence[Tensor | None], options: Mapping[str, int], shapes: Sequence[tuple[int, ...]]
) -> Sequence[Tensor]:
    """The results, of these shapes, of an operator that onnxruntime has besides those of ONNX."""
    return torch.onnx.ops.symbolic_multi_out(
        f"com.microsoft::{name}", given, {**options}, dtypes=[torch.float32] * len(shapes), shapes=shapes, version=1
    )


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """PyTorch's attention. Training on a CPU in half precision uses float32: the backward pass is 7 times as fast."""
    if not (q.is_cpu and torch.is_grad_enabled() and q.requires_grad):
        return F.scaled_dot_product_attention(q, k, v, **options)
    dtype = q.dtype
    q, k, v = (accumulated(x) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).to(dtype)


def never_empty(visible: Tensor | None) -> Tensor | None:
    """`visible`, but queries that see no key (padding) see all keys: a softmax over nothing is NaN."""
    if visible is None:
        return None
    return visible | ~visible.any(-1, keepdim=True)
