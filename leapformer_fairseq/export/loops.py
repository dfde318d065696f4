"""Tokens one after the other as a loop of a graph, where what serves many tokens depends on how many they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch._higher_order_ops.scan import scan

from ..attention import CAUSAL, Mask, Mechanism, State, TokenInfo
from ..attention.linear.base import LinearMechanism, LinearState
from ..attention.mechanism import Inputs
from ..attention.ops.recurrent import Written, written
from ..attention.recurrent.base import RecurrentMechanism
from ..attention.recurrent.convolution import ConvolvedMechanism
from ..modules import attentions
from ..modules.attention import MechanismAttention


def one_token(mechanism: Mechanism) -> Callable[..., tuple[Tensor, State]]:
    """The scan of a single token: what every scan is defined by, except with a short convolution."""
    return Mechanism.scan if getattr(mechanism, "convolution", None) is None else type(mechanism).scan


def token_by_token(
    mechanism: Mechanism,
    state: State,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query: TokenInfo,
    key: TokenInfo,
    mask: Mask = CAUSAL,
) -> tuple[Tensor, State]:
    """`Mechanism.scan` of causal self-attention without padding."""
    kind, names, run = type(state), list(state.tensors()), one_token(mechanism)
    given = [*(x.movedim(2, 0) for x in (q, k, v)), key.positions.T]
    if key.inputs is not None:
        given.append(key.inputs.movedim(1, 0))

    def one(states: list[Tensor], parts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        *vectors, position = parts[:4]
        inputs = parts[4].unsqueeze(1) if len(parts) > 4 else None
        token = TokenInfo(position.unsqueeze(1), inputs=inputs)
        before = kind(**dict(zip(names, states, strict=True)))
        out, after = run(mechanism, before, *(x.unsqueeze(2) for x in vectors), token, token)
        return [x.clone() for x in after.tensors().values()], out.squeeze(2)

    first = [x.contiguous() for x in state.tensors().values()]
    after, out = scan(one, first, given, dim=0)
    return out.movedim(0, 2), kind(**dict(zip(names, after, strict=True)))


def with_rows(attention: MechanismAttention, state: State, x: Tensor, tokens: TokenInfo) -> State:
    """The state of an attention block that has read more rows x (S, B, C)."""
    return with_keys(attention.mechanism, state, *attention._kv(x), tokens)


def with_keys(mechanism: Mechanism, state: State, k: Tensor, v: Tensor, tokens: TokenInfo) -> State:
    """The same of a mechanism, given keys and values (B, H, S, D) as they are after a convolution."""
    if not isinstance(mechanism, RecurrentMechanism):
        return mechanism.write(state, k, v, tokens)
    kv, _ = row_by_row(state.of(LinearState).kv, mechanism._writing(k, v, tokens))
    return LinearState(kv)


def row_by_row(
    kv: Tensor, keys: Written, queries: Tensor | None = None, reads_first: bool = False
) -> tuple[Tensor, Tensor]:
    """The state after all rows, and what queries (B, H, S, F) read after their row was written, or before."""
    given = [part.movedim(2, 0) for part in (*keys, queries) if part is not None]

    def one(kv: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
        k, v, *more = (part.unsqueeze(2) for part in parts)
        decay = None if keys.decay is None else more.pop(0)
        strength = None if keys.strength is None else more.pop(0)
        after = written(kv, Written(k, v, decay, strength))
        read = (more[0] @ (kv if reads_first else after)).squeeze(2) if more else after.new_zeros(1)
        return after.clone(), read

    after, read = scan(one, kv, given, dim=0)
    return after, read.movedim(0, 2) if queries is not None else read


@contextmanager
def loops_in(stack: Any) -> Iterator[None]:
    """Meanwhile the mechanisms of an encoder or decoder read any number of tokens by what a graph can hold."""
    changed = [(attention.mechanism, *change) for attention in attentions(stack) if (change := _changed(attention))]
    try:
        for mechanism, name, method in changed:
            vars(mechanism)[name] = partial(method, mechanism)
        yield
    finally:
        for mechanism, name, _ in changed:
            del vars(mechanism)[name]


def _changed(attention: MechanismAttention) -> tuple[str, Callable[..., Any]] | None:
    """The method that is replaced for this while, and by what."""
    recurrent = isinstance(attention.mechanism, RecurrentMechanism)
    if attention.mask is None:
        return ("_in_segments", both_ways) if recurrent else None
    if isinstance(attention.mechanism, LinearMechanism) and not recurrent:
        return "_few_pairs", _all_pairs
    return "scan", token_by_token


def _all_pairs(mechanism: Mechanism, x: Inputs) -> bool:
    return True


def both_ways(mechanism: RecurrentMechanism, x: Inputs) -> Tensor:
    """What an encoder's recurrent mechanism makes of a whole source (`RecurrentMechanism`), row by row."""
    if isinstance(mechanism, ConvolvedMechanism):
        x = mechanism._prepared(x)
    q, k, v, query, key, _ = x
    first = mechanism.init_state(q.shape[0], v.shape[3], k, key, None).kv
    keys, queries = mechanism._writing(k, v, key), mechanism.queries(q, query)
    _, forward = row_by_row(first, keys, queries)
    later = keys.each(lambda part: part.flip(2))
    if not mechanism.replaces:
        later = later.before_decay()
    _, backward = row_by_row(first, later, queries.flip(2), reads_first=not mechanism.replaces)
    return mechanism._gated(mechanism._bounded(forward + backward.flip(2)), x)
