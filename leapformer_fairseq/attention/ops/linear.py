"""Linear attention in linear time: sums over visible keys, o_t = sum_{s < g(t)} (q_t . k_s) v_s.

q and k are *mapped* features, so nothing here knows a mechanism. A column of ones appended to v makes the last column
of o the normalizer, which `normalize` divides by (Katharopoulos et al., 2020, arXiv:2006.16236, eq. 4-12).

Shapes: T queries, S keys, F features, M value columns, any leading dimensions (..); G of them flattened, n chunks of C
queries and C * ratio keys.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..masks import ChunkMask, PrefixMask
from . import dispatch
from .precision import accumulated, without_autocast
from .segments import Saved, first_order

# Decay applied to the state after each chunk; None: none.
Left = Tensor | None


class _Replay(threading.local):
    active = False


_replay = _Replay()


@contextmanager
def only_gradients(saved: Saved | None) -> Iterator[None]:
    """In this thread sums are placeholders with exact gradients if `saved` is filled.

    The output that depends on them was saved then, so that their values are not needed.
    """
    before, _replay.active = _replay.active, saved is not None and saved.filled
    try:
        yield
    finally:
        _replay.active = before


def append_ones(v: Tensor) -> Tensor:
    """Values with one more column of ones, (.., S, E + 1): its sum is the normalizer."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)


def normalize(
    sums: Tensor,
    floor: float,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
    saved: Saved | None = None,
) -> Tensor:
    """Divide by the last column, clamped from below by `floor`: a query that matches no key gives 0, never NaN.

    `scale`, (.., T, 1), is a factor that the sums of each query still lack. The result is rounded to `dtype`. What is
    `saved` is taken instead of the sums if it is filled, and filled in otherwise.

    As everything here but `scores` it has no second derivatives: a reference divides by itself.
    """
    least: float | Tensor = floor if scale is None else floor / scale
    if saved is not None and saved.normalizer is not None:
        known = saved.normalizer if scale is None else saved.normalizer / scale.detach()
        out = _Normalize.apply(sums, least, saved.output, known)
    else:
        out = _Normalize.apply(sums, least, None, None)
        if saved is not None:
            norm = sums[..., -1:].detach()
            # Cloned, so that it does not keep all sums. Blocks may be others when the segment runs again, and with
            # them the scale.
            saved.normalizer = norm.clone() if scale is None else norm * scale.detach()
            saved.output = None if dtype in (None, out.dtype) else out.detach()
    return out if dtype is None else out.to(dtype)


def by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Vectors (B, H, T, D) times the weight (H, F, D) of their head, (B, H, T, F), in the precision of x.

    One product for all vectors of a head: torch's would copy the weights for each sequence.
    """
    return torch.einsum("bhtd,hfd->bhtf", x, weight.to(x.dtype))


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Similarities of all pairs, q k^T, (.., T, S); quadratic."""
    return _Scores.apply(q, k) if torch.is_grad_enabled() else q @ k.mT


def state_of(k: Tensor, v: Tensor, last: bool = False) -> Tensor:
    """All that a query needs of keys that it sees: K^T V, (.., F, M).

    `last`: nothing of the same segment reads it, so that it may be a placeholder.
    """
    return _Product.apply(k, v, True, last) if torch.is_grad_enabled() else k.mT @ v


def read_state(q: Tensor, state: Tensor) -> Tensor:
    """Sums (.., T, M) of queries over a state (.., F, M)."""
    return _Product.apply(q, state, False, True) if torch.is_grad_enabled() else q @ state


def states(transition: Left, own: Tensor, first: Tensor, backward: bool = False) -> tuple[Tensor, Tensor]:
    """S' = M S + N over n blocks: the state before each, (G, n, F, M), and the one after all. It is not differentiable.

    The transition M is a matrix, (G, n, F, F), a factor, (G, n, 1 or F, 1), or, None, 1; N is `own`, (G, n, F, M). With
    `backward` it goes from the last block to the first, and `first` is what comes in behind the last.
    """
    if own.shape[1] > dispatch.bounds(own.device).states_in_turn:
        return _states_in_groups(transition, own, first, backward)
    return _states_in_turn(transition, own, first, backward)


