"""Linear attention in linear time: sums over visible keys, o_t = sum_{s < g(t)} (q_t . k_s) v_s.

q and k are features, the output of a mechanism's feature map, so nothing here knows a mechanism. If v has an additional
column of ones, the last column of o is the normalizer, and `normalize` divides by it (Katharopoulos et al., 2020,
arXiv:2006.16236, eq. 4-12).

Shapes: T queries, S keys, F features, M value columns, any leading dimensions (..), which are flattened to G; n chunks
of C queries and C * ratio keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..masks import ChunkMask, PrefixMask
from . import dispatch
from .precision import without_autocast
from .segments import first_order


def append_ones(v: Tensor) -> Tensor:
    """Append a column of ones to values, (.., S, E + 1); summed like the others, it is the normalizer."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)


def normalize(sums: Tensor, floor: float, dtype: torch.dtype | None = None, scale: Tensor | None = None) -> Tensor:
    """Divide sums (.., T, E + 1) by their last column, clamped from below by `floor`.

    A query that matches no key gives 0, never NaN. `scale`, (.., T, 1), is a positive factor that the sums of each
    query still lack; it cancels except in the clamp. The result is rounded to `dtype`.

    This and `gained_sums` have no second derivatives; a reference uses plain operators.
    """
    out: Tensor = _Normalize.apply(sums, floor if scale is None else floor / scale)
    return out if dtype is None else out.to(dtype)


def by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply vectors (B, H, T, D) by the weight (H, F, D) of their head: (B, H, T, F), in the precision of x.

    One product for all vectors of a head; torch.matmul would copy the weights for each batch entry.
    """
    return torch.einsum("bhtd,hfd->bhtf", x, weight.to(x.dtype))


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Scores of all pairs of queries and keys, q k^T, (.., T, S)."""
    return _product(q, k, "a b^T")


def state_of(k: Tensor, v: Tensor) -> Tensor:
    """K^T V, (.., F, M): all that queries that see all of these keys (.., S, F) and values (.., S, M) need of them."""
    return _product(k, v, "a^T b")


def read_state(q: Tensor, state: Tensor) -> Tensor:
    """Sums (.., T, M) that queries (.., T, F) read from a state (.., F, M)."""
    return _product(q, state, "a b")


def states(transition: Tensor | None, added: Tensor, first: Tensor, backward: bool = False) -> tuple[Tensor, Tensor]:
    """The state before each of n blocks, (G, n, F, M), and after all, (G, F, M); a block turns S into A S + N.

    The transition A is a matrix, (G, n, F, F), a factor, (G, n, 1 or F, 1), or 1 (None); N is `added`, (G, n, F, M).
    `first`, (G, F, M), is the state before the first block. With `backward` the blocks run from the last to the first:
    `first` enters the last block, and "before" means on arrival from the next one. Not differentiable.
    """
    if added.shape[1] > dispatch.states_in_turn(added.device):
        return _states_in_groups(transition, added, first, backward)
    return _states_in_turn(transition, added, first, backward)


