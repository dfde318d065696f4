"""Chunkwise linear attention that keeps almost nothing for the backward pass.

Plain autograd saves the mapped features of every row, several times the size of q and k. This Function walks the
sequence in stretches of some hundred rows, keeps one state per stretch, and maps the rows anew in the backward pass.
Peak memory stays near that of fused softmax attention while the time is linear. Any row-wise feature map works,
with its parameters; the formulas of a stretch are those of `forms.Chunks`.

Of the forms, only the parallel one has a gradient that can itself be differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .forms import Chunks, append_ones, default_chunk, gaining, normalize, outside_autocast, state_of
from .masks import Visible

# Rows mapped at once, of queries and keys together, over all heads and the batch: enough for fast matrix products, few
# enough for the cache (measured: 4,000 to 16,000 do equally well).
ROWS = 8192


class RowMap(Protocol):
    """Feature map of the rows `start` to `stop`: (B, H, stop - start, D) to (B, H, stop - start, F)."""

    def __call__(self, rows: Tensor, start: int, stop: int) -> Tensor: ...


class Plan(NamedTuple):
    """What the Function needs besides tensors."""

    map_query: RowMap
    map_key: RowMap
    visible: Visible | None
    floor: float
    chunk: int | None

    def chunking(self) -> tuple[int, int]:
        """Keys per query, and queries per chunk."""
        visible = self.visible or Visible()
        return visible.ratio, self.chunk or default_chunk(visible)

    def stretches(self, q: Tensor, k: Tensor) -> list[Stretch]:
        """The work in order, cut to the size of the batch."""
        rows = max(1, ROWS // (q.shape[0] * q.shape[1]))
        return list(stretches(q.shape[2], k.shape[2], self.visible, self.chunking()[1], rows))


class Stretch(NamedTuple):
    """Queries [t0, t1) that see every key before s0 and, growing, those of [s0, s1). Either side may be empty."""

    t0: int
    t1: int
    s0: int
    s1: int


def stretches(queries: int, keys: int, visible: Visible | None, chunk: int, rows: int) -> Iterator[Stretch]:
    """Cut the work: keys that every query sees, then queries with the keys they gain, then queries that gain none."""
    shared, growing, ratio = keys, 0, 1
    if visible is not None:
        shared, growing, ratio = min(visible.shared, keys), gaining(visible, queries, keys), visible.ratio
    for s in range(0, shared, rows):
        yield Stretch(0, 0, s, min(s + rows, shared))
    step = max(1, rows // (chunk * (ratio + 1))) * chunk
    for t in range(0, growing, step):
        t1 = min(t + step, growing)
        yield Stretch(t, t1, shared + t * ratio, min(shared + t1 * ratio, keys))
    for t in range(growing, queries, rows):
        yield Stretch(t, min(t + rows, queries), keys, keys)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, parameters: tuple[Tensor, ...], plan: Plan) -> Tensor:
    """Normalised linear attention (B, H, T, E) of raw q, k (mapped by the plan) and v.

    `parameters` are those of the maps that want a gradient.
    """
    return _Recompute.apply(plan, q, k, v, *parameters)


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        out = v.new_empty(*q.shape[:3], v.shape[3])
        norm = v.new_empty(*q.shape[:3], 1)
        states: list[Tensor] = []  # before each stretch that has queries
        state = None
        for t0, t1, s0, s1 in plan.stretches(q, k):
            fk = plan.map_key(k[:, :, s0:s1], s0, s1).flatten(0, 1)
            v1 = append_ones(v[:, :, s0:s1]).flatten(0, 1)
            if state is None:
                state = v.new_zeros(len(fk), fk.shape[2], v1.shape[2])
            if t0 == t1:
                state = state + state_of(fk, v1)
                continue
            states.append(state)
            fq = plan.map_query(q[:, :, t0:t1], t0, t1).flatten(0, 1)
            if s0 == s1:
                sums = fq @ state
            else:
                chunks = Chunks.cut(fq, fk, v1, state, *plan.chunking())
                sums, state = chunks.sums(), chunks.after
            sums = sums.unflatten(0, q.shape[:2])
            out[:, :, t0:t1] = normalize(sums, plan.floor)
            norm[:, :, t0:t1] = sums[..., -1:]
        ctx.plan, ctx.count = plan, len(parameters)
        ctx.save_for_backward(q, k, v, out, norm, *parameters, *states)
        return out

    @staticmethod
    @once_differentiable
    @outside_autocast
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        q, k, v, out, norm, *rest = ctx.saved_tensors
        parameters, states = rest[: ctx.count], rest[ctx.count :]
        queries, keys = _Side(plan.map_query, q, parameters), _Side(plan.map_key, k, parameters)
        dv = torch.empty_like(v)
        dstate = torch.zeros_like(states[-1])
        work = plan.stretches(q, k)
        for unseen in (keys.grad[:, :, work[-1].s1 :], dv[:, :, work[-1].s1 :]):
            unseen.zero_()
        for t0, t1, s0, s1 in reversed(work):
            if t0 < t1:
                fq, send_to_queries = queries.map(t0, t1)
                grad = _grad_of_sums(grad_out[:, :, t0:t1], out[:, :, t0:t1], norm[:, :, t0:t1], plan.floor)
                state = states.pop()
            if s0 == s1:
                send_to_queries(grad @ state.transpose(1, 2))
                dstate = dstate + state_of(fq, grad)
                continue
            fk, send_to_keys = keys.map(s0, s1)
            v1 = append_ones(v[:, :, s0:s1]).flatten(0, 1)
            if t0 == t1:
                dfk, dv1 = v1 @ dstate.transpose(1, 2), fk @ dstate
            else:
                chunks = Chunks.cut(fq, fk, v1, state, *plan.chunking())
                dfq, dfk, dv1, dstate = chunks.gradients(grad, dstate)
                send_to_queries(dfq)
            send_to_keys(dfk)
            dv[:, :, s0:s1] = dv1[..., :-1].unflatten(0, v.shape[:2])
        return None, queries.grad, keys.grad, dv, *map(total, queries.parameter_grads, keys.parameter_grads)


def _grad_of_sums(grad: Tensor, out: Tensor, norm: Tensor, floor: float) -> Tensor:
    """Gradient of the sums (numerator and normalizer) behind `normalize`, (G, T, E + 1)."""
    sums = grad.new_empty(*grad.shape[:-1], grad.shape[-1] + 1)
    numerator = torch.div(grad, norm.clamp_min(floor), out=sums[..., :-1])
    sums[..., -1:] = (numerator * out).sum(-1, keepdim=True) * -(norm >= floor).to(norm.dtype)
    return sums.flatten(0, 1)


class _Side:
    """Raw queries or keys, mapped once more stretch by stretch, and the gradients sent back to them."""

    def __init__(self, row_map: RowMap, rows: Tensor, parameters: list[Tensor]) -> None:
        self.row_map, self.rows, self.parameters = row_map, rows, parameters
        self.grad = torch.empty_like(rows)
        self.parameter_grads: list[Tensor | None] = [None] * len(parameters)

    def map(self, start: int, stop: int) -> tuple[Tensor, Callable[[Tensor], None]]:
        """Features of the rows `start` to `stop`, (G, R, F), and the function that takes their gradient."""
        with torch.enable_grad():
            rows = self.rows[:, :, start:stop].detach().requires_grad_()
            mapped = self.row_map(rows, start, stop)

        def send_back(grad: Tensor) -> None:
            inputs = (rows, *self.parameters)
            grads = torch.autograd.grad(mapped, inputs, grad.unflatten(0, mapped.shape[:2]), allow_unused=True)
            self.grad[:, :, start:stop] = grads[0]
            self.parameter_grads = list(map(total, self.parameter_grads, grads[1:]))

        return mapped.detach().flatten(0, 1), send_back


def total(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of two gradients; None where a parameter had none."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