def _states_in_turn(transition: Left, own: Tensor, first: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    """`states` block by block, the fewest operations."""
    count = own.shape[1]
    before, after = torch.empty_like(own), own.new_empty(first.shape)
    order = range(count - 1, -1, -1) if backward else range(count)
    before[:, order[0]] = first
    for block, following in zip(order, [*order[1:], None], strict=True):
        out = after if following is None else before[:, following]
        if transition is None:
            torch.add(own[:, block], before[:, block], out=out)
        elif is_matrix(transition, before):
            torch.baddbmm(own[:, block], transition[:, block], before[:, block], out=out)
        else:
            torch.addcmul(own[:, block], transition[:, block], before[:, block], out=out)
    return before, after


def _states_in_groups(transition: Left, own: Tensor, first: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    """`states` in about 2 sqrt(n) calls: inside all groups of blocks at once, then from group to group.

    A GPU computes the state of a block in less time than it takes to launch a call.
    """
    if backward:
        flipped = None if transition is None else transition.flip(1)
        before, after = _states_in_groups(flipped, own.flip(1), first, backward=False)
        return before.flip(1), after
    if transition is None:
        before = torch.cat([first.unsqueeze(1), own[:, :-1]], 1).cumsum_(1)
        return before, before[:, -1] + own[:, -1]

    def applied(transition: Tensor, state: Tensor) -> Tensor:
        return transition @ state if is_matrix(transition, own) else transition * state

    count, (features, columns) = own.shape[1], own.shape[-2:]
    size = math.isqrt(count - 1) + 1
    # Columns that begin as the identity become the product of the transitions passed.
    matrix = is_matrix(transition, own)
    identity = torch.eye(features, dtype=own.dtype, device=own.device) if matrix else own.new_ones(features, 1)
    start = torch.cat([own.new_zeros(features, columns), identity], -1)
    writing = F.pad(own, (0, identity.shape[-1]))
    parts = (
        F.pad(x, (0, 0, 0, 0, 0, -count % size)).unflatten(1, (-1, size)).flatten(0, 1) for x in (transition, writing)
    )
    transitions, writing = parts
    inside, left_behind = _states_in_turn(transitions, writing, start.expand(len(writing), -1, -1), backward=False)
    by_group = left_behind.unflatten(0, (len(first), -1))
    arriving, _ = _states_in_turn(by_group[..., columns:], by_group[..., :columns], first, backward=False)
    passed = inside[..., columns:].unflatten(0, (len(first), -1))
    before = inside[..., :columns].unflatten(0, (len(first), -1)) + applied(passed, arriving.unsqueeze(2))
    before = before.flatten(1, 2)[:, :count]
    return before, applied(transition[:, -1], before[:, -1]) + own[:, -1]


def running_sums(x: Tensor) -> Tensor:
    """Sums of x (.., T, M) over the tokens so far; of many tokens on a GPU in parts, since it adds columns in turn."""
    limits, count = dispatch.bounds(x.device), x.shape[-2]
    if count <= limits.chunk * limits.states_in_turn:
        return x.cumsum(-2)
    parts = F.pad(x, (0, 0, 0, -count % limits.chunk)).unflatten(-2, (-1, limits.chunk)).cumsum(-2)
    before = F.pad(parts[..., :-1, -1:, :].cumsum(-3), (0, 0, 0, 0, 1, 0))
    return (parts + before).flatten(-3, -2)[..., :count, :]


def gradient_of_left(sent: Tensor, before: Tensor, after: Tensor, left: Tensor) -> Tensor:
    """Of factors (G, n, 1 or F, 1) of the states after n blocks, given the states and the gradients `sent` to them."""
    parts = (sent[:, :-1], before[:, 1:]), (sent[:, -1:], after.unsqueeze(1))
    return torch.cat([(one * other).sum(-1, keepdim=True) for one, other in parts], 1).sum_to_size(left.shape) / left


def is_matrix(transition: Tensor, own: Tensor) -> bool:
    """Whether a transition of `states` is one, and not a factor."""
    return transition.shape[-1] == own.shape[-2] > 1


def gained_sums(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, ratio: int, chunk: int, left: Left = None
) -> tuple[Tensor, Tensor]:
    """Sums (.., T, M) of queries that see the state `first` (.., F, M) and each `ratio` more keys; the state after all.

    Every query gains at least one key. States cross chunks, the quadratic part stays inside one. `left`, (.., n, 1 or
    F, 1), is the decay applied to the state after the last key of each chunk.
    """
    lead = first.shape[:-2]
    q, k, v, first = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v, first))
    left = None if left is None else left.reshape(-1, *left.shape[-3:])
    sums, after = _GainedSums.apply(q, k, v, first, left, ratio, chunk)
    return sums.reshape(*lead, *sums.shape[1:]), after.reshape(*lead, *after.shape[1:])


