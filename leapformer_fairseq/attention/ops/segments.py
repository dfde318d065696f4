"""Long inputs in segments with a state between them, for every mechanism.

Autograd would save all intermediates of every segment. If that is too much, `scan` saves the inputs and the state
before each segment, and the backward pass runs the segment again, with the same random numbers. Memory then grows only
with the inputs, the outputs and these states; time stays linear.

Shapes: B batch, H heads, E value dimension; T queries or S keys in dimension 2 of every tensor that is cut.
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
    """Queries [t0, t1), which see all keys before s0 and those of [s0, s1) that `mask` shows. Both may be empty."""

    t0: int
    t1: int
    s0: int
    s1: int
    mask: Mask


class Plan(NamedTuple):
    """Segments in order. `again`: the backward pass runs them again; otherwise their intermediates are saved."""

    segments: list[Segment]
    again: bool


@dataclass
class Saved:
    """What a segment may save in its forward pass, so that sums need not be computed again in the backward pass.

    `linear.normalize` fills it in. When the segment runs again it is given back, `filled`, and only gradients are used:
    the values that the segment returns do not matter.

    normalizer: of each query, (B, H, T, 1).
    output:     (B, H, T, E), before it was rounded to the precision of the values; None if it was not rounded.
    no_queries: in the backward pass: the segment only writes keys, so that nothing needs its values either.
    """

    normalizer: Tensor | None = None
    output: Tensor | None = None
    no_queries: bool = False

    @property
    def filled(self) -> bool:
        return self.normalizer is not None or self.no_queries


class Run(Protocol):
    """Computes a segment after the state `memory`: output (B, H, t1 - t0, E), None without queries, and new state."""

    def __call__(
        self, memory: list[Tensor], queries: list[Tensor], keys: list[Tensor], at: Segment, saved: Saved | None
    ) -> tuple[Tensor | None, list[Tensor]]: ...


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


def scan(
    run: Run,
    memory: Sequence[Tensor],
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: Plan,
    random: bool = False,
) -> Tensor:
    """Run all segments, from the state `memory` on, and return their outputs, (B, H, T, E).

    `queries` are tensors of T tokens and `keys` of S tokens in dimension 2. `parameters` are the other tensors that
    `run` uses and that need a gradient. `random`: segments draw random numbers.
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
    """Each segment's part of the tensors; `side` is 0 for queries, 2 for keys.

    Split, not sliced, since the gradient of every slice would be as large as the whole tensor.
    """
    lengths = [at.t1 - at.t0 if side == 0 else at.s1 - at.s0 for at in segments]

    def parts(x: Tensor) -> Sequence[Tensor]:
        if x.shape[2] in lengths:  # one segment has all tokens
            return [x if length else x[:, :, :0] for length in lengths]
        return x.split([*lengths, x.shape[2] - sum(lengths)], 2)[: len(segments)]

    return (list(part) for part in zip(*map(parts, tensors), strict=True))


