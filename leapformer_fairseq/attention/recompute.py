"""Chunkwise linear attention that keeps almost nothing for the backward pass.

Plain autograd saves the mapped features of every row, several times the size of q and k. This Function walks the
sequence in stretches of a few hundred rows, keeps one state per stretch, and maps the rows anew in the backward pass.
Peak memory stays near that of fused softmax attention while the time is linear. Any row-wise feature map works,
with its parameters; the formulas of a stretch are those of `forms.Chunks`.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from .forms import Chunks, append_ones, default_chunk, normalize, state_of
from .masks import Visible

STRETCH = 512  # keys (or queries of a tail) mapped at once; enough rows for fast matrix products, few enough for the cache


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


class Stretch(NamedTuple):
    """Queries [t0, t1) that see every key before s0 and a growing prefix of [s0, s1)."""

    t0: int
    t1: int
    s0: int
    s1: int


def stretches(queries: int, keys: int, visible: Visible | None, chunk: int) -> Iterator[Stretch]:
    """Cut the work: keys that every query sees, then queries with the keys they gain, then queries that gain none."""
    shared = keys if visible is None else min(visible.shared, keys)
    for s in range(0, shared, STRETCH):
        yield Stretch(0, 0, s, min(s + STRETCH, shared))
    t, s = 0, shared
    if visible is not None:
        step = max(1, STRETCH // (chunk * visible.ratio)) * chunk
        while t < queries and s < keys:
            t1, s1 = min(t + step, queries), min(s + step * visible.ratio, keys)
            yield Stretch(t, t1, s, s1)
            t, s = t1, s1
    for start in range(t, queries, STRETCH):
        yield Stretch(start, min(start + STRETCH, queries), s, s)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, parameters: tuple[Tensor, ...], plan: Plan) -> Tensor:
    """Normalised linear attention (B, H, T, E) of raw q, k (mapped by the plan) and v."""
    return _Recompute.apply(plan, q, k, v, *parameters)


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        ratio, chunk = _ratio_and_chunk(plan)
        out = v.new_empty(*q.shape[:3], v.shape[3])
        norm = v.new_empty(*q.shape[:3], 1)
        before: list[Tensor] = []  # the state before each stretch that has queries
        state: Tensor | None = None
        for t0, t1, s0, s1 in stretches(q.shape[2], k.shape[2], plan.visible, chunk):
            fk = plan.map_key(k[:, :, s0:s1], s0, s1).flatten(0, 1)
            v1 = append_ones(v[:, :, s0:s1]).flatten(0, 1)
            if state is None:
                state = fk.new_zeros(fk.shape[0], fk.shape[2], v1.shape[2])
            if t0 == t1:
                state = state + state_of(fk, v1)
                continue
            before.append(state)
            fq = plan.map_query(q[:, :, t0:t1], t0, t1).flatten(0, 1)
            chunks = Chunks(fq, fk, v1, state, ratio, chunk)
            sums = chunks.sums().unflatten(0, q.shape[:2])
            state = chunks.after()
            out[:, :, t0:t1] = normalize(sums, plan.floor)
            norm[:, :, t0:t1] = sums[..., -1:]
        ctx.plan, ctx.counts = plan, (len(before), len(parameters))
        ctx.save_for_backward(q, k, v, out, norm, *before, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        q, k, v, out, norm, *rest = ctx.saved_tensors
        before, parameters = rest[: ctx.counts[0]], tuple(rest[ctx.counts[0] :])
        ratio, chunk = _ratio_and_chunk(plan)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        sums = _ParameterGradients(parameters)
        dstate: Tensor | None = None
        for t0, t1, s0, s1 in reversed(list(stretches(q.shape[2], k.shape[2], plan.visible, chunk))):
            key = _Mapped(plan.map_key, k, s0, s1)
            v1 = append_ones(v[:, :, s0:s1]).flatten(0, 1)
            if t0 < t1:
                query = _Mapped(plan.map_query, q, t0, t1)
                chunks = Chunks(query.features, key.features, v1, before.pop(), ratio, chunk)
                grad = _grad_of_sums(grad_out[:, :, t0:t1], out[:, :, t0:t1], norm[:, :, t0:t1], plan.floor)
                if dstate is None:
                    dstate = torch.zeros_like(chunks.after())
                dfq, dfk, dv1, dstate = chunks.gradients(grad, dstate)
                dq[:, :, t0:t1] = sums.add(query.backward(dfq, parameters))
            elif dstate is not None:
                dfk, dv1 = v1 @ dstate.transpose(1, 2), key.features @ dstate
            if s0 < s1:
                # a stretch may hold more keys than its last query sees; those have no gradient here
                seen = s0 + dfk.shape[1]
                dk[:, :, s0:s1] = sums.add(key.backward(_fill(dfk, s1 - s0), parameters))
                dv[:, :, s0:seen] = dv1[..., :-1].unflatten(0, v.shape[:2])
        return None, dq, dk, dv, *sums.totals


def _ratio_and_chunk(plan: Plan) -> tuple[int, int]:
    visible = plan.visible or Visible()
    return visible.ratio, plan.chunk or default_chunk(visible)


def _fill(rows: Tensor, count: int) -> Tensor:
    missing = count - rows.shape[1]
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def _grad_of_sums(grad: Tensor, out: Tensor, norm: Tensor, floor: float) -> Tensor:
    """Gradient of the sums (numerator and normalizer) behind `normalize`, (G, T, E + 1)."""
    numerator = grad / norm.clamp_min(floor)
    normalizer = -(numerator * out).sum(-1, keepdim=True) * (norm >= floor)
    return torch.cat([numerator, normalizer], -1).flatten(0, 1)


class _Mapped:
    """Rows mapped to features once more, with their graph, so that a gradient can be sent back to the raw rows."""

    def __init__(self, row_map: RowMap, rows: Tensor, start: int, stop: int) -> None:
        with torch.enable_grad():
            self.rows = rows[:, :, start:stop].detach().requires_grad_()
            self._mapped = row_map(self.rows, start, stop)
        self.features = self._mapped.detach().flatten(0, 1)

    def backward(self, grad: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Gradients of the raw rows (first) and of the parameters."""
        return torch.autograd.grad(
            self._mapped, (self.rows, *parameters), grad.view_as(self._mapped), allow_unused=True
        )


class _ParameterGradients:
    """Sums of the parameters' gradients over stretches; None for a parameter that never had one."""

    def __init__(self, parameters: tuple[Tensor, ...]) -> None:
        self.totals: list[Tensor | None] = [None] * len(parameters)

    def add(self, grads: tuple[Tensor | None, ...]) -> Tensor:
        rows, *others = grads
        for i, grad in enumerate(others):
            if grad is not None:
                total = self.totals[i]
                self.totals[i] = grad if total is None else total + grad
        if rows is None:
            raise RuntimeError("a feature map must depend on its rows")
        return rows
