"""The precision of sums: float32 at least, whatever the inputs and autocast say.

A bfloat16 state stagnates after some hundred tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

_Method = TypeVar("_Method", bound=Callable[..., Any])


def accumulated(x: Tensor) -> Tensor:
    """The tensor in the precision of sums: float64 stays, all else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Operations keep the precision of their inputs while this holds."""
    active = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if active else nullcontext()


def in_float32(method: _Method) -> _Method:
    """A mechanism's method computes in float32 (float64 for double inputs), also under autocast.

    A tensor that it returns has the dtype of the last tensor it was given.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        last = next(x for x in reversed(args) if isinstance(x, Tensor))
        with without_autocast(last.device):
            found = method(self, *(accumulated(x) if isinstance(x, Tensor) else x for x in args), **kwargs)
        if isinstance(found, Tensor):
            return found.to(last.dtype)
        return (found[0].to(last.dtype), *found[1:]) if isinstance(found, tuple) else found

    return cast(_Method, run)
