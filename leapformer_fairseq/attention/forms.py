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
    return F.pad(v, (0, 1), value=1.0)


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


def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible | None, state: Tensor | None = None, chunk: int | None = None
) -> Tensor:
    """The same sums in linear time: states cross chunks, the quadratic part stays inside one. (G, T, M).

    `state`, (G, F, M), stands for keys that came before and that every query sees.
    """
    if visible is None:
        return q @ _plus(state_of(k, v), state)
    shared = min(visible.shared, k.shape[1])
    first = _plus(state_of(k[:, :shared], v[:, :shared]), state)
    chunks = Chunks(q, k[:, shared:], v[:, shared:], first, visible.ratio, chunk or default_chunk(visible))
    return chunks.sums()


def _plus(new: Tensor, old: Tensor | None) -> Tensor:
    return new if old is None else old + new


class Chunks:
    """Queries and keys of one stretch cut into aligned chunks, with the state before each chunk.

    Query t of the stretch sees the state `first` and the first ratio * (t + 1) keys. Queries beyond the last key see
    everything; they form a tail without a quadratic part.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, first: Tensor, ratio: int, chunk: int) -> None:
        queries, keys = q.shape[1], k.shape[1]
        chunk = min(chunk, max(1, queries))
        reach = -(-keys // ratio)  # queries that still gain keys
        self.n = -(-min(queries, reach) // chunk)
        self.body = min(queries, self.n * chunk)
        self.chunk, self.ratio, self.keys = chunk, ratio, min(keys, self.n * chunk * ratio)
        self.q = self._cut(q[:, : self.body], chunk)
        self.k = self._cut(k[:, : self.keys], chunk * ratio)
        self.v = self._cut(v[:, : self.keys], chunk * ratio)
        self.tail = q[:, self.body :]
        own = state_of(self.k, self.v).unflatten(0, (-1, self.n)) if self.n else first.new_empty(len(first), 0, *first.shape[1:])
        #: (G, n + 1, F, M): the state before each chunk, and after the last one
        self.states = torch.cat([first.unsqueeze(1), own], 1).cumsum(1)

    def _cut(self, rows: Tensor, size: int) -> Tensor:
        """(G, R, X) to (G * n, size, X), zero rows filling the last chunk."""
        missing = self.n * size - rows.shape[1]
        if missing:
            rows = F.pad(rows, (0, 0, 0, missing))
        return rows.reshape(len(rows) * self.n, size, rows.shape[-1])

    def join(self, rows: Tensor, count: int) -> Tensor:
        """(G * n, size, X) back to (G, count, X)."""
        return rows.reshape(-1, self.n * rows.shape[1], rows.shape[2])[:, :count]

    def before(self) -> Tensor:
        """The state before each chunk, (G * n, F, M)."""
        return self.states[:, :-1].flatten(0, 1)

    def after(self) -> Tensor:
        """The state after all keys, (G, F, M)."""
        return self.states[:, -1]

    def hide_future(self, scores: Tensor) -> Tensor:
        """Zero the scores, (G * n, C, C * ratio), of keys behind a query's visible prefix."""
        if self.ratio == 1:
            return scores.tril()
        return scores * Visible(1, self.ratio).mask(*scores.shape[1:], scores.device)

    def sums(self) -> Tensor:
        """Output of the stretch, (G, T, M)."""
        if not self.n:
            return self.tail @ self.after()
        scores = self.hide_future(self.q @ self.k.transpose(1, 2))
        body = self.join(torch.baddbmm(self.q @ self.before(), scores, self.v), self.body)
        return body if not self.tail.shape[1] else torch.cat([body, self.tail @ self.after()], 1)

    def gradients(self, grad: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v and `first` given those of the sums, (G, T, M), and of the state after, (G, F, M)."""
        grad_after = torch.baddbmm(grad_after, self.tail.transpose(1, 2), grad[:, self.body :])
        dq_tail = grad[:, self.body :] @ self.after().transpose(1, 2)
        if not self.n:
            empty = grad.new_empty
            g, m, f = len(grad), grad.shape[2], self.tail.shape[2]
            return dq_tail, empty(g, 0, f), empty(g, 0, m), grad_after
        go = self._cut(grad[:, : self.body], self.chunk)
        # what each chunk's queries send to the state before them, summed from the end: row c is what chunk c's keys get
        to_state = torch.cat([state_of(self.q, go).unflatten(0, (-1, self.n)), grad_after.unsqueeze(1)], 1)
        to_state = to_state.flip(1).cumsum(1).flip(1)
        later = to_state[:, 1:].flatten(0, 1)
        dscores = self.hide_future(go @ self.v.transpose(1, 2))
        scores = self.hide_future(self.q @ self.k.transpose(1, 2))
        dq = torch.baddbmm(dscores @ self.k, go, self.before().transpose(1, 2))
        dk = torch.baddbmm(dscores.transpose(1, 2) @ self.q, self.v, later.transpose(1, 2))
        dv = torch.baddbmm(scores.transpose(1, 2) @ go, self.k, later)
        dq = torch.cat([self.join(dq, self.body), dq_tail], 1) if dq_tail.shape[1] else self.join(dq, self.body)
        return dq, self.join(dk, self.keys), self.join(dv, self.keys), to_state[:, 0]