def prefix_sums(q: Tensor, k: Tensor, v: Tensor, first: Tensor, mask: PrefixMask, chunk: int) -> tuple[Tensor, Tensor]:
    """Sums (.., T, M) over the state `first` and the keys that `mask` shows; the state after all.

    First the keys that every query sees, then `gained_sums`, then queries that gain nothing more.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    shared, growing = min(mask.shared, keys), mask.growing(queries, keys)
    (k_shared, k), (v_shared, v), (q, q_late) = _apart(k, shared), _apart(v, shared), _apart(q, growing)
    state = first + state_of(k_shared, v_shared) if shared else first
    sums = []
    if growing:
        gained, state = gained_sums(q, k, v, state, mask.ratio, chunk)
        sums.append(gained)
    if growing < queries or not sums:
        sums.append(read_state(q_late, state))
    return sums[0] if len(sums) == 1 else torch.cat(sums, -2), state


def _apart(x: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """The tokens before and from `at`; where one side has all, it is x itself, whose gradient is not copied."""
    if at in (0, x.shape[-2]):
        return (x, x[..., :0, :]) if at else (x[..., :0, :], x)
    before, after = x.split([at, x.shape[-2] - at], -2)
    return before, after


def chunked_sums(q: Tensor, k: Tensor, v: Tensor, first: Tensor, mask: ChunkMask, tokens: int) -> tuple[Tensor, Tensor]:
    """Sums (.., T, M) over a token's chunk, what the chunks before it left, and `first`; the state that all leave.

    Short chunks are taken together, up to some `tokens`, and compared pair by pair: a state for each would be more than
    the tokens themselves. A longer one has a state of its own, also of what is ahead.
    """
    lead, count = first.shape[:-2], q.shape[-2]
    together = mask.tokens * max(1, tokens // mask.tokens)
    q, k, v = (_cut(x.reshape(-1, *x.shape[-2:]), together) for x in (q, k, v))
    first = first.reshape(-1, *first.shape[-2:])
    own = k * mask.own(together, k.device).unsqueeze(1) if mask.ahead else k
    left = state_of(own, v).unflatten(0, (len(first), -1))
    before = torch.cat([first.unsqueeze(1), left], 1).cumsum(1)
    seen = before[:, :-1].flatten(0, 1)
    if together == mask.tokens and together > tokens:
        sums = q @ (seen + (state_of(k, v) if mask.ahead else left.flatten(0, 1)))
    else:
        pairs = scores(q, k) * mask.mask(together, together, q.device)
        sums = q @ seen + pairs @ v
    sums = sums.reshape(len(first), -1, v.shape[-1])[:, :count]
    return sums.unflatten(0, lead), before[:, -1].unflatten(0, lead)


class _Chunks(NamedTuple):
    """Queries and the keys they gain, cut into n aligned chunks, with the state before each chunk."""

    q: Tensor  # (G * n, C, F)
    k: Tensor  # (G * n, C * ratio, F)
    v: Tensor  # (G * n, C * ratio, M)
    before: Tensor  # (G * n, F, M), the state before each chunk
    after: Tensor  # (G, F, M), the state after all keys
    left: Left  # (G, n, 1 or F, 1)
    queries: int  # without the tokens that fill the last chunk
    keys: int

    @classmethod
    def cut(cls, q: Tensor, k: Tensor, v: Tensor, first: Tensor, left: Left, ratio: int, chunk: int) -> _Chunks:
        """Chunks of q (G, T, F), k (G, S, F), v (G, S, M) that follow the state `first` (G, F, M)."""
        queries, keys = q.shape[1], k.shape[1]
        chunk = max(1, min(chunk, queries))
        q, k, v = _cut(q, chunk), _cut(k, chunk * ratio), _cut(v, chunk * ratio)
        own = (k.mT @ v).unflatten(0, (len(first), -1))
        before, after = states(left, own if left is None else own.mul_(left), first)
        return cls(q, k, v, before.flatten(0, 1), after, left, queries, keys)

    def sums(self) -> Tensor:
        """Sums of all queries, (G, T, M)."""
        return self._join((self.q @ self.before).baddbmm_(self._scores(), self.v), self.queries)

    def gradients(self, grad: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Left]:
        """Gradients of q, k, v, `first` and `left`, given those of sums, (G, T, M), and the state after, (G, F, M)."""
        grad = _cut(grad, self.q.shape[1])
        later, grad_first, grad_left = self._sent_back(self.q.mT @ grad, grad_after)
        dv = (self._scores().mT @ grad).baddbmm_(self.k, later)
        grad_scores = self._hide_future(grad @ self.v.mT)
        dq = (grad_scores @ self.k).baddbmm_(grad, self.before.mT)
        dk = (grad_scores.mT @ self.q).baddbmm_(self.v, later.mT)
        return self._join(dq, self.queries), self._join(dk, self.keys), self._join(dv, self.keys), grad_first, grad_left

    def _sent_back(self, own: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Left]:
        """What queries of later chunks send back to each chunk's keys, (G * n, F, M), to `first`, and to `left`.

        `own` is what each chunk's queries send back, `last` what comes from after them. Nothing is ever subtracted.
        """
        own, left = own.unflatten(0, (len(last), -1)), self.left
        sent, to_first = states(left, own, last, backward=True)  # to the state after each chunk, and to the first
        if left is None:
            return sent.flatten(0, 1), to_first, None
        grad_left = gradient_of_left(sent, self.before.unflatten(0, (len(last), -1)), self.after, left)
        return sent.mul_(left).flatten(0, 1), to_first, grad_left

    def _scores(self) -> Tensor:
        return self._hide_future(self.q @ self.k.mT)

    def _hide_future(self, scores: Tensor) -> Tensor:
        """Zero, in place, the scores (G * n, C, C * ratio) of keys that a query does not see yet."""
        chunk, keys = scores.shape[1:]
        if chunk == keys:
            return scores.tril_()
        return scores.mul_(PrefixMask(1, keys // chunk).mask(chunk, keys, scores.device).to(scores.dtype))

    def _join(self, tokens: Tensor, count: int) -> Tensor:
        """(G * n, size, X) back to (G, count, X)."""
        return tokens.view(len(self.after), -1, tokens.shape[2])[:, :count]


class _GainedSums(torch.autograd.Function):
    """`gained_sums`; autograd left to itself would copy every gradient twice."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, first: Tensor, left: Left, ratio: int, chunk: int
    ) -> tuple[Tensor, Tensor]:
        *tensors, queries, keys = chunks = _Chunks.cut(q, k, v, first, left, ratio, chunk)
        ctx.save_for_backward(*tensors)
        ctx.counts = queries, keys
        return _placeholder(q, v) if _replay.active else chunks.sums(), chunks.after

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor | None, ...]:
        return *_Chunks(*saved, *ctx.counts).gradients(grad, grad_after), None, None


