"""The precision of sums: at least float32, whatever the inputs' dtype, and under autocast too.

A bfloat16 state stops growing after some hundred tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

_Method = TypeVar("_Method", bound=Callable[..., Any])


def accumulated(x: Tensor) -> Tensor:
    """Convert to the precision of sums: float64 stays, anything else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Inside the `with` block, operations compute in the precision of their inputs, also under autocast."""
    active = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if active else nullcontext()


def in_float32(method: _Method) -> _Method:
    """Decorator: a mechanism's method computes in float32 (float64 for double inputs), also under autocast.

    The tensor that it returns, alone or first in a tuple, is converted to the dtype of its last tensor argument.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        last = next(x for x in reversed(args) if isinstance(x, Tensor))
        with without_autocast(last.device):
            result = method(self, *(accumulated(x) if isinstance(x, Tensor) else x for x in args), **kwargs)
        if isinstance(result, Tensor):
            return result.to(last.dtype)
        return (result[0].to(last.dtype), *result[1:]) if isinstance(result, tuple) else result

    return cast(_Method, run)


def right_angle(dtype: torch.dtype) -> float:
    """pi / 2, the angle of a proportion of 1, rounded down in float32.

    The nearest float32 is greater than pi / 2, and its cosine negative. Trained networks do reach proportions of 0 and
    1; the similarity of two such tokens would be negative, and a normalizer must not sum negative similarities.
    """
    return math.pi / 2 if dtype == torch.float64 else 1.5707962512969971
