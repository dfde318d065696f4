"""What the attention tests share: mechanisms by name, inputs, padding, and one run with all its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from leapformer_fairseq.attention import CAUSAL, MECHANISMS, LinearMechanism, Mechanism, Rows, Visible, build

NAMES = sorted(MECHANISMS)
LINEAR = [name for name in NAMES if issubclass(MECHANISMS[name], LinearMechanism)]
RECOMPUTING = [name for name in NAMES if "recompute" in MECHANISMS[name].forms]
BOUNDED = [name for name in NAMES if name.startswith("abc-")]
CONSTANT = [name for name in NAMES if MECHANISMS[name].constant_state]
# whose weights of all keys are no average
UNNORMALIZED = ("rope", "abc-linformer", "abc-pool", "abc-random", "luna")
SLOTS = {"abc_slots": 5}
# what a mechanism needs to be built, or to be tested in all blocks
OPTIONS = {
    "cosformer": {"cosformer_length": 50},
    **{name: SLOTS for name in BOUNDED},
    "abc-pool": {"abc_slots": 5, "abc_pool_size": 100},
    "abc-global": {"abc_slots": 5, "abc_global_every": 3},
}
SIDES = (None, "left", "right")
HEADS, DIM, VALUE_DIM = 2, 8, 5


class Case(NamedTuple):
    """Numbers of queries and keys, and who sees what."""

    queries: int
    keys: int
    visible: Visible | None

    def __str__(self) -> str:
        if self.visible is None:
            return f"all-{self.queries}x{self.keys}"
        return f"k{self.visible.lagging}r{self.visible.ratio}-{self.queries}x{self.keys}"


CASES = (
    Case(1, 1, CAUSAL),
    Case(37, 37, CAUSAL),
    Case(131, 131, CAUSAL),
    Case(33, 47, None),
    Case(20, 150, Visible(3, 7)),
    Case(70, 90, Visible(2, 3)),  # the keys end before the queries
    Case(4, 100, Visible(1, 3)),  # most keys are never seen
    Case(5, 13, Visible(9, 2)),  # k * ratio > S: every query sees everything
)
PATTERNS = (CAUSAL, None, Visible(2, 2))


def heads(x: Tensor) -> Tensor:
    """(T, B, C) to (B, H, T, D), as a block does with what it has projected."""
    return x.unflatten(-1, (HEADS, -1)).permute(1, 2, 0, 3)


def joined(x: Tensor) -> Tensor:
    """(B, H, T, D) to (T, B, C)."""
    return x.permute(2, 0, 1, 3).flatten(2)


def make(name: str, **options: object) -> Mechanism:
    return build(name, DIM, HEADS, **{**OPTIONS.get(name, {}), **options}).double()


def serving(visible: Visible | None, names: Sequence[str] = NAMES) -> list[str]:
    """The mechanisms that are defined for queries that see this much."""
    return [name for name in names if make(name).objection(visible) is None]


def pairs(names: Sequence[str], patterns: Iterable[Any]) -> list[Any]:
    """Every mechanism with every case or pattern that it serves, as parameters of a test."""
    found = [(name, one) for name in names for one in patterns]
    return [
        pytest.param(name, one, id=f"{name}-{one}")
        for name, one in found
        if make(name).objection(one.visible if isinstance(one, Case) else one) is None
    ]


def inputs(queries: int, keys: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """q, k and v."""
    shapes = ((queries, DIM), (keys, DIM), (keys, VALUE_DIM))
    return tuple(torch.randn(batch, HEADS, *shape, dtype=torch.float64).to(dtype) for shape in shapes)


def padding(count: int, side: str | None, batch: int = 2) -> Tensor | None:
    """A keep mask: the first row of the batch is full, the others miss about a third on one side."""
    if side is None:
        return None
    missing = count // 3
    keep = torch.ones(batch, count, dtype=torch.bool)
    keep[1:, slice(0, missing) if side == "left" else slice(count - missing, count)] = False
    return keep


def run(mechanism: Mechanism, qkv: tuple[Tensor, ...], grad: Tensor | None = None, **call: object) -> list[Tensor]:
    """The output, and with `grad` also the gradients of q, k, v and of the parameters."""
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv)
    mechanism.zero_grad(set_to_none=True)
    out = mechanism(q, k, v, **call)
    if grad is None:
        return [out.detach()]
    out.backward(grad.to(out.dtype))
    parameters = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in mechanism.parameters()]
    return [out.detach(), q.grad, k.grad, v.grad, *parameters]


def difference(got: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of any tensor, relative to the largest number expected in it (but at least 1)."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(got, expected, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in pairs)


def steps(mechanism: Mechanism, qkv: tuple[Tensor, ...], rows: Rows, prompt: int = 0) -> tuple[Tensor, object]:
    """Causal attention read as generation reads it: a prompt in one piece, then row by row."""
    state, outputs = None, []
    count = qkv[0].shape[2]
    cuts = [0, *range(prompt or 1, count + 1)]
    for start, stop in pairwise(cuts):
        q, k, v = (x[:, :, start:stop] for x in qkv)
        out, state = mechanism.extend(state, q, k, v, rows.narrow(start, stop))
        outputs.append(out)
    return torch.cat(outputs, 2), state
