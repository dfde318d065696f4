"""Linear attention as sums over visible keys: o_t = sum_{s < g(t)} (q_t . k_s) v_s, in three forms that agree.

q and k are *mapped* features, so nothing here knows about a mechanism. A column of ones appended to v makes the last
column of o the normalizer, which `normalize` divides by (Katharopoulos et al., 2020, arXiv:2006.16236, eq. 4-12).

Shapes: G batch times heads, T queries, S keys, F features, M value columns, n chunks of C queries and C * ratio keys.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .masks import Visible


def append_ones(v: Tensor) -> Tensor:
    """Values with one more column of ones, (.., S, E + 1): its sum is the normalizer."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)


def normalize(sums: Tensor, floor: float) -> Tensor:
    """Divide by the last column, clamped from below by `floor`: a query that matches no key gives 0, never NaN."""
    return sums[..., :-1] / sums[..., -1:].clamp_min(floor)


def parallel(q: Tensor, k: Tensor, v: Tensor, visible: Visible | None) -> Tensor:
    """The quadratic reference, (.., T, M)."""
    scores = q @ k.transpose(-1, -2)
    if visible is not None:
        scores = scores * visible.mask(q.shape[-2], k.shape[-2], q.device)
    return scores @ v


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


def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible | None, state: Tensor | None = None, chunk: int | None = None
) -> Tensor:
    """The same sums in linear time: states cross chunks, the quadratic part stays inside one. (G, T, M).

    `state`, (G, F, M), stands for keys that came before and that every query sees.
    """
    if visible is None:
        return q @ plus(state_of(k, v), state)
    queries, keys = q.shape[1], k.shape[1]
    n = gaining(visible, queries, keys)
    shared = min(visible.shared, keys)
    first = k.new_zeros(len(k), k.shape[2], v.shape[2]) if state is None else state
    # split, since each slice of a tensor costs a tensor of zeros as large as the whole one in the backward pass
    if shared:
        (k_shared, k), (v_shared, v) = (x.split((shared, keys - shared), 1) for x in (k, v))
        first = first + state_of(k_shared, v_shared)
    q, late = q.split((n, queries - n), 1) if n < queries else (q, None)
    gained = n * visible.ratio
    chunks = Chunks(q, k[:, :gained], v[:, :gained], first, visible.ratio, chunk or default_chunk(visible)) 
    return chunks.sums() if late is None else torch.cat([chunks.sums(), late @ chunks.after], 1)


def plus(new: Tensor, old: Tensor | None) -> Tensor:
    """The sum of a new part of a state and the old one, if any."""
    return new if old is None else old + new


class Chunks:
    """Queries and the keys they gain, cut into n aligned chunks, with the state before each chunk.

    Query t sees the state `first` and the first ratio * (t + 1) keys; every query gains at least one.
    Scores are masked and sums completed in place: autograd needs none of the values that this overwrites.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, first: Tensor, ratio: int, chunk: int) -> None:
        self.queries, self.keys, self.ratio = q.shape[1], k.shape[1], ratio
        self.chunk = max(1, min(chunk, self.queries))
        self.n = max(1, -(-self.queries // self.chunk))
        self.q, self.k, self.v = self._cut(q), self._cut(k, ratio), self._cut(v, ratio)
        own = state_of(self.k, self.v).unflatten(0, (-1, self.n))
        before = torch.cat([first.unsqueeze(1), own[:, :-1]], 1).cumsum(1)
        #: the states before each chunk, (G * n, F, M), and after all keys, (G, F, M)
        self.before, self.after = before.flatten(0, 1), before[:, -1] + own[:, -1]

    def _cut(self, rows: Tensor, ratio: int = 1) -> Tensor:
        """(G, R, X) to (G * n, C * ratio, X), zero rows filling the last chunk."""
        size = self.chunk * ratio
        missing = self.n * size - rows.shape[1]
        if missing:
            rows = F.pad(rows, (0, 0, 0, missing))
        return rows.reshape(len(rows) * self.n, size, rows.shape[2])

    def _join(self, rows: Tensor, count: int) -> Tensor:
        """(G * n, size, X) back to (G, count, X)."""
        return rows.view(-1, self.n * rows.shape[1], rows.shape[2])[:, :count]

    def _hide_future(self, scores: Tensor) -> Tensor:
        """Zero the scores, (G * n, C, C * ratio), of keys behind a query's visible prefix."""
        if self.ratio == 1:
            return scores.tril_()
        return scores.mul_(Visible(1, self.ratio).mask(*scores.shape[1:], scores.device).to(scores.dtype))

    def _scores(self) -> Tensor:
        return self._hide_future(self.q @ self.k.transpose(1, 2))

    def sums(self) -> Tensor:
        """Sums of all queries, (G, T, M)."""
        return self._join((self.q @ self.before).baddbmm_(self._scores(), self.v), self.queries)

    def gradients(self, grad: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v and `first` given those of the sums, (G, T, M), and of the state after, (G, F, M)."""
        grad = self._cut(grad)
        later, grad_first = _sums_of_later(state_of(self.q, grad).unflatten(0, (-1, self.n)), grad_after)
        grad_scores = self._hide_future(grad @ self.v.transpose(1, 2))
        dq = (grad_scores @ self.k).baddbmm_(grad, self.before.transpose(1, 2))
        dk = (grad_scores.transpose(1, 2) @ self.q).baddbmm_(self.v, later.transpose(1, 2))
        dv = (self._scores().transpose(1, 2) @ grad).baddbmm_(self.k, later)
        return self._join(dq, self.queries), self._join(dk, self.keys), self._join(dv, self.keys), grad_first


def _sums_of_later(own: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """For each chunk the sum of `own`, (G, n, F, M), over the chunks after it and of `last`; and the sum of all.

    It is what queries send back to the keys before them. Summed from the end, so nothing is ever subtracted.
    """
    later = torch.empty_like(own)
    later[:, -1] = last
    for c in range(own.shape[1] - 1, 0, -1):
        torch.add(later[:, c], own[:, c], out=later[:, c - 1])
    return later.flatten(0, 1), later[:, 0] + own[:, 0]
