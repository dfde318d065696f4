"""Linear attention in linear time: sums over visible keys, o_t = sum_{s < g(t)} (q_t . k_s) v_s.

q and k are *mapped* features, so nothing here knows about a mechanism. A column of ones appended to v makes the last
column of o the normalizer, which `normalize` divides by (Katharopoulos et al., 2020, arXiv:2006.16236, eq. 4-12).

Shapes: G batch times heads, T queries, S keys, F features, M value columns, n chunks of C queries and C * ratio keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .masks import CAUSAL, Blocks, Visible

# Rows of a chunk of blocks; 32 do about as well, 128 are slower (head dimensions 32 and 64, blocks of 7 and 20 rows).
BLOCK_CHUNK = 64

_Backward = TypeVar("_Backward", bound=Callable[..., Any])


def append_ones(v: Tensor) -> Tensor:
    """Values with one more column of ones, (.., S, E + 1): its sum is the normalizer."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)


def normalize(sums: Tensor, floor: float) -> Tensor:
    """Divide by the last column, clamped from below by `floor`: a query that matches no key gives 0, never NaN."""
    return sums[..., :-1] / sums[..., -1:].clamp_min(floor)


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Similarities of all pairs, q k^T, (.., T, S); quadratic."""
    return _ScoresOf.apply(q, k)


def state_of(k: Tensor, v: Tensor) -> Tensor:
    """What a query that sees all these keys needs of them: K^T V, (.., F, M)."""
    return k.transpose(-1, -2) @ v


def default_chunk(visible: Visible) -> int:
    """Queries per chunk; about 64 (causal) to 128 keys per chunk was fastest at head dimensions 32 and 64."""
    return 64 if visible.ratio == 1 else max(8, 128 // visible.ratio)


def gaining(visible: Visible, queries: int, keys: int) -> int:
    """How many queries see more keys than the query before them; those that follow see all keys."""
    left = max(0, keys - visible.shared)
    return min(queries, -(-left // visible.ratio))


def chunkwise(q: Tensor, k: Tensor, v: Tensor, visible: Visible | None, chunk: int | None = None) -> Tensor:
    """The same sums in linear time, (G, T, M): states cross chunks, the quadratic part stays inside one."""
    if visible is None:
        return q @ _StateOf.apply(k, v)
    queries, keys = q.shape[1], k.shape[1]
    first = k.new_zeros(len(k), k.shape[2], v.shape[2])
    # split, since each slice of a tensor costs a tensor of zeros as large as the whole one in the backward pass
    if shared := min(visible.shared, keys):
        (k_shared, k), (v_shared, v) = (x.split((shared, keys - shared), 1) for x in (k, v))
        first = _StateOf.apply(k_shared, v_shared)
    n = gaining(visible, queries, keys)
    if not n:
        return q @ first
    q, late = q.split((n, queries - n), 1) if n < queries else (q, None)
    gained = n * visible.ratio
    sums, after = chunk_sums(q, k[:, :gained], v[:, :gained], first, visible, chunk)
    return sums if late is None else torch.cat([sums, late @ after], 1)


def chunk_sums(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, visible: Visible = CAUSAL, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sums (G, T, M) of queries that see the state `first` (G, F, M) and gain keys, and the state after all keys.

    Every query gains at least one key: the one in its place, or `visible.ratio` of them.
    """
    return _ChunkSums.apply(q, k, v, first, visible.ratio, chunk or default_chunk(visible))


