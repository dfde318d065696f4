"""How `gpu` measures calls: those that fail are told of, the others take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from . import measure
from .gpu_cases import one_line
from .measure import Seconds

WARM_UP = 2

Call = Callable[[], Seconds]


def medians(calls: Mapping[Any, Call], seconds: float) -> tuple[dict[Any, Seconds], dict[Any, str]]:
    """The median of each part of each call, which take turns; and in one line what went wrong with the others."""
    working: dict[Any, Call] = {}
    failures: dict[Any, str] = {}
    for label, call in calls.items():
        try:
            for _ in range(WARM_UP):
                call()
            working[label] = call
        except Exception as error:
            failures[label] = one_line(error)
    return (measure.medians(working, seconds) if working else {}), failures


def timed(device: torch.device, run: Callable[[], object]) -> Seconds:
    start = measure.clock(device)
    run()
    return (measure.clock(device) - start,)


def both(attend: Callable[..., Tensor], tensors: tuple[Tensor, ...], grad: Tensor) -> Seconds:
    """Seconds of the forward pass, and of forward and backward pass."""
    for x in tensors:
        x.grad = None
    start = measure.clock(grad.device)
    out = attend(*tensors)
    middle = measure.clock(grad.device)
    out.backward(grad)
    return middle - start, measure.clock(grad.device) - start
