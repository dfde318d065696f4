"""Long inputs in segments with a state between them: one engine for every mechanism.

Plain autograd saves what happens inside every segment. Where that is too much, this engine keeps the state before each
segment, and runs the segment again in the backward pass, with the same random numbers. Memory then grows with the
tokens alone, and time stays linear.

Shapes: T queries, S keys, in dimension 2 of every tensor that is cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..masks import CAUSAL, ChunkMask, Mask, PrefixMask
from .precision import without_autocast

_Backward = TypeVar("_Backward", bound=Callable[..., Any])


class Segment(NamedTuple):
    """Queries [t0, t1) that see every key before s0 and, of keys [s0, s1), what `mask` shows. Either may be empty."""

    t0: int
    t1: int
    s0: int
    s1: int
    mask: Mask


class Plan(NamedTuple):
    """Segments in order; whether the backward pass runs them `again`, or what they computed is kept."""

    segments: list[Segment]
    again: bool


@dataclass
class Saved:
    """What the forward pass of a segment saves so that its backward pass need not compute the sums again.

    A segment may fill it in (`linear.normalize` does). When the segment runs again it gets it back `filled`: only
    gradients are wanted then, so that the values it returns do not matter.

    normalizer: of each query, (B, H, T, 1).
    output:     (B, H, T, E), before it was rounded to the precision of the values; None if it was not.
    no_queries: in the backward pass, that the segment only writes keys, so that nothing depends on its values either.
    """

    normalizer: Tensor | None = None
    output: Tensor | None = None
    no_queries: bool = False

    @property
    def filled(self) -> bool:
        return self.normalizer is not None or self.no_queries


class Run(Protocol):
    """One segment: its output (B, H, t1 - t0, E), or None without queries, and the state after it."""

    def __call__(
        self, memory: list[Tensor], queries: list[Tensor], keys: list[Tensor], at: Segment, saved: Saved | None
    ) -> tuple[Tensor | None, list[Tensor]]: ...


def cut(mask: Mask, queries: int, keys: int, size: int, unit: int) -> list[Segment]:
    """Segments of about `size` tokens, and of whole `unit`s of queries where these see different keys.

    First the keys that every query sees; then queries with the keys they gain; then queries that gain none.
    """
    if isinstance(mask, ChunkMask):
        step = max(1, size // (2 * unit)) * unit
        return [Segment(t, min(t + step, queries), t, min(t + step, queries), mask) for t in range(0, queries, step)]
    shared, growing, ratio = keys, 0, 1
    if mask is not None:
        shared, growing, ratio = min(mask.shared, keys), mask.growing(queries, keys), mask.ratio
    found = [Segment(0, 0, s, min(s + size, shared), None) for s in range(0, shared, size)]
    step = max(1, size // (unit * (ratio + 1))) * unit
    gain = CAUSAL if ratio == 1 else PrefixMask(1, ratio)
    for t in range(0, growing, step):
        t1 = min(t + step, growing)
        found.append(Segment(t, t1, shared + t * ratio, min(shared + t1 * ratio, keys), gain))
    return found + [Segment(t, min(t + size, queries), keys, keys, None) for t in range(growing, queries, size)]


def scan(
    run: Run,
    memory: Sequence[Tensor],
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: Plan,
    random: bool = False,
) -> Tensor:
    """The outputs (B, H, T, E) of all segments, beginning with the state `memory`.

    `queries` have T tokens and `keys` S in dimension 2. `parameters` are what else `run` uses and wants a gradient.
    `random`: segments draw random numbers.
    """
    if plan.again and torch.is_grad_enabled():
        sizes = _Sizes(len(memory), len(queries), len(keys))
        return _Again.apply(run, plan.segments, sizes, random, *memory, *queries, *keys, *parameters)
    outputs: list[Tensor] = []
    state = list(memory)
    cuts = zip(_split(queries, plan.segments, 0), _split(keys, plan.segments, 2), plan.segments, strict=True)
    for some_queries, some_keys, at in cuts:
        out, state = run(state, some_queries, some_keys, at, None)
        outputs += [] if out is None else [out]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def _split(tensors: Sequence[Tensor], segments: list[Segment], side: int) -> Iterator[list[Tensor]]:
    """The parts of each segment. Split, not sliced: a slice's gradient is as large as the whole tensor."""
    lengths = [at.t1 - at.t0 if side == 0 else at.s1 - at.s0 for at in segments]

    def parts(x: Tensor) -> Sequence[Tensor]:
        if x.shape[2] in lengths:  # one segment has all of it
            return [x if length else x[:, :, :0] for length in lengths]
        return x.split([*lengths, x.shape[2] - sum(lengths)], 2)[: len(segments)]

    return (list(part) for part in zip(*map(parts, tensors), strict=True))