def block_sums(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks) -> Tensor:
    """Sums (G, T, M) over rows that arrive in blocks: over all of a row's block, and what is left of those before.

    Some blocks make a chunk: blocks alone are short, and one state for each would be more than the rows themselves.
    """
    chunk = blocks.rows * max(1, BLOCK_CHUNK // blocks.rows)
    (groups, count), (q, k, v) = q.shape[:2], (_cut(x, chunk) for x in (q, k, v))
    left = k
    if blocks.ahead:
        left = k * (torch.arange(chunk, device=k.device) % blocks.rows < blocks.size).unsqueeze(1)
    own = _StateOf.apply(left, v).unflatten(0, (groups, -1))
    before = F.pad(own[:, :-1], (0, 0, 0, 0, 1, 0)).cumsum(1).flatten(0, 1)
    scores = scores_of(q, k) * blocks.mask(chunk, chunk, q.device)
    return (q @ before + scores @ v).view(groups, -1, v.shape[2])[:, :count]


class Chunks(NamedTuple):
    """Queries and the keys they gain, cut into n aligned chunks, with the state before each chunk.

    Query t sees the state before the first chunk and the first ratio * (t + 1) keys; every query gains at least one.
    """

    q: Tensor  # (G * n, C, F)
    k: Tensor  # (G * n, C * ratio, F)
    v: Tensor  # (G * n, C * ratio, M)
    before: Tensor  # (G * n, F, M), the state before each chunk
    after: Tensor  # (G, F, M), the state after all keys
    queries: int  # without the rows that fill the last chunk
    keys: int

    @classmethod
    def cut(cls, q: Tensor, k: Tensor, v: Tensor, first: Tensor, ratio: int, chunk: int) -> Chunks:
        """Chunks of q (G, T, F), k (G, S, F), v (G, S, M) behind the state `first` (G, F, M)."""
        queries, keys = q.shape[1], k.shape[1]
        chunk = max(1, min(chunk, queries))
        q, k, v = _cut(q, chunk), _cut(k, chunk * ratio), _cut(v, chunk * ratio)
        own = state_of(k, v).unflatten(0, (len(first), -1))
        before = torch.cat([first.unsqueeze(1), own[:, :-1]], 1).cumsum(1)
        return cls(q, k, v, before.flatten(0, 1), before[:, -1] + own[:, -1], queries, keys)

    def sums(self) -> Tensor:
        """Sums of all queries, (G, T, M)."""
        return self._join((self.q @ self.before).baddbmm_(self._scores(), self.v), self.queries)

    def gradients(self, grad: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v and `first` given those of the sums, (G, T, M), and of the state after, (G, F, M)."""
        grad = _cut(grad, self.q.shape[1])
        later, grad_first = _sums_of_later(state_of(self.q, grad).unflatten(0, (len(grad_after), -1)), grad_after)
        dv = (self._scores().transpose(1, 2) @ grad).baddbmm_(self.k, later)
        grad_scores = self._hide_future(grad @ self.v.transpose(1, 2))
        dq = (grad_scores @ self.k).baddbmm_(grad, self.before.transpose(1, 2))
        dk = (grad_scores.transpose(1, 2) @ self.q).baddbmm_(self.v, later.transpose(1, 2))
        return self._join(dq, self.queries), self._join(dk, self.keys), self._join(dv, self.keys), grad_first

    def _scores(self) -> Tensor:
        return self._hide_future(self.q @ self.k.transpose(1, 2))

    def _hide_future(self, scores: Tensor) -> Tensor:
        """Zero, in place, the scores (G * n, C, C * ratio) of keys behind a query's visible prefix."""
        chunk, keys = scores.shape[1:]
        if chunk == keys:
            return scores.tril_()
        return scores.mul_(Visible(1, keys // chunk).mask(chunk, keys, scores.device).to(scores.dtype))

    def _join(self, rows: Tensor, count: int) -> Tensor:
        """(G * n, size, X) back to (G, count, X)."""
        return rows.view(len(self.after), -1, rows.shape[2])[:, :count]


def outside_autocast(backward: _Backward) -> _Backward:
    """A backward pass in the precision of the forward one, also where it is called inside of autocast."""

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor) -> Any:
        with torch.autocast(grads[0].device.type, enabled=False):
            return backward(ctx, *grads)

    return cast(_Backward, run)


class _ChunkSums(torch.autograd.Function):
    """Sums and the state after; autograd left to itself would copy every gradient twice."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, first: Tensor, *sizes: int) -> tuple[Tensor, Tensor]:
        *tensors, queries, keys = chunks = Chunks.cut(q, k, v, first, *sizes)
        ctx.save_for_backward(*tensors)
        ctx.counts = queries, keys
        return chunks.sums(), chunks.after

    @staticmethod
    @once_differentiable
    @outside_autocast
    def backward(ctx: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor | None, ...]:
        return *Chunks(*ctx.saved_tensors, *ctx.counts).gradients(grad, grad_after), None, None


class _StateOf(torch.autograd.Function):
    """`state_of`, whose gradients lie in memory as k and v do and not transposed."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(k, v)
        return state_of(k, v)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        k, v = ctx.saved_tensors
        return v @ grad.transpose(1, 2), k @ grad


class _ScoresOf(torch.autograd.Function):
    """q k^T, whose gradients lie in memory as q and k do and not transposed."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        return q @ k.mT

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        q, k = ctx.saved_tensors
        return grad @ k, grad.mT @ q


def _cut(rows: Tensor, size: int) -> Tensor:
    """(G, R, X) to (G * n, size, X), zero rows filling the last chunk."""
    missing = -rows.shape[1] % size
    if missing:
        rows = F.pad(rows, (0, 0, 0, missing))
    return rows.reshape(-1, size, rows.shape[2])


def _sums_of_later(own: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """For each chunk the sum of `own`, (G, n, F, M), over the chunks after it and of `last`; and the sum of all.

    It is what queries send back to the keys before them. Summed from the end, so nothing is ever subtracted.
    """
    later = torch.empty_like(own)
    later[:, -1] = last
    for c in range(own.shape[1] - 1, 0, -1):
        torch.add(later[:, c], own[:, c], out=later[:, c - 1])
    return later.flatten(0, 1), later[:, 0] + own[:, 0]