def _states_in_turn(transition: Tensor | None, added: Tensor, first: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    """`states`, one block after another: the fewest operations, in n calls."""
    count = added.shape[1]
    order = range(count - 1, -1, -1) if backward else range(count)
    if dispatch.is_traced():
        reached = [first]
        for block in order:
            decayed = reached[-1] if transition is None else _applied(transition[:, block], reached[-1])
            reached.append(added[:, block] + decayed)
        return torch.stack(reached[-2::-1] if backward else reached[:-1], 1), reached[-1]
    before, after = torch.empty_like(added), added.new_empty(first.shape)
    before[:, order[0]] = first
    for block, following in zip(order, [*order[1:], None], strict=True):
        out = after if following is None else before[:, following]
        if transition is None:
            torch.add(added[:, block], before[:, block], out=out)
        elif is_matrix(transition, added):
            torch.baddbmm(added[:, block], transition[:, block], before[:, block], out=out)
        else:
            torch.addcmul(added[:, block], transition[:, block], before[:, block], out=out)
    return before, after


def _states_in_groups(transition: Tensor | None, added: Tensor, first: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    """`states` in about 2 sqrt(n) calls: inside all groups of sqrt(n) blocks at once, then from group to group.

    On a GPU, launching a call takes longer than computing the state of a block.
    """
    if backward:
        flipped = None if transition is None else transition.flip(1)
        before, after = _states_in_groups(flipped, added.flip(1), first, backward=False)
        return before.flip(1), after
    if transition is None:
        before = torch.cat([first.unsqueeze(1), added[:, :-1]], 1).cumsum_(1)
        return before, before[:, -1] + added[:, -1]

    matrix, count, (features, columns) = is_matrix(transition, added), added.shape[1], added.shape[-2:]
    size = math.isqrt(count - 1) + 1
    # Each group starts from an empty state, with the identity in additional columns. These become the product of the
    # transitions so far, by which the state that enters the group is multiplied once it is known.
    identity = torch.eye(features, dtype=added.dtype, device=added.device) if matrix else added.new_ones(features, 1)
    start = torch.cat([added.new_zeros(features, columns), identity], -1)
    wider = F.pad(added, (0, identity.shape[-1]))
    transitions, wider = (
        F.pad(x, (0, 0, 0, 0, 0, -count % size)).unflatten(1, (-1, size)).flatten(0, 1) for x in (transition, wider)
    )
    inside, ends = _states_in_turn(transitions, wider, start.expand(len(wider), -1, -1), backward=False)
    by_group = ends.unflatten(0, (len(first), -1))
    arriving, _ = _states_in_turn(by_group[..., columns:], by_group[..., :columns], first, backward=False)
    inside = inside.unflatten(0, (len(first), -1))
    before = inside[..., :columns] + _applied(inside[..., columns:], arriving.unsqueeze(2))
    before = before.flatten(1, 2)[:, :count]
    return before, _applied(transition[:, -1], before[:, -1]) + added[:, -1]


def _applied(transition: Tensor, state: Tensor) -> Tensor:
    """A state (.., F, M), multiplied by a transition: a matrix (.., F, F), or a factor (.., 1 or F, 1)."""
    return transition @ state if is_matrix(transition, state) else transition * state


def running_sums(x: Tensor) -> Tensor:
    """Cumulative sums of x (.., T, M) over tokens.

    Many tokens on a GPU are summed in parts, because its cumsum goes through the tokens of a column one by one.
    """
    limits, count = dispatch.bounds(x.device), x.shape[-2]
    if count <= limits.chunk * limits.states_in_turn:
        return x.cumsum(-2)
    parts = F.pad(x, (0, 0, 0, -count % limits.chunk)).unflatten(-2, (-1, limits.chunk)).cumsum(-2)
    before = F.pad(parts[..., :-1, -1:, :].cumsum(-3), (0, 0, 0, 0, 1, 0))
    return (parts + before).flatten(-3, -2)[..., :count, :]


def gradient_of_decay(grads: Tensor, before: Tensor, after: Tensor, decay: Tensor) -> Tensor:
    """Gradient of factors `decay`, (G, n, 1 or F, 1), by which each of n blocks multiplies the state at its end.

    `grads`, (G, n, F, M), are the gradients of the states after each block; `before` and `after` are what `states`
    returned. The state after a block, divided by the factor, is what the factor multiplied.
    """
    pairs = (grads[:, :-1], before[:, 1:]), (grads[:, -1:], after.unsqueeze(1))
    products = torch.cat([(grad * state).sum(-1, keepdim=True) for grad, state in pairs], 1)
    return products.sum_to_size(decay.shape) / decay


def is_matrix(transition: Tensor, added: Tensor) -> bool:
    """Whether a transition of `states` is a matrix, and not a factor."""
    return transition.shape[-1] == added.shape[-2] > 1


def gained_sums(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, ratio: int, chunk: int, decay_after: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums (.., T, M) over the state `first` (.., F, M) and the first ratio * (t + 1) keys; the state after all keys.

    Every query sees at least one key more than the query before it; the last may see fewer than `ratio` more. All pairs
    are compared inside chunks of `chunk` queries and their keys; earlier keys are read from the state. At the end of
    each chunk the state, with what the chunk added, is multiplied by `decay_after`, (.., n, 1 or F, 1).
    """
    lead = first.shape[:-2]
    q, k, v, first = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v, first))
    decay_after = None if decay_after is None else decay_after.reshape(-1, *decay_after.shape[-3:])
    sums, after = _GainedSums.apply(q, k, v, first, decay_after, ratio, chunk)
    return sums.reshape(*lead, *sums.shape[1:]), after.reshape(*lead, *after.shape[1:])


def apart(x: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """The tokens before `at`, and those from it on. A part that has all of them is x itself: no gradient is copied."""
    if at in (0, x.shape[-2]):
        return (x, x[..., :0, :]) if at else (x[..., :0, :], x)
    before, after = x.split([at, x.shape[-2] - at], -2)
    return before, after


def chunked_sums(q: Tensor, k: Tensor, v: Tensor, first: Tensor, mask: ChunkMask, tokens: int) -> tuple[Tensor, Tensor]:
    """Sums (.., T, M) over each query's chunk, earlier chunks and the state `first`; the state after all chunks.

    Short chunks are handled together, up to `tokens` queries, by comparing all pairs: a state for each would take more
    memory than the tokens. The queries of a longer chunk read all of it, look-ahead included, from a state.
    """
    lead, count = first.shape[:-2], q.shape[-2]
    together = mask.tokens * max(1, tokens // mask.tokens)
    q, k, v = (_cut(x.reshape(-1, *x.shape[-2:]), together) for x in (q, k, v))
    first = first.reshape(-1, *first.shape[-2:])
    written = k * mask.own(together, k.device).unsqueeze(1) if mask.ahead else k  # no copies for look-ahead
    added = state_of(written, v).unflatten(0, (len(first), -1))
    totals = torch.cat([first.unsqueeze(1), added], 1).cumsum(1)
    before = totals[:, :-1].flatten(0, 1)
    if together == mask.tokens and together > tokens:
        sums = q @ (before + (state_of(k, v) if mask.ahead else added.flatten(0, 1)))
    else:
        pairs = scores(q, k) * mask.mask(together, together, q.device)
        sums = q @ before + pairs @ v
    sums = sums.reshape(len(first), -1, v.shape[-1])[:, :count]
    return sums.reshape(*lead, *sums.shape[1:]), totals[:, -1].reshape(*lead, *totals.shape[2:])


class _Chunks(NamedTuple):
    """What `gained_sums` computes with: n chunks of queries and of the keys that they gain, and the states between."""

    q: Tensor  # (G * n, C, F)
    k: Tensor  # (G * n, C * ratio, F)
    v: Tensor  # (G * n, C * ratio, M)
    before: Tensor  # (G * n, F, M), the state before each chunk
    after: Tensor  # (G, F, M), the state after all keys
    decay_after: Tensor | None  # (G, n, 1 or F, 1), the decay at the end of each chunk; None: 1
    queries: int  # T and S: without the zeros that fill the last chunk
    keys: int

    @classmethod
    def cut(
        cls, q: Tensor, k: Tensor, v: Tensor, first: Tensor, decay_after: Tensor | None, ratio: int, chunk: int
    ) -> _Chunks:
        """Cut q (G, T, F), k (G, S, F) and v (G, S, M), and compute the states that follow `first` (G, F, M)."""
        queries, keys = q.shape[1], k.shape[1]
        chunk = max(1, min(chunk, queries))
        q, k, v = _cut(q, chunk), _cut(k, chunk * ratio), _cut(v, chunk * ratio)
        added = (k.mT @ v).unflatten(0, (len(first), -1))
        before, after = states(decay_after, added if decay_after is None else added.mul_(decay_after), first)
        return cls(q, k, v, before.flatten(0, 1), after, decay_after, queries, keys)

    def sums(self) -> Tensor:
        """Sums of all queries, (G, T, M)."""
        return self._join((self.q @ self.before).baddbmm_(self._scores(), self.v), self.queries)

    def gradients(self, grad: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Gradients of q, k, v, `first` and `decay_after`, given those of the sums (G, T, M) and of `after`."""
        grad = _cut(grad, self.q.shape[1])
        to_added, to_first, to_decay = self._state_gradients(self.q.mT @ grad, grad_after)
        dv = (self._scores().mT @ grad).baddbmm_(self.k, to_added)
        grad_scores = self._hide_future(grad @ self.v.mT)
        dq = (grad_scores @ self.k).baddbmm_(grad, self.before.mT)
        dk = (grad_scores.mT @ self.q).baddbmm_(self.v, to_added.mT)
        return self._join(dq, self.queries), self._join(dk, self.keys), self._join(dv, self.keys), to_first, to_decay

    def _state_gradients(self, from_queries: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of what each chunk adds to the state, (G * n, F, M), of `first`, and of `decay_after`.

        `from_queries`, (G * n, F, M), is the gradient of the state before each chunk that the chunk's own queries
        cause; `grad_after`, (G, F, M), is that of `after`. They are summed from the last chunk to the first, since
        subtracting the first chunks from a total would lose digits.
        """
        from_queries, decay = from_queries.unflatten(0, (len(grad_after), -1)), self.decay_after
        to_states, to_first = states(decay, from_queries, grad_after, backward=True)  # to the state after each chunk
        if decay is None:
            return to_states.flatten(0, 1), to_first, None
        before = self.before.unflatten(0, (len(grad_after), -1))
        to_decay = gradient_of_decay(to_states, before, self.after, decay)
        return to_states.mul_(decay).flatten(0, 1), to_first, to_decay

    def _scores(self) -> Tensor:
        return self._hide_future(self.q @ self.k.mT)

    def _hide_future(self, scores: Tensor) -> Tensor:
        """Set the scores (G * n, C, C * ratio) of keys that a query does not see yet to 0, in place."""
        chunk, keys = scores.shape[1:]
        if chunk == keys:
            return scores.tril_()
        return scores.mul_(PrefixMask(1, keys // chunk).mask(chunk, keys, scores.device).to(scores.dtype))

    def _join(self, tokens: Tensor, count: int) -> Tensor:
        """Join chunks (G * n, size, X) to (G, count, X), without the zeros that fill the last one."""
        return tokens.view(len(self.after), -1, tokens.shape[2])[:, :count]


class _GainedSums(torch.autograd.Function):
    """`gained_sums` with a backward pass of its own, since autograd's would copy every gradient twice."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, first: Tensor, decay_after: Tensor | None, ratio: int, chunk: int
    ) -> tuple[Tensor, Tensor]:
        *tensors, queries, keys = chunks = _Chunks.cut(q, k, v, first, decay_after, ratio, chunk)
        ctx.save_for_backward(*tensors)
        ctx.counts = queries, keys
        return chunks.sums(), chunks.after

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor | None, ...]:
        return *_Chunks(*saved, *ctx.counts).gradients(grad, grad_after), None, None


def _product(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """a b, a^T b or a b^T, as `kind` says."""
    if torch.is_grad_enabled() and not dispatch.is_traced():
        return _Product.apply(a, b, kind)
    return _Product.forward(a, b, kind)


class _Product(torch.autograd.Function):
    """`_product`, whose gradients have the memory layout of a and b, which autograd's would not.

    They can be differentiated again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, kind: str) -> Tensor:
        return (a.mT if kind == "a^T b" else a) @ (b.mT if kind == "a b^T" else b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
        *tensors, ctx.kind = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        with without_autocast(grad.device):
            if ctx.kind == "a^T b":
                return b @ grad.mT, a @ grad, None
            return (grad @ b, grad.mT @ a, None) if ctx.kind == "a b^T" else (grad @ b.mT, a.mT @ grad, None)


class _Normalize(torch.autograd.Function):
    """The quotient of `normalize`. Its backward pass takes two passes over the output, autograd's six."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, floor: float | Tensor) -> Tensor:
        norm = sums[..., -1:].clone()  # a slice would keep all sums in memory
        out = sums[..., :-1] / norm.clamp_min(floor)
        ctx.save_for_backward(out, norm, *([floor] if isinstance(floor, Tensor) else []))
        ctx.floor = floor if isinstance(floor, float) else None
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        out, norm, *floors = saved
        floor = floors[0] if floors else ctx.floor
        sums = None if dispatch.is_traced() else grad.new_empty(*grad.shape[:-1], grad.shape[-1] + 1)
        numerator = torch.div(grad, norm.clamp_min(floor), out=None if sums is None else sums[..., :-1])
        to_divisor, above = -(numerator * out).sum(-1, keepdim=True), norm >= floor
        if sums is None:
            sums = torch.cat([numerator, to_divisor * above], -1)
        else:
            sums[..., -1:] = to_divisor * above
        return sums, to_divisor * ~above if ctx.needs_input_grad[1] else None


def _cut(tokens: Tensor, size: int) -> Tensor:
    """Cut (G, R, X) into chunks (G * n, size, X); zeros fill the last one."""
    missing = -tokens.shape[1] % size
    if missing:
        tokens = F.pad(tokens, (0, 0, 0, missing))
    return tokens.reshape(-1, size, tokens.shape[2])
