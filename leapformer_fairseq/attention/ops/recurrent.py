"""One recurrence: a state that decays, is written to, and is read.

    S_s = e^{g_s} S_(s-1) + k_s u_s^T,    o_t = q_t S_n(t)

g_s <= 0 is a log-decay, a number or one for each feature; n(t) is the number of keys that query t sees. Sums write the
values, u_s = v_s. The delta rule writes the difference between the value and what its key reads, with a strength b_s:
u_s = b_s (v_s - k_s e^{g_s} S_(s-1)) (Schlag et al., 2021, arXiv:2102.11174; with decays Yang et al., 2024,
arXiv:2412.06464).

Tokens are processed in blocks: inside a block all pairs are compared, and a state S leads from block to block. Let c be
the log-decays cumulated from the start of a block, and P the scores (q_i . k_j) e^{c_n(i) - c_j} of the keys that each
query sees, otherwise 0. Then

    sums:   O = (Q e^{c_n}) S + P V,                    S' = e^{c_last} S + (K e^{c_last - c})^T V
    delta:  the same with U = (diag(1 / b) + A)^-1 (V - (K e^{c}) S) instead of V, A_ij = (k_i . k_j) e^{c_i - c_j} for
            j < i

so that everything but S' = M S + N is computed for all blocks at once (Yang et al., 2023, arXiv:2312.06635, section 4).
Exponents are at most `LITTLE`; blocks that decay by a factor below e^-LITTLE are computed with exponents that are never
positive. So nothing overflows, whatever the gates do.

`delta_sums` gets all of these with decays applied, and the keys twice: rows of K read the state, rows of W write to it.

    u_j = b_j (v_j - K_j S - sum_{i < j} A_ji u_i),    O = Q S + P U,    S' = d S + W^T U

With T = (diag(1 / b) + A)^-1, where A is taken below its diagonal, U = T V - T K S. So T V and T K are computed for all
blocks at once, and only then the states (Yang et al., 2024, arXiv:2406.06484, section 3).

Shapes: T queries, S keys, F features, X value columns, any leading dimensions (..), which are flattened to G; n blocks
of C keys and R queries, N = G n in all.
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
from .packing import packed, unpacked
from .scan import LITTLE, knows, runs, scan
from .segments import first_order


class Written(NamedTuple):
    """What keys write: features k (.., S, F) and values v (.., S, X), with what decay and strength.

    decay:    log-decays <= 0, (.., S, 1) or (.., S, F); None: nothing decays.
    strength: of the delta rule, (.., S, 1), in (0, 2) with keys of length one; None: values are added.
    """

    k: Tensor
    v: Tensor
    decay: Tensor | None = None
    strength: Tensor | None = None

    def kept(self, keep: Tensor) -> Written:
        """The same, but tokens where `keep` (broadcast to (.., S, 1)) is False leave the state unchanged."""
        return self.each(lambda x: x * keep.to(x.dtype))

    def quiet(self, keep: Tensor) -> Written:
        """The same without decay and strength where `keep` is False; keys and values may hold anything there."""
        decay, strength = (None if x is None else x.where(keep, 0) for x in self[2:])
        return self._replace(decay=decay, strength=strength)

    def apart(self, at: int) -> tuple[Written, Written]:
        """The keys before `at`, and those from it on."""
        return self.each(lambda x: linear.apart(x, at)[0]), self.each(lambda x: linear.apart(x, at)[1])

    def each(self, function: Callable[[Tensor], Tensor]) -> Written:
        """Apply a function to every tensor."""
        decay, strength = (None if x is None else function(x) for x in self[2:])
        return Written(function(self.k), function(self.v), decay, strength)

    def before_decay(self) -> Written:
        """For sums: write each key before its decay applies, S_s = e^{g_s} (S_(s-1) + k_s v_s^T)."""
        return self if self.decay is None else self._replace(k=self.k * self.decay.exp())


def written(state: Tensor, key: Written) -> Tensor:
    """The state (.., F, X) after one more key, S = 1; changed in place if gradients are disabled."""
    k, v, decay, strength = key
    copies = torch.is_grad_enabled()
    if decay is not None:
        state = state * decay.exp().mT if copies else state.mul_(decay.exp().mT)
    if strength is not None:
        v = strength * (v - k @ state)
    return torch.addcmul(state, k.mT, v) if copies else state.addcmul_(k.mT, v)


def loop(
    state: Tensor, keys: Written, queries: Tensor | None = None, reads_first: bool = False
) -> tuple[Tensor, Tensor]:
    """The state after all keys, and what queries (.., S, F) read, (.., S, X), token by token (see `loops`).

    A query reads after the key of its token was written or, with `reads_first`, before. Without queries the second
    result is meaningless. State and results of an exported graph, (B, H, ..), are those of one operator.
    """
    if dispatch.is_exported() and not reads_first:
        return _one_operator(state, keys, keys.k if queries is None else queries)
    parts = {**keys._asdict(), "query": queries}
    named: dict[str, Tensor] = {name: part.movedim(-2, 0) for name, part in parts.items() if part is not None}

    def run(states: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        parts = {name: part.unsqueeze(-2) for name, part in zip(named, token, strict=True)}
        query = parts.pop("query", None)
        (before,) = states
        # If gradients are disabled, `written` changes the state in place.
        after = written(before.clone() if reads_first else before, Written(**parts))
        out = after.new_zeros(1) if query is None else (query @ (before if reads_first else after)).squeeze(-2)
        return [after], out

    (after,), out = over_tokens(run, [state], list(named.values()))
    return after, out if queries is None else out.movedim(0, -2)


def _one_operator(state: Tensor, keys: Written, queries: Tensor) -> tuple[Tensor, Tensor]:
    """`loop` as an operator of onnxruntime (from 1.26), `LinearAttention`, whose tokens are (B, S, H F)."""

    batch, heads, count, _ = queries.shape
    decay, strength = (None if x is None else packed(x) for x in keys[2:])
    rule = {(False, False): "linear", (True, False): "gated", (False, True): "delta", (True, True): "gated_delta"}
    out, after = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::LinearAttention",
        [*map(packed, (queries, keys.k, keys.v)), state, decay, strength],
        {
            "q_num_heads": heads,
            "kv_num_heads": heads,
            "scale": 1.0,
            "update_rule": rule[keys.decay is not None, keys.strength is not None],
        },
        dtypes=(torch.float32, torch.float32),
        shapes=((batch, count, heads * state.shape[-1]), state.shape),
        version=1,
    )
    return after, unpacked(out, heads, count, state.shape[-1])


def sums(q: Tensor, keys: Written, first: Tensor, mask: Mask, block: int = 64) -> tuple[Tensor, Tensor]:
    """What queries (.., T, F) read, (.., T, X), beginning with the state `first` (.., F, X); the state after all keys.

    Every key must be seen by some query. A block has `block` queries, or `block` of the keys that all queries see.
    """
    out, scale, after = scaled_sums(q, keys, first, mask, block)
    return out if scale is None else out * scale, after


def at_once(q: Tensor, keys: Written, mask: Mask) -> Tensor:
    """What queries read, (B, H, T, X), from an empty state on: by the kernel in C, or all pairs are compared."""
    if runs(q, keys.k, keys.v) and knows(mask, keys.decay):
        return scan(q, keys.k, keys.v, mask, decay=keys.decay, strength=keys.strength, lasts=False)[0]
    total = _cumulated(keys.decay)
    scores = _scores(q, keys.k, total, visible(mask, q.shape[-2], keys.k.shape[-2], q.device))
    if keys.strength is None:
        return read_state(scores, keys.v)
    return read_state(scores, inverse(_system(keys.k, total), keys.strength) @ keys.v)


def scaled_sums(
    q: Tensor, keys: Written, first: Tensor, mask: Mask, block: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """`sums` without a positive factor of each query, which is the second result: (.., T, 1), or None for 1.

    The factor cancels in the division by the normalizer; not to apply it saves passes over the sums.
    """
    if q.dim() == 4 and runs(q, keys.k, keys.v, first) and knows(mask, keys.decay):
        out, after = scan(q, keys.k, keys.v, mask, decay=keys.decay, strength=keys.strength, first=first)
        return out, None, after
    plain = keys.decay is None and keys.strength is None
    if isinstance(mask, ChunkMask):
        chunked = linear.chunked_sums(q, keys.k, keys.v, first, mask, block) if plain else None
        out, after = chunked or _in_chunks(q, keys, first, mask, block)
        return out, None, after
    queries, count = q.shape[-2], keys.k.shape[-2]
    shared = count if mask is None else min(mask.shared, count)
    growing = 0 if mask is None else mask.growing(queries, count)
    state, outputs, scale = first, [], None
    earlier, keys = keys.apart(shared)
    q, late = linear.apart(q, growing)
    if shared and plain:
        state = first + state_of(earlier.k, earlier.v)
    elif shared:
        no_queries = q.new_zeros(0, dtype=torch.long)
        state = _blocks(q[..., :0, :], earlier, state, no_queries, min(block, shared))[1]
    if growing:
        assert mask is not None
        gained, scale, state = _gained(q, keys, state, mask.ratio, min(block, growing))
        outputs.append(gained)
    if growing < queries or not outputs:
        outputs.append(read_state(late, state))
        scale = None if scale is None else F.pad(scale, (0, 0, 0, queries - growing), value=1)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2), scale, state


def _gained(q: Tensor, keys: Written, first: Tensor, ratio: int, block: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """`scaled_sums` of queries that each see `ratio` keys more than the query before.

    If no block decays by a factor below e^-LITTLE, these are sums without decay, of queries times e^c and keys times
    e^-c; at the end of a block the state is multiplied by e^{c_last}. If all features share one decay, the factors are
    applied to the sums and to the values instead, which have fewer columns if features are expanded; this is also
    possible with the delta rule.
    """
    k, v, decay, strength = keys
    scale, decay_after = None, None
    if decay is not None and (strength is None or decay.shape[-1] == 1):
        missing = -decay.shape[-2] % (block * ratio)
        total = F.pad(decay, (0, 0, 0, missing)).unflatten(-2, (-1, block * ratio)).cumsum(-2)
        last = total[..., -1:, :]
        if _may_synchronise(last) and bool(last.amin() > -LITTLE):
            at_keys = total.flatten(-3, -2)[..., : k.shape[-2], :]
            at_queries = total[..., ratio - 1 :: ratio, :].flatten(-3, -2)[..., : q.shape[-2], :]
            scale, growth, decay_after, decay = at_queries.exp(), (-at_keys).exp(), last.mT.exp(), None
            if growth.shape[-1] == 1:
                v = v * growth
            else:
                q, k, scale = q * scale, k * growth, None
    if strength is None and decay is None:
        gained, after = linear.gained_sums(q, k, v, first, ratio, block, decay_after)
        return gained, scale, after
    seen = (torch.arange(block, device=q.device) + 1) * ratio
    keys = Written(k, v, decay, strength)
    gained, after = _blocks(q, keys, first, seen, block * ratio, decay_after=decay_after)
    return gained, scale, after


def pairs(q: Tensor, keys: Written, seen: Tensor) -> Tensor:
    """What each key contributes to each query, (.., T, S); query i sees the first seen[i] keys, which may be none.

    With the delta rule it may be negative, since later keys take back what earlier ones wrote.
    """
    total = _cumulated(keys.decay)
    scores = _scores(q, keys.k, total, seen)
    if keys.strength is None:
        return scores
    return scores @ inverse(_system(keys.k, total), keys.strength)


def _in_chunks(q: Tensor, keys: Written, first: Tensor, mask: ChunkMask, block: int) -> tuple[Tensor, Tensor]:
    """`sums` under a chunk mask. With look-ahead every chunk is a block, since the copies are read but not written."""
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
    writers: int | None = None,
    decay_after: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`sums` in blocks of `size` keys and len(seen) queries: query i of a block sees the first seen[i] of its keys.

    Only the first `writers` keys of a block (None: all) are written to the state for the next block. `decay_after`,
    (.., n, 1, 1), is only for keys without decay: it multiplies the state at the end of each block.
    """
    lead, queries = first.shape[:-2], q.shape[-2]
    first = first.reshape(-1, *first.shape[-2:])
    k, v, decay, strength = keys.each(lambda x: _cut(x, size, len(first)))
    q = _cut(q, len(seen), len(first)) if len(seen) else q.new_zeros(*k.shape[:2], 0, q.shape[-1])
    writers = size if writers is None else writers
    total = _cumulated(decay)
    decayed_q, writing = q, k[..., :writers, :]
    block_decay = None if decay_after is None else decay_after.reshape(*k.shape[:2], 1, 1)
    if total is not None:
        last = total[..., writers : writers + 1, :]
        decayed_q = q * total[..., seen, :].exp()
        writing = writing * (last - total[..., 1 : writers + 1, :]).exp()
        block_decay = last.mT.exp()  # (G, n, 1 or F, 1)
    scores = _scores(q, k, total, seen)
    if strength is None:
        before, after = _states(block_decay, state_of(writing, v[..., :writers, :]), first)
        out = read_state(decayed_q, before) + read_state(scores, v)
    else:
        reading = k if total is None else k * total[..., 1:, :].exp()
        blocks = Blocks(
            q=decayed_q.flatten(0, 1),
            scores=scores.flatten(0, 1),
            reading=reading.flatten(0, 1),
            writing=writing.flatten(0, 1),
            v=v.flatten(0, 1),
            system=_system(k, total).flatten(0, 1),
            strength=strength.flatten(0, 1),
            decay=None if block_decay is None else block_decay.flatten(0, 1),
        )
        out, after = delta_sums(blocks, first, decay_last=decay_after is not None)
        out = out.unflatten(0, (len(first), -1))
    out = out.flatten(1, 2)[:, :queries]
    return out.reshape(*lead, *out.shape[1:]), after.reshape(*lead, *after.shape[1:])