class _Sizes(NamedTuple):
    """How many tensors are the state's, the queries' and the keys'; the others are parameters."""

    memory: int
    queries: int
    keys: int

    def split(self, items: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        a, b = self.memory, self.memory + self.queries
        c = b + self.keys
        return list(items[:a]), list(items[a:b]), list(items[b:c]), list(items[c:])


def first_order(backward: _Backward) -> _Backward:
    """A backward pass without autocast; to differentiate its results again is refused in one line.

    `backward` gets the saved tensors after the context: they are read once, since checkpointing gives them only once.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors
        with torch.no_grad(), without_autocast(grads[0].device):
            found = backward(ctx, saved, *grads)
        # what is found may be differentiated by way of the incoming gradients alone
        given = (*saved, *grads) if torch.is_grad_enabled() else ()
        anchors = [x for x in given if x is not None and x.requires_grad]
        if not anchors:
            return found
        refusing = iter(_FirstOnly.apply(len(found), *found, *anchors))
        return tuple(None if x is None else next(refusing) for x in found)

    return cast(_Backward, run)


class _FirstOnly(torch.autograd.Function):
    """Gradients that say that they depend on the `anchors`, and not how."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count] if x is not None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise LeapformerError("second derivatives need execution='reference'; a scan has first ones only")


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, segments: list[Segment], sizes: _Sizes, random: bool, *tensors: Tensor) -> Tensor:
        state, queries, keys, _ = sizes.split(tensors)
        parts: list[Tensor] = []
        states: list[Tensor] = []
        saved: list[Saved] = []
        drawn: list[Tensor | None] = []  # states of the random numbers
        for at in segments:
            states += state
            drawn.append(_random_state(queries[0].device) if random else None)
            saved.append(Saved())
            copy = [x.clone() for x in state]  # since a segment may change its state in place
            out, state = run(copy, _narrow(queries, at.t0, at.t1), _narrow(keys, at.s0, at.s1), at, saved[-1])
            if out is not None:
                if not parts:
                    parts.append(out.new_empty(*out.shape[:2], queries[0].shape[2], out.shape[3]))
                parts[0][:, :, at.t0 : at.t1] = out
        ctx.run, ctx.segments, ctx.sizes, ctx.drawn = run, segments, sizes, drawn
        whole = parts if any(one.filled for one in saved) else [None]
        pairs = [x for one in saved for x in (one.normalizer, one.output)]
        ctx.save_for_backward(*tensors, *states, *pairs, *whole)
        return parts[0]

    @staticmethod
    @first_order
    def backward(ctx: Any, tensors: tuple[Any, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
        sizes: _Sizes = ctx.sizes
        needed, saved = ctx.needs_input_grad[4:], list(tensors)
        _, queries, keys, parameters = sizes.split(saved[: len(needed)])
        whole_out = saved.pop()
        pairs = saved[len(saved) - 2 * len(ctx.segments) :]
        states = saved[len(needed) : len(saved) - len(pairs)]
        first_needed, *sides_needed, _ = sizes.split(needed)
        grads = [
            [torch.empty_like(x) if wanted else None for x, wanted in zip(side, wants, strict=True)]
            for side, wants in zip((queries, keys), sides_needed, strict=True)
        ]
        for unseen in (x for x in grads[1] if x is not None):
            unseen[:, :, ctx.segments[-1].s1 :] = 0
        totals: list[Tensor | None] = [None] * len(parameters)
        after: list[Tensor | None] = [None] * sizes.memory
        for number, at in reversed(list(enumerate(ctx.segments))):
            known = Saved(*pairs[2 * number : 2 * number + 2], no_queries=at.t0 == at.t1)
            if known.normalizer is not None and known.output is None:
                known.output = whole_out[:, :, at.t0 : at.t1]
            memory = states[number * sizes.memory : (number + 1) * sizes.memory]
            memory = _leaves(memory, [x.is_floating_point() for x in memory])
            spans = ((at.t0, at.t1), (at.s0, at.s1))
            sides = [
                _leaves(_narrow(side, *span), wants)
                for side, span, wants in zip((queries, keys), spans, sides_needed, strict=True)
            ]
            with torch.enable_grad(), _drawing(ctx.drawn[number], grad.device):
                out, state = ctx.run(memory, *sides, at, known)
            outputs = state if out is None else [out, *state]
            sent = after if out is None else [grad[:, :, at.t0 : at.t1], *after]
            found = iter(_gradients(outputs, sent, [*memory, *sides[0], *sides[1], *parameters]))
            # What a segment does not depend on, such as a state that it hands on unchanged, passes by.
            after = [next(found) for _ in memory]
            for whole, (start, stop) in zip(grads, spans, strict=True):
                for total in whole:
                    part = next(found)
                    if total is not None:
                        total[:, :, start:stop] = 0 if part is None else part
            totals = [_total(one, other) for one, other in zip(totals, found, strict=True)]
        firsts = [grad if wanted else None for grad, wanted in zip(after, first_needed, strict=True)]
        return None, None, None, None, *firsts, *grads[0], *grads[1], *totals


def _narrow(tensors: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
    return [x[:, :, start:stop] for x in tensors]


def _leaves(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """The tensors as the beginning of a graph."""
    return [x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True)]


def _gradients(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of the inputs, None where there is none, given those of the outputs."""
    known = [(x, grad) for x, grad in zip(outputs, grads, strict=True) if x.requires_grad and grad is not None]
    wanted = [x for x in inputs if x.requires_grad]
    if not known:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad([x for x, _ in known], wanted, [grad for _, grad in known], allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def _total(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of two gradients; None where a parameter had none."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def _drawing(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Random numbers are those that were drawn after `state`, if there is one; later ones are as without it."""
    if state is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        yield