class _Sizes(NamedTuple):
    """Of a list of tensors, how many belong to the state, then to queries and to keys; the rest are parameters."""

    memory: int
    queries: int
    keys: int

    def split(self, items: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        a, b = self.memory, self.memory + self.queries
        c = b + self.keys
        return list(items[:a]), list(items[a:b]), list(items[b:c]), list(items[c:])


def first_order(backward: _Backward) -> _Backward:
    """Decorator of a custom backward pass: it runs without autocast, and second derivatives raise LeapformerError.

    `backward` receives the saved tensors after the context. They are read only once, since activation checkpointing
    provides them only once.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        device = next(x.device for x in (*grads, *saved) if x is not None)
        with torch.no_grad(), without_autocast(device):
            results = backward(ctx, saved, *grads)
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


class _Again(torch.autograd.Function):
    """`scan` whose backward pass runs every segment again, from the saved state before it."""

    @staticmethod
    def forward(ctx: Any, run: Run, segments: list[Segment], sizes: _Sizes, random: bool, *tensors: Tensor) -> Tensor:
        state, queries, keys, _ = sizes.split(tensors)
        outputs: list[Tensor] = []  # none yet, or the one tensor of all outputs
        states: list[Tensor] = []
        saved: list[Saved] = []
        random_states: list[Tensor | None] = []
        for at in segments:
            states += state
            random_states.append(_random_state(queries[0].device) if random else None)
            saved.append(Saved())
            copy = [x.clone() for x in state]  # since a segment may change its state in place
            out, state = run(copy, _narrow(queries, at.t0, at.t1), _narrow(keys, at.s0, at.s1), at, saved[-1])
            if out is not None:
                if not outputs:
                    outputs.append(out.new_empty(*out.shape[:2], queries[0].shape[2], out.shape[3]))
                outputs[0][:, :, at.t0 : at.t1] = out
        ctx.run, ctx.segments, ctx.sizes, ctx.random_states = run, segments, sizes, random_states
        output = outputs if any(x.filled for x in saved) else [None]
        pairs = [x for each in saved for x in (each.normalizer, each.output)]
        ctx.save_for_backward(*tensors, *states, *pairs, *output)
        return outputs[0]

    @staticmethod
    @first_order
    def backward(ctx: Any, tensors: tuple[Any, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
        sizes: _Sizes = ctx.sizes
        needed, saved = ctx.needs_input_grad[4:], list(tensors)
        _, queries, keys, parameters = sizes.split(saved[: len(needed)])
        output = saved.pop()
        pairs = saved[len(saved) - 2 * len(ctx.segments) :]
        states = saved[len(needed) : len(saved) - len(pairs)]
        first_needed, *sides_needed, _ = sizes.split(needed)
        side_grads = [
            [torch.empty_like(x) if wanted else None for x, wanted in zip(side, wants, strict=True)]
            for side, wants in zip((queries, keys), sides_needed, strict=True)
        ]
        for key_grad in (x for x in side_grads[1] if x is not None):
            key_grad[:, :, ctx.segments[-1].s1 :] = 0  # of keys that no query sees
        parameter_grads: list[Tensor | None] = [None] * len(parameters)
        state_grads: list[Tensor | None] = [None] * sizes.memory  # of the state after the segment
        for number, at in reversed(list(enumerate(ctx.segments))):
            normalizer, unrounded = pairs[2 * number : 2 * number + 2]
            segment_saved = Saved(normalizer, unrounded, no_queries=at.t0 == at.t1)
            if segment_saved.normalizer is not None and segment_saved.output is None:
                segment_saved.output = output[:, :, at.t0 : at.t1]
            memory = states[number * sizes.memory : (number + 1) * sizes.memory]
            memory = _leaves(memory, [x.is_floating_point() for x in memory])
            spans = ((at.t0, at.t1), (at.s0, at.s1))
            sides = [
                _leaves(_narrow(side, *span), wants)
                for side, span, wants in zip((queries, keys), spans, sides_needed, strict=True)
            ]
            with torch.enable_grad(), _replayed_random(ctx.random_states[number], grad.device):
                out, state = ctx.run(memory, *sides, at, segment_saved)
            outputs = state if out is None else [out, *state]
            output_grads = state_grads if out is None else [grad[:, :, at.t0 : at.t1], *state_grads]
            input_grads = iter(_gradients(outputs, output_grads, [*memory, *sides[0], *sides[1], *parameters]))
            # A state that the segment returns unchanged is its input and its output: the gradient passes through.
            state_grads = [next(input_grads) for _ in memory]
            for totals, (start, stop) in zip(side_grads, spans, strict=True):
                for total in totals:
                    part = next(input_grads)
                    if total is not None:
                        total[:, :, start:stop] = 0 if part is None else part
            parameter_grads = [_total(x, part) for x, part in zip(parameter_grads, input_grads, strict=True)]
        first_grads = [x if wanted else None for x, wanted in zip(state_grads, first_needed, strict=True)]
        return None, None, None, None, *first_grads, *side_grads[0], *side_grads[1], *parameter_grads


def _narrow(tensors: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
    """Tokens `start` to `stop`."""
    return [x[:, :, start:stop] for x in tensors]


def _leaves(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """Detach the tensors, so that a new graph begins with them; those `wanted` need a gradient."""
    return [x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True)]


def _gradients(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of the inputs, given those of the outputs; None if there is none."""
    pairs = [(x, grad) for x, grad in zip(outputs, grads, strict=True) if x.requires_grad and grad is not None]
    wanted = [x for x in inputs if x.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    results = iter(torch.autograd.grad([x for x, _ in pairs], wanted, [grad for _, grad in pairs], allow_unused=True))
    return [next(results) if x.requires_grad else None for x in inputs]


def _total(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of two gradients, either of which may be None."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def _replayed_random(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Inside the `with` block, draw the random numbers that followed `state` again; None: new ones."""
    if state is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        yield
