"""One recurrence: a state that decays, is written to, and is read.

    S_s = e^{g_s} S_(s-1) + k_s u_s^T,    o_t = q_t S_n(t)

g_s <= 0 is a log-decay, a number or one for each feature; n(t) is how many keys query t sees. Sums write their values,
u_s = v_s. The delta rule writes what is missing, u_s = b_s (v_s - k_s e^{g_s} S_(s-1)), with a strength b_s (Schlag et
al., 2021, arXiv:2102.11174; with decays Yang et al., 2024, arXiv:2412.06464).

All is done block by block: inside a block by all pairs, between blocks by the state. With c the log-decays cumulated
from a block's start and P the pairs (q_i . k_j) e^{c_n(i) - c_j} that are seen,

    sums:   O = (Q e^{c_n}) S + P V,                    S' = e^{c_last} S + (K e^{c_last - c})^T V
    delta:  the same with U = (diag(1 / b) + A)^-1 (V - (K e^{c}) S) instead of V, A_ij = (k_i . k_j) e^{c_i - c_j} for
            j < i

so that everything but S' = M S + N is computed for all blocks at once (Yang et al., 2023, arXiv:2312.06635, section 4).
Exponents are at most `LITTLE`, and never positive where a block forgets more than that, so nothing overflows whatever
the gates do.

For the delta rule a block's keys read with rows of K, write with rows of W, and have strengths b:

    u_j = b_j (v_j - K_j S - sum_{i < j} A_ji u_i),    O = Q S + P U,    S' = left S + W^T U

With T = (diag(1 / b) + A)^-1, where A counts below its diagonal, U = T V - T K S, which needs the state only at its
end (Yang et al., 2024, arXiv:2406.06484, section 3). Decays are in Q, K, W, A and P already.

Shapes: T queries, S keys, F features, X value columns, any leading dimensions (..); G of them flattened, n blocks of Q
queries and K keys. In `Blocks`: N = G n blocks of C keys and R queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..masks import ChunkMask, Mask, visible
from . import dispatch, linear
from .linear import read_state, state_of
from .loops import over_tokens
from .segments import first_order

LITTLE = 40.0  # the square of e^40 times any feature is far from the largest float32


class Written(NamedTuple):
    """What keys write: features k (.., S, F), values v (.., S, X), and with what decay and strength.

    decay:    log-decays <= 0, (.., S, 1) or (.., S, F); None: nothing decays.
    strength: of the delta rule, (.., S, 1), in (0, 2) with keys of length one; None: values are added.
    """

    k: Tensor
    v: Tensor
    decay: Tensor | None = None
    strength: Tensor | None = None

    def kept(self, keep: Tensor) -> Written:
        """The same where tokens that are not in `keep`, broadcastable to (.., S, 1), leave the state as it is."""
        return self.each(lambda x: x * keep.to(x.dtype))

    def narrow(self, start: int, stop: int) -> Written:
        """Keys `start` to `stop`."""
        return self.each(lambda x: x[..., start:stop, :])

    def each(self, function: Callable[[Tensor], Tensor]) -> Written:
        """The same with a function of every tensor."""
        decay, strength = (None if x is None else function(x) for x in self[2:])
        return Written(function(self.k), function(self.v), decay, strength)

    def before_decay(self) -> Written:
        """As if every key was written before its decay: e^{g_s} (S_(s-1) + k_s v_s^T)."""
        return self if self.decay is None else self._replace(k=self.k * self.decay.exp())


def written(state: Tensor, key: Written) -> Tensor:
    """The state (.., F, X) after one more key; in place where no gradient is wanted."""
    k, v, decay, strength = key
    fresh = torch.is_grad_enabled()
    if decay is not None:
        state = state * decay.exp().mT if fresh else state.mul_(decay.exp().mT)
    if strength is not None:
        v = strength * (v - k @ state)
    return torch.addcmul(state, k.mT, v) if fresh else state.addcmul_(k.mT, v)


def loop(
    state: Tensor, keys: Written, queries: Tensor | None = None, reads_first: bool = False
) -> tuple[Tensor, Tensor]:
    """The state after all keys, token by token as a graph can hold it (see `loops`), and what queries (.., S, F) read.

    A query reads after its key was written, or before, with `reads_first`.
    """
    parts = {**keys._asdict(), "query": queries}
    named: dict[str, Tensor] = {name: part.movedim(-2, 0) for name, part in parts.items() if part is not None}

    def run(states: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        parts = {name: part.unsqueeze(-2) for name, part in zip(named, token, strict=True)}
        query = parts.pop("query", None)
        (before,) = states
        # Written to a copy: `written` changes a state in place without gradients.
        after = written(before.clone() if reads_first else before, Written(**parts))
        out = after.new_zeros(1) if query is None else (query @ (before if reads_first else after)).squeeze(-2)
        return [after], out

    (after,), out = over_tokens(run, [state], list(named.values()))
    return after, out if queries is None else out.movedim(0, -2)


def sums(q: Tensor, keys: Written, first: Tensor, mask: Mask, block: int) -> tuple[Tensor, Tensor]:
    """What queries (.., T, F) read that follow the state `first` (.., F, X), and the state after all keys.

    Keys that no query sees must not be given. `block` is the number of queries, or of keys that all see, of a block.
    """
    found, scale, after = scaled_sums(q, keys, first, mask, block)
    return found if scale is None else found * scale, after


def one_block(q: Tensor, keys: Written, mask: Mask) -> Tensor:
    """`sums` of few keys, from an empty state and without the one after them: all pairs are compared."""
    total = _cumulated(keys.decay)
    scores = _scores(q, keys.k, total, visible(mask, q.shape[-2], keys.k.shape[-2], q.device))
    if keys.strength is None:
        return read_state(scores, keys.v)
    return delta_block(scores, keys.v, _system(keys.k, total), keys.strength)


def scaled_sums(
    q: Tensor, keys: Written, first: Tensor, mask: Mask, block: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """`sums` before the positive factor of each query that is the second result, (.., T, 1), or 1 where it is None.

    A normalizer divides the factor away, which saves passes over the sums.
    """
    if isinstance(mask, ChunkMask):
        found, after = _in_chunks(q, keys, first, mask, block)
        return found, None, after
    queries, count = q.shape[-2], keys.k.shape[-2]
    shared = count if mask is None else min(mask.shared, count)
    growing = 0 if mask is None else mask.growing(queries, count)
    state, outputs, scales = first, [], []
    if shared:
        nobody = q.new_zeros(0, dtype=torch.long)
        state = _blocks(q[..., :0, :], keys.narrow(0, shared), state, nobody, min(block, shared))[1]
    if growing:
        assert mask is not None
        later = keys.narrow(shared, count)
        gained, scale, state = _gained(q[..., :growing, :], later, state, mask.ratio, min(block, growing))
        outputs, scales = [gained], [scale]
    if growing < queries or not outputs:
        outputs.append(read_state(q[..., growing:, :], state))
        scales.append(None)
    if len(outputs) == 1:
        return outputs[0], scales[0], state
    if scales[0] is None:
        return torch.cat(outputs, -2), None, state
    return torch.cat(outputs, -2), F.pad(scales[0], (0, 0, 0, queries - growing), value=1), state


def _gained(q: Tensor, keys: Written, first: Tensor, ratio: int, block: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """`scaled_sums` of queries that each see `ratio` more keys.

    Sums in blocks that forget little are sums without decay, of queries times e^c and keys times e^-c, of which a block
    leaves e^c at its last key. One decay for all features may as well scale the values, which have fewer columns where
    features are expanded, and what is read; so it may with the delta rule.
    """
    k, v, decay, strength = keys
    age, left = None, None
    if decay is not None and (strength is None or decay.shape[-1] == 1):
        missing = -decay.shape[-2] % (block * ratio)
        total = F.pad(decay, (0, 0, 0, missing)).unflatten(-2, (-1, block * ratio)).cumsum(-2)
        last = total[..., -1:, :]
        if _looks(last) and bool(last.amin() > -LITTLE):
            at_keys = total.flatten(-3, -2)[..., : k.shape[-2], :]
            at_queries = total[..., ratio - 1 :: ratio, :].flatten(-3, -2)[..., : q.shape[-2], :]
            age, grown, left, decay = at_queries.exp(), (-at_keys).exp(), last.mT.exp(), None
            if grown.shape[-1] == 1:
                v = v * grown
            else:
                q, k, age = q * age, k * grown, None
    if strength is None and decay is None:
        gained, after = linear.gained_sums(q, k, v, first, ratio, block, left)
        return gained, age, after
    seen = (torch.arange(block, device=q.device) + 1) * ratio
    keys = Written(k, v, decay, strength)
    gained, after = _blocks(q, keys, first, seen, block * ratio, left=left)
    return gained, age, after


def pairs(q: Tensor, keys: Written, seen: Tensor) -> Tensor:
    """What each key contributes to each query, (.., T, S), where query i sees the first seen[i] keys, maybe none.

    With the delta rule it is signed: a later key takes back what an earlier one wrote.
    """
    total = _cumulated(keys.decay)
    scores = _scores(q, keys.k, total, seen)
    if keys.strength is None:
        return scores
    return scores @ inverse(_system(keys.k, total), keys.strength)


def _in_chunks(q: Tensor, keys: Written, first: Tensor, mask: ChunkMask, block: int) -> tuple[Tensor, Tensor]:
    """`sums` of a streaming encoder. Copies of tokens ahead are read and leave no trace, so each chunk is a block."""
    chunks = 1 if mask.ahead else max(1, block // mask.size)
    size = mask.tokens * chunks
    seen = (torch.arange(size, device=q.device) // mask.tokens + 1) * mask.tokens
    return _blocks(q, keys, first, seen, size, mask.size * chunks)


def _blocks(
    q: Tensor,
    keys: Written,
    first: Tensor,
    seen: Tensor,
    size: int,
    own: int | None = None,
    left: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`sums` in blocks of `size` keys and as many queries as `seen` has: query i of a block sees seen[i] of its keys.

    Of a block's keys only the first `own` change the state for the next one. `left`, (.., n, 1, 1), is what a block in
    which nothing decays leaves of the state after its last key.
    """
    lead, queries = first.shape[:-2], q.shape[-2]
    first = first.reshape(-1, *first.shape[-2:])
    k, v, decay, strength = keys.each(lambda x: _cut(x, size, len(first)))
    q = _cut(q, len(seen), len(first)) if len(seen) else q.new_zeros(*k.shape[:2], 0, q.shape[-1])
    own, after_last = size if own is None else own, left is not None
    total = _cumulated(decay)
    aged_q, into = q, k[..., :own, :]
    if left is not None:
        left = left.reshape(*k.shape[:2], 1, 1)
    if total is not None:
        last = total[..., own : own + 1, :]
        aged_q = q * total[..., seen, :].exp()
        into = into * (last - total[..., 1 : own + 1, :]).exp()
        left = last.mT.exp()  # (G, n, 1 or F, 1)
    scores = _scores(q, k, total, seen)
    if strength is None:
        before, after = _states(left, state_of(into, v[..., :own, :]), first)
        out = read_state(aged_q, before) + read_state(scores, v)
    else:
        begun = k if total is None else k * total[..., 1:, :].exp()
        blocks = Blocks(
            q=aged_q.flatten(0, 1),
            scores=scores.flatten(0, 1),
            reading=begun.flatten(0, 1),
            writing=into.flatten(0, 1),
            v=v.flatten(0, 1),
            system=_system(k, total).flatten(0, 1),
            strength=strength.flatten(0, 1),
            left=None if left is None else left.flatten(0, 1),
        )
        out, after = delta_sums(blocks, first, after_last)
        out = out.unflatten(0, (len(first), -1))
    out = out.flatten(1, 2)[:, :queries]
    return out.reshape(*lead, *out.shape[1:]), after.reshape(*lead, *after.shape[1:])