class _Product(torch.autograd.Function):
    """a @ b, or a^T @ b.

    The gradients lie in memory as a and b do; autograd's of a^T would be transposed.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, transposed: bool, last: bool) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.transposed = transposed
        left = a.mT if transposed else a
        return _placeholder(left, b) if last and _replay.active else left @ b

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b = saved
        if ctx.transposed:
            return b @ grad.mT, a @ grad, None, None
        return grad @ b.mT, a.mT @ grad, None, None


class _Scores(torch.autograd.Function):
    """q k^T, whose gradients lie in memory as q and k do and not transposed. They can themselves be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        q, k = ctx.saved_tensors
        with without_autocast(grad.device):
            return grad @ k, grad.mT @ q


class _Normalize(torch.autograd.Function):
    """The quotient, whose gradient takes two passes over the output instead of six."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, floor: float | Tensor, out: Tensor | None, norm: Tensor | None) -> Tensor:
        if out is None or norm is None:
            norm = sums[..., -1:]
            out = sums[..., :-1] / norm.clamp_min(floor)
        else:
            out = out.view_as(out)
        ctx.save_for_backward(out, norm, *([floor] if isinstance(floor, Tensor) else []))
        ctx.floor = floor if isinstance(floor, float) else None
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        out, norm, *floors = saved
        floor = floors[0] if floors else ctx.floor
        sums = grad.new_empty(*grad.shape[:-1], grad.shape[-1] + 1)
        numerator = torch.div(grad, norm.clamp_min(floor), out=sums[..., :-1])
        to_divisor, above = -(numerator * out).sum(-1, keepdim=True), norm >= floor
        sums[..., -1:] = to_divisor * above
        return sums, to_divisor * ~above if ctx.needs_input_grad[1] else None, None, None


def _placeholder(q: Tensor, v: Tensor) -> Tensor:
    """Zeros (.., T, M) that take no memory."""
    return accumulated(q).new_zeros(()).expand(*q.shape[:-1], v.shape[-1])


def _cut(tokens: Tensor, size: int) -> Tensor:
    """(G, R, X) to (G * n, size, X), zeros filling the last chunk."""
    missing = -tokens.shape[1] % size
    if missing:
        tokens = F.pad(tokens, (0, 0, 0, missing))
    return tokens.reshape(-1, size, tokens.shape[2])