def _cumulated(decay: Tensor | None) -> Tensor | None:
    """Log-decays (.., S, 1 or F) cumulated, after a row of zeros: row s sums those of the first s keys."""
    return None if decay is None else F.pad(decay.cumsum(-2), (0, 0, 1, 0))


def _scores(q: Tensor, k: Tensor, total: Tensor | None, seen: Tensor) -> Tensor:
    """P: (q_i . k_j) e^{c_seen(i) - c_j} for the first seen(i) keys, else 0; `total` is `_cumulated`.

    If every feature has its own decay, it must be applied before features are summed: queries are multiplied by
    e^{c_seen(i) - c_m} and keys by e^{c_m - c_j}, for some place m. Two kinds of m keep both factors finite:

    * If key j and the last key that query i sees lie in the same aligned span of `_span` keys, which decay little, m is
      the middle of the span. One product serves all spans.
    * Otherwise m lies between the two, so that neither exponent is positive: it is the middle of the shortest aligned
      span of 2, 4, 8, .. keys that holds both. There is one product for each of these lengths.
    """
    count, device = k.shape[-2], k.device
    key, last = torch.arange(count, device=device), (seen - 1).unsqueeze(1)
    if total is None:
        return linear.scores(q, k) * (key <= last).to(q.dtype)
    if total.shape[-1] == 1:
        lag = total[..., seen, :] - total[..., 1:, :].mT
        return linear.scores(q, k) * lag.masked_fill(key > last, -torch.inf).exp()

    def compared(span: int, pairs: Tensor, early: Tensor | None = None, late: Tensor | None = None) -> Tensor:
        """Scores of `pairs`, with m the middle of their span; `early` keys and `late` queries only (None: all)."""
        middle_k, middle_q = ((x // span * span + (span + 1) // 2).clamp(0, count) for x in (key, last.squeeze(1)))
        lag_k, lag_q = fixed[..., middle_k, :] - total[..., 1:, :], total[..., seen, :] - fixed[..., middle_q, :]
        lag_k = lag_k if early is None else lag_k.masked_fill(~early, -torch.inf)
        lag_q = lag_q if late is None else lag_q.masked_fill(~late, -torch.inf)
        return linear.scores(q * lag_q.exp(), k * lag_k.exp()) * pairs.to(q.dtype)

    fixed = total.detach()  # c_m cancels; its gradient would do so only up to rounding
    span = _span(total)
    scores = compared(span, (key <= last) & (key // span == last // span))
    while span < count:
        span *= 2
        late = (last >= last // span * span + span // 2) & (last >= 0)
        scores = scores + compared(span, key // span == last // span, (key % span < span // 2).unsqueeze(1), late)
    return scores


def _span(total: Tensor) -> int:
    """The largest power of 2 such that no aligned span of so many keys decays by a factor below e^-LITTLE."""
    count = total.shape[-2] - 1
    span = 1 << (count - 1).bit_length() if _may_synchronise(total) else 1
    while span > 1:
        starts = torch.arange(0, count, span, device=total.device)
        span_decay = total[..., starts, :] - total[..., (starts + span).clamp(max=count), :]
        if bool(span_decay.amax() < LITTLE):
            break
        span //= 2
    return span


def _may_synchronise(x: Tensor) -> bool:
    """Whether the numbers in x may decide what is computed; on a GPU the host then waits for them."""
    return not x.is_meta and dispatch.bounds(x.device).may_synchronise and not dispatch.is_traced()


def _system(k: Tensor, total: Tensor | None) -> Tensor:
    """A_ij = (k_i . k_j) e^{c_i - c_j} for j < i; the other entries are finite and not used."""
    if total is None:
        return linear.scores(k, k)
    return _scores(k, k, total, torch.arange(1, k.shape[-2] + 1, device=k.device))


def _cut(x: Tensor, size: int, groups: int) -> Tensor:
    """Cut (.., S, X) into blocks (G, n, size, X); zeros fill the last one: they write nothing and cause no decay."""
    x = x.reshape(groups, *x.shape[-2:])
    if not size:
        return x.unsqueeze(1)
    missing = -x.shape[1] % size
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(1, (-1, size))


def _states(decay: Tensor | None, added: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each block, (G, n, F, X), and after all, where S' = decay S + added; None: no decay."""
    if decay is None:
        states = torch.cat([first.unsqueeze(1), added], 1).cumsum(1)
        return states[:, :-1], states[:, -1]
    return _States.apply(decay, added, first)


class _States(torch.autograd.Function):
    """`linear.states` with a backward pass of its own; autograd's would save and add many small tensors."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, added: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        before, after = linear.states(decay, added, first)
        ctx.save_for_backward(decay, before)
        return before, after

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, before = saved
        to_added, to_first = linear.states(decay, grad, grad_after, backward=True)
        return (to_added * before).sum(-1, keepdim=True).sum_to_size(decay.shape), to_added, to_first


LEAST = 1e-36  # lower bound of b^2 as a divisor; a sigmoid is that small only where it writes nothing


class Blocks(NamedTuple):
    """Blocks of keys and queries for `delta_sums`; only the keys in W, the first of a block, change the state."""

    q: Tensor  # (N, R, F)
    scores: Tensor  # P, (N, R, C)
    reading: Tensor  # K, (N, C, F)
    writing: Tensor  # W, (N, C or fewer, F)
    v: Tensor  # (N, C, X)
    system: Tensor  # A, (N, C, C)
    strength: Tensor  # b, (N, C, 1)
    decay: Tensor | None  # d, (N, 1 or F, 1); None: 1


def inverse(system: Tensor, strength: Tensor) -> Tensor:
    """T = (diag(1 / b) + A)^-1 = (1 + diag(b) A)^-1 diag(b), where A (.., C, C) is taken below its diagonal.

    Strengths b are (.., C, 1). A strength of 0 (padding) gives a row and a column of zeros.
    """
    diagonal = torch.diag_embed(strength.squeeze(-1))
    return torch.linalg.solve_triangular(system * strength, diagonal, upper=False, unitriangular=True)


def delta_sums(blocks: Blocks, first: Tensor, decay_last: bool = False) -> tuple[Tensor, Tensor]:
    """O (N, R, X), and the state (G, F, X) after all blocks, starting from the state `first` (G, F, X).

    With `decay_last` the decay of a block also applies to what the block wrote: S' = d (S + W^T U).
    """
    return _DeltaSums.apply(first, decay_last, *blocks)


class _DeltaSums(torch.autograd.Function):
    """`delta_sums` with a backward pass of its own; autograd's would solve two more systems and save twice as much."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, decay_last: bool, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        q, scores, reading, writing, v, system, strength, decay = tensors
        writers = writing.shape[1]
        solved = inverse(system, strength)  # T
        taken, update = solved @ reading, solved @ v  # T K, T V
        # S' = M S + N: M = d - W^T T K, N = W^T T V
        transition, added = writing.mT @ taken[:, :writers], writing.mT @ update[:, :writers]
        transition.neg_().diagonal(dim1=1, dim2=2).add_(1 if decay is None or decay_last else decay.squeeze(-1))
        if decay is not None and decay_last:
            transition, added = transition.mul_(decay), added.mul_(decay)
        before, after = linear.states(_by_group(transition, first), _by_group(added, first), first)
        before = before.flatten(0, 1)
        update.baddbmm_(taken, before, alpha=-1)  # U
        ctx.decay_last = decay_last
        ctx.save_for_backward(q, scores, writing, strength, decay, solved, taken, update, transition, before, after)
        return (q @ before).baddbmm_(scores, update), after

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor | None, ...]:
        q, scores, writing, strength, decay, solved, taken, update, transition, before, after = saved
        writers = writing.shape[1]
        to_update = scores.mT @ grad
        to_before = (q.mT @ grad).baddbmm_(taken.mT, to_update, alpha=-1)  # without that of later blocks
        to_states, to_first = linear.states(
            _by_group(transition.mT, after), _by_group(to_before, after), grad_after, backward=True
        )  # to the state after each block
        to_decay, states = None, _by_group(before, after)
        if decay is not None and ctx.decay_last:
            to_decay = linear.gradient_of_decay(to_states, states, after, _by_group(decay, after)).flatten(0, 1)
            to_states = to_states.mul_(_by_group(decay, after))
        elif decay is not None:
            to_decay = (to_states * states).sum(-1, keepdim=True).flatten(0, 1).sum_to_size(decay.shape)
        to_states = to_states.flatten(0, 1)
        to_update[:, :writers] += writing @ to_states
        to_v, to_system, to_strength = _solution_gradients(solved, to_update, update, strength)
        grads = Blocks(
            q=grad @ before.mT,
            scores=grad @ update.mT,
            reading=(to_v @ before.mT).neg_(),
            writing=update[:, :writers] @ to_states.mT,
            v=to_v,
            system=to_system,
            strength=to_strength,
            decay=to_decay,
        )
        return to_first, None, *grads


def _solution_gradients(
    solved: Tensor, to_update: Tensor, update: Tensor, strength: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of V, A and b, given that of U = (diag(1 / b) + A)^-1 V."""
    to_v = solved.mT @ to_update
    to_system = to_v @ update.mT
    to_strength = to_system.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) / strength.square().clamp_min(LEAST)
    return to_v, to_system.tril_(-1).neg_(), to_strength


def _by_group(x: Tensor, of: Tensor) -> Tensor:
    """(N, .., ..) to (G, n, .., ..), where G is the length of `of`."""
    return x.unflatten(0, (len(of), -1))
