"""Long inputs in segments with a state between them, for every mechanism.

Autograd would save all intermediates of every segment. If that is too much, each is a checkpoint of PyTorch: its
inputs and the state before it are saved, and the backward pass runs it again, with the same random numbers. Memory then
grows only with the inputs, the outputs and these states; time stays linear.

Shapes: B batch, H heads, E value dimension; T queries or S keys in dimension 2 of every tensor that is cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...support.errors import LeapformerError
from ..masks import CAUSAL, ChunkMask, Mask, PrefixMask, seen
from . import dispatch
from .precision import without_autocast

_Backward = TypeVar("_Backward", bound=Callable[..., Any])


class Segment(NamedTuple):
    """Queries [t0, t1), which see all keys before s0 and those of [s0, s1) that `mask` shows. Both may be empty."""

    t0: int
    t1: int
    s0: int
    s1: int
    mask: Mask


class Plan(NamedTuple):
    """Segments in order. `again`: the backward pass runs them again; otherwise there is one, which is saved."""

    segments: list[Segment]
    again: bool


# Computes a segment: its output (B, H, t1 - t0, E), None without queries, and the tensors of the new state. It gets the
# segment, its parts of what `scan` gets, in this order, and the state before it.
Run = Callable[..., tuple[Tensor | None, list[Tensor]]]


def cut(mask: Mask, queries: int, keys: int, size: int, unit: int) -> list[Segment]:
    """Segments of about `size` queries and keys. Queries that see different keys are cut at multiples of `unit`.

    First come the keys that every query sees; then queries with the keys that each sees in addition; then queries that
    see no additional keys.
    """
    if isinstance(mask, ChunkMask):
        step = max(1, size // (2 * unit)) * unit
        return [Segment(t, min(t + step, queries), t, min(t + step, queries), mask) for t in range(0, queries, step)]
    shared, growing, ratio = keys, 0, 1
    if mask is not None:
        shared, growing, ratio = min(mask.shared, keys), mask.growing(queries, keys), mask.ratio
    segments = [Segment(0, 0, s, min(s + size, shared), None) for s in range(0, shared, size)]
    step = max(1, size // (unit * (ratio + 1))) * unit
    gain = CAUSAL if ratio == 1 else PrefixMask(1, ratio)
    for t in range(0, growing, step):
        t1 = min(t + step, growing)
        segments.append(Segment(t, t1, shared + t * ratio, min(shared + t1 * ratio, keys), gain))
    return segments + [Segment(t, min(t + size, queries), keys, keys, None) for t in range(growing, queries, size)]


def plan_of(q: Tensor, k: Tensor, mask: Mask, kept_tokens: float, segment_tokens: int) -> Plan:
    """How to cut q (B, H, T, D) and k (B, H, S, D) into segments.

    Up to `kept_tokens` tokens over heads and batch, all intermediates are saved for the backward pass. Longer inputs
    are cut into segments of about `segment_tokens` tokens over heads and batch, which the backward pass runs again.
    """
    queries, keys, limits, heads = q.shape[2], k.shape[2], dispatch.bounds(q.device), q.shape[0] * q.shape[1]
    # In a graph autograd is traced, too, and its compiler chooses what to save.
    if heads * (queries + keys) <= kept_tokens or dispatch.is_traced():
        return Plan([Segment(0, queries, 0, seen(mask, queries, keys), mask)], again=False)
    size = max(limits.least_segment, segment_tokens // max(1, heads))
    unit = mask.tokens if isinstance(mask, ChunkMask) else dispatch.chunk_of(q.device, mask.ratio if mask else 1)
    return Plan(cut(mask, queries, keys, size, unit), again=True)


def scan(
    run: Run,
    memory: Sequence[Tensor],
    queries: Sequence[Tensor | None],
    keys: Sequence[Tensor | None],
    plan: Plan,
    random: bool = False,
) -> Tensor:
    """Run all segments, from the state `memory` on, and return their outputs, (B, H, T, E).

    `queries` are tensors of T tokens and `keys` of S tokens in dimension 2. `random`: segments draw random numbers.
    """
    call = run
    if plan.again and torch.is_grad_enabled():
        call = functools.partial(checkpoint, dispatch.as_now()(run), use_reentrant=False, preserve_rng_state=random)
    lengths = [at.t1 - at.t0 for at in plan.segments], [at.s1 - at.s0 for at in plan.segments]
    parts = [_split(x, of) for side, of in zip((queries, keys), lengths, strict=True) for x in side]
    outputs, state = [], list(memory)
    for at, *some in zip(plan.segments, *parts, strict=True):
        out, state = call(at, *some, *state)
        outputs += [] if out is None else [out]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def _split(x: Tensor | None, lengths: list[int]) -> Sequence[Tensor | None]:
    """The parts of x with these numbers of tokens; split, since a slice's gradient would be as large as all of x."""
    if x is None:
        return [None] * len(lengths)
    if x.shape[2] in lengths:  # one segment has all tokens
        return [x if length else x[:, :, :0] for length in lengths]
    return x.split([*lengths, x.shape[2] - sum(lengths)], 2)[: len(lengths)]


def first_order(backward: _Backward) -> _Backward:
    """Decorator of a custom backward pass: it runs without autocast.

    Second derivatives raise LeapformerError, as do batched gradients that it cannot compute.

    `backward` receives the saved tensors after the context. They are read only once, since activation checkpointing
    provides them only once.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        device = next(x.device for x in (*grads, *saved) if x is not None)
        try:
            with torch.no_grad(), without_autocast(device):
                results = backward(ctx, saved, *grads)
        except RuntimeError as error:
            if not any(dispatch.is_batched(x) for x in grads if x is not None):
                raise
            raise LeapformerError("batched gradients (is_grads_batched) need execution='reference'") from error
        # With create_graph=True the results could be differentiated again, if only through the incoming gradients.
        sources = (*saved, *grads) if torch.is_grad_enabled() else ()
        anchors = [x for x in sources if x is not None and x.requires_grad]
        if not anchors:
            return results
        refusing = iter(_FirstOnly.apply(len(results), *results, *anchors))
        return tuple(None if x is None else next(refusing) for x in results)

    return cast(_Backward, run)


class _FirstOnly(torch.autograd.Function):
    """Returns the first `count` tensors, which then depend on the others (`anchors`), but cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count] if x is not None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise LeapformerError("second derivatives need execution='reference'; a scan has first ones only")
