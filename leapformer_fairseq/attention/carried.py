"""Causal attention that carries a memory along the rows, and keeps almost nothing for the backward pass.

Plain autograd saves what happens inside every chunk. This Function walks the rows in stretches of some hundred, keeps
one memory per stretch, and does a stretch anew in the backward pass, with the same random numbers. What is needed at
once grows with the rows alone, not with the size of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .forms import outside_autocast
from .recompute import total

# Reads rows (B, .., size, ..) from a column on, after a memory: the output (B, H, size, E) and the memory after them.
Stretch = Callable[[Sequence[Tensor], Sequence[Tensor], int], tuple[Tensor, ...]]


class Plan(NamedTuple):
    """What the Function needs besides tensors, whose first ones are the memory's; `random` stretches draw numbers."""

    run: Stretch
    size: int
    memory: int
    rows: int
    random: bool


def carried(
    run: Stretch,
    first: Sequence[Tensor],
    rows: Sequence[Tensor],
    parameters: Sequence[Tensor],
    size: int,
    random: bool = False,
) -> Tensor:
    """The outputs (B, H, T, E) of all stretches of `size` rows, one after the other, behind the `first` memory.

    `rows` are tensors with T rows in dimension 2, `parameters` what else `run` uses and wants a gradient.
    """
    return _Carried.apply(Plan(run, size, len(first), len(rows), random), *first, *rows, *parameters)


class _Carried(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor) -> Tensor:
        memory, rows, _ = _split(plan, tensors)
        outputs: list[Tensor] = []
        memories: list[Tensor] = []
        drawn: list[Tensor | None] = []  # states of the random numbers
        for start in range(0, rows[0].shape[2], plan.size):
            memories += memory
            drawn.append(_random_state(rows[0].device) if plan.random else None)
            part, *memory = plan.run(memory, _narrow(rows, start, plan.size), start)
            if not outputs:
                outputs.append(part.new_empty(*part.shape[:2], rows[0].shape[2], part.shape[3]))
            outputs[0][:, :, start : start + plan.size] = part
        ctx.plan, ctx.drawn = plan, drawn
        ctx.save_for_backward(*tensors, *memories)
        return outputs[0]

    @staticmethod
    @once_differentiable
    @outside_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        first_needed, needed, _ = _split(plan, ctx.needs_input_grad[1:])
        count = len(ctx.needs_input_grad) - 1
        tensors, memories = ctx.saved_tensors[:count], list(ctx.saved_tensors[count:])
        first, rows, parameters = _split(plan, tensors)
        grads = [torch.empty_like(x) if wanted else None for x, wanted in zip(rows, needed, strict=True)]
        totals: list[Tensor | None] = [None] * len(parameters)
        after: Sequence[Tensor | None] = [None] * len(first)
        starts = range(0, grad.shape[2], plan.size)
        for start, drawn in zip(reversed(starts), reversed(ctx.drawn), strict=True):
            before = _leaves(memories[-len(first) :], [x.is_floating_point() for x in first])
            del memories[-len(first) :]
            parts = _leaves(_narrow(rows, start, plan.size), needed)
            with torch.enable_grad(), _drawing(drawn, grad.device):
                outputs = plan.run(before, parts, start)
            found = _gradients(outputs, [*_narrow([grad], start, plan.size), *after], [*before, *parts, *parameters])
            after, found = found[: len(before)], found[len(before) :]
            for whole, part in zip(grads, found[: plan.rows], strict=True):
                if whole is not None:
                    whole[:, :, start : start + plan.size] = 0 if part is None else part
            totals = list(map(total, totals, found[plan.rows :]))
        firsts = [grad if wanted else None for grad, wanted in zip(after, first_needed, strict=True)]
        return None, *firsts, *grads, *totals


def _split(plan: Plan, items: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """What belongs to the first memory, to the rows and to the parameters."""
    rows = plan.memory + plan.rows
    return items[: plan.memory], items[plan.memory : rows], items[rows:]


def _narrow(rows: Sequence[Tensor], start: int, size: int) -> list[Tensor]:
    return [x[:, :, start : start + size] for x in rows]


def _leaves(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """The tensors as the beginning of a graph."""
    return [x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True)]


def _gradients(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of the inputs, None where there is none, given those of the outputs."""
    known = [(x, grad) for x, grad in zip(outputs, grads, strict=True) if x.requires_grad and grad is not None]
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad([x for x, _ in known], wanted, [grad for _, grad in known], allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


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