def _cumulated(decay: Tensor | None) -> Tensor | None:
    """Log-decays (.., S, 1 or F) cumulated from before the first key on, (.., S + 1, 1 or F)."""
    return None if decay is None else F.pad(decay.cumsum(-2), (0, 0, 1, 0))


def _scores(q: Tensor, k: Tensor, total: Tensor | None, seen: Tensor) -> Tensor:
    """(q_i . k_j) e^{c_seen(i) - c_j} where j < seen(i), else 0; `total` is c with a row of zeros before it.

    Where each feature has a decay of its own, decays enter before features are summed. A query and a key in a span of
    keys that forgets little are compared at its middle, by one product for all spans. Others are compared at a place
    between them, where neither exponent is positive: in the middle of the shortest aligned span of 2, 4, 8, .. keys
    that holds the key and the last key that the query sees, by a product for each length.
    """
    count, device = k.shape[-2], k.device
    key, last = torch.arange(count, device=device), (seen - 1).unsqueeze(1)
    if total is None:
        return linear.scores(q, k) * (key <= last).to(q.dtype)
    if total.shape[-1] == 1:
        lag = total[..., seen, :] - total[..., 1:, :].mT
        return linear.scores(q, k) * lag.masked_fill(key > last, -torch.inf).exp()

    def compared(span: int, pairs: Tensor, early: Tensor | None = None, late: Tensor | None = None) -> Tensor:
        """Products of `pairs` at the middle of their span, of early keys and late queries alone."""
        middle_k, middle_q = ((x // span * span + (span + 1) // 2).clamp(0, count) for x in (key, last.squeeze(1)))
        age_k, age_q = middle[..., middle_k, :] - total[..., 1:, :], total[..., seen, :] - middle[..., middle_q, :]
        age_k = age_k if early is None else age_k.masked_fill(~early, -torch.inf)
        age_q = age_q if late is None else age_q.masked_fill(~late, -torch.inf)
        return linear.scores(q * age_q.exp(), k * age_k.exp()) * pairs.to(q.dtype)

    middle = total.detach()  # which cancels, and its gradient only up to rounding
    span = _span(total)
    scores = compared(span, (key <= last) & (key // span == last // span))
    while span < count:
        span *= 2
        late = (last >= last // span * span + span // 2) & (last >= 0)
        scores = scores + compared(span, key // span == last // span, (key % span < span // 2).unsqueeze(1), late)
    return scores


def _span(total: Tensor) -> int:
    """The longest aligned spans, a power of 2 of keys, in which no log-decay adds up to more than `LITTLE`."""
    count = total.shape[-2] - 1
    span = 1 << (count - 1).bit_length() if _looks(total) else 1
    while span > 1:
        starts = torch.arange(0, count, span, device=total.device)
        forgotten = total[..., starts, :] - total[..., (starts + span).clamp(max=count), :]
        if bool(forgotten.amax() < LITTLE):
            break
        span //= 2
    return span


def _looks(x: Tensor) -> bool:
    """Whether numbers may decide what is computed, which waits for them on a GPU."""
    return not x.is_meta and dispatch.bounds(x.device).looks and not dispatch.is_transformed()


def _system(k: Tensor, total: Tensor | None) -> Tensor:
    """A_ij = (k_i . k_j) e^{c_i - c_j} for j < i; any finite numbers elsewhere."""
    if total is None:
        return linear.scores(k, k)
    return _scores(k, k, total, torch.arange(1, k.shape[-2] + 1, device=k.device))


def _cut(x: Tensor, size: int, groups: int) -> Tensor:
    """(.., R, X) to (G, n, size, X), zeros filling the last block: they neither write nor decay."""
    x = x.reshape(groups, *x.shape[-2:])
    if not size:
        return x.unsqueeze(1)
    missing = -x.shape[1] % size
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(1, (-1, size))


def _states(left: Tensor | None, own: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each block, (G, n, F, X), and the one after all, of S' = left S + own; None leaves all."""
    if left is None:
        states = torch.cat([first.unsqueeze(1), own], 1).cumsum(1)
        return states[:, :-1], states[:, -1]
    return _States.apply(left, own, first)


class _States(torch.autograd.Function):
    """`linear.states`. Autograd left to itself would keep and add many small tensors."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, own: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        before, after = linear.states(left, own, first)
        ctx.save_for_backward(left, before)
        return before, after

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, before = saved
        own, to_first = linear.states(left, grad, grad_after, backward=True)
        return (own * before).sum(-1, keepdim=True).sum_to_size(left.shape), own, to_first


LEAST = 1e-36  # squares of strengths, which a sigmoid reaches only where nothing is written


class Blocks(NamedTuple):
    """What blocks of keys and queries are made of, as above; only the first keys, those in W, change the state."""

    q: Tensor  # (N, R, F)
    scores: Tensor  # P, (N, R, C)
    reading: Tensor  # K, (N, C, F)
    writing: Tensor  # W, (N, C or fewer, F)
    v: Tensor  # (N, C, X)
    system: Tensor  # A, (N, C, C)
    strength: Tensor  # b, (N, C, 1)
    left: Tensor | None  # (N, 1 or F, 1); None: all


def inverse(system: Tensor, strength: Tensor) -> Tensor:
    """(diag(1 / b) + A)^-1 = (1 + diag(b) A)^-1 diag(b), of the part of A (.., C, C) that is below its diagonal.

    Strengths are (.., C, 1); one of 0, as of padding, gives a row and a column of zeros.
    """
    wanted = torch.diag_embed(strength.squeeze(-1))
    return torch.linalg.solve_triangular(system * strength, wanted, upper=False, unitriangular=True)


def delta_block(scores: Tensor, v: Tensor, system: Tensor, strength: Tensor) -> Tensor:
    """O (.., R, X) of a stand-alone block: P (.., R, C), V (.., C, X), A (.., C, C), b (.., C, 1)."""
    return _DeltaBlock.apply(scores, v, system, strength)


def delta_sums(blocks: Blocks, first: Tensor, after_last: bool = False) -> tuple[Tensor, Tensor]:
    """O (N, R, X), and the state (G, F, X) after all blocks that follow `first`, (G, F, X).

    With `after_last`, what is left of the state is left of what the block wrote, too: S' = left (S + W^T U).
    """
    return _DeltaSums.apply(first, after_last, *blocks)


class _DeltaSums(torch.autograd.Function):
    """`delta_sums`. Autograd left to itself would solve two systems more, and keep twice as much."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, after_last: bool, *given: Tensor) -> tuple[Tensor, Tensor]:
        q, scores, reading, writing, v, system, strength, left = given
        own = writing.shape[1]
        solved = inverse(system, strength)
        taken, update = solved @ reading, solved @ v
        transition, added = writing.mT @ taken[:, :own], writing.mT @ update[:, :own]
        transition.neg_().diagonal(dim1=1, dim2=2).add_(1 if left is None or after_last else left.squeeze(-1))
        if left is not None and after_last:
            transition, added = transition.mul_(left), added.mul_(left)
        before, after = linear.states(_by_group(transition, first), _by_group(added, first), first)
        before = before.flatten(0, 1)
        update.baddbmm_(taken, before, alpha=-1)
        ctx.after_last = after_last
        ctx.save_for_backward(q, scores, writing, strength, left, solved, taken, update, transition, before, after)
        return (q @ before).baddbmm_(scores, update), after

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor | None, ...]:
        q, scores, writing, strength, left, solved, taken, update, transition, before, after = saved
        own = writing.shape[1]
        to_update = scores.mT @ grad
        to_before = (q.mT @ grad).baddbmm_(taken.mT, to_update, alpha=-1)
        sent, to_first = linear.states(
            _by_group(transition.mT, after), _by_group(to_before, after), grad_after, backward=True
        )
        to_left, before_blocks = None, _by_group(before, after)
        if left is not None and ctx.after_last:
            to_left = linear.gradient_of_left(sent, before_blocks, after, _by_group(left, after)).flatten(0, 1)
            sent = sent.mul_(_by_group(left, after))
        elif left is not None:
            to_left = (sent * before_blocks).sum(-1, keepdim=True).flatten(0, 1).sum_to_size(left.shape)
        sent = sent.flatten(0, 1)  # to the state after each block
        to_update[:, :own] += writing @ sent
        to_v, to_system, to_strength = _solved_back(solved, to_update, update, strength)
        found = Blocks(
            q=grad @ before.mT,
            scores=grad @ update.mT,
            reading=(to_v @ before.mT).neg_(),
            writing=update[:, :own] @ sent.mT,
            v=to_v,
            system=to_system,
            strength=to_strength,
            left=to_left,
        )
        return to_first, None, *found


class _DeltaBlock(torch.autograd.Function):
    """`delta_block`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, v: Tensor, system: Tensor, strength: Tensor) -> Tensor:
        solved = inverse(system, strength)
        update = solved @ v
        ctx.save_for_backward(scores, strength, solved, update)
        return scores @ update

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor, ...]:
        scores, strength, solved, update = saved
        return grad @ update.mT, *_solved_back(solved, scores.mT @ grad, update, strength)


def _solved_back(solved: Tensor, to_update: Tensor, update: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of V, A and b, given that of U = (diag(1 / b) + A)^-1 V."""
    to_v = solved.mT @ to_update
    to_system = to_v @ update.mT
    to_strength = to_system.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) / strength.square().clamp_min(LEAST)
    return to_v, to_system.tril_(-1).neg_(), to_strength


def _by_group(x: Tensor, of: Tensor) -> Tensor:
    """(N, .., ..) to (G, n, .., ..), for G as in `of`."""
    return x.unflatten(0, (len(of), -1))
