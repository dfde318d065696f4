"""Training speed and memory of causal attention with a bounded memory, compared with softmax and with cumulative sums.

Method: 8 heads of 64 dimensions, 32 slots (or vectors of a packed sequence), batch = max(1, 2048 / N), float32 unless
the device says otherwise, one thread. A measurement is one forward pass and one backward pass with the gradients of q,
k, v and all parameters. On a CPU it is the CPU time of the thread, on a GPU wall time. All systems take turns in one
process; the median is reported. "sdpa" is torch's softmax attention. "cumulative sums" is abc-mlp as its formula is
written: the memory of every prefix is computed, a tensor of size N x 32 x 64 per head, and then read. Ratio = time of
sdpa, or of the cumulative sums, / time of ours.

Memory is the peak above the inputs of one forward and backward pass in a fresh process; ratio = memory of ours / memory
of sdpa. Generation steps are in the benchmark "decode".

A mechanism is not reported if one of its executions differs from its reference in float64, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention import CAUSAL, MECHANISMS, Mechanism, build, find
from ...attention.bounded.base import BoundedMechanism
from ...attention.bounded.mlp import MLP
from . import measure
from .attention import disagreement  # noqa: F401  (what `leapformer bench` asks)
from .tables import Results, Shown

HEADS, HEAD_DIM, SLOTS = 8, 64, 32
TOKENS = 2048  # per batch, which has at least one sequence
SDPA, CUMULATIVE, REFERENCE = "sdpa", "cumulative sums", "abc-mlp"
# options that must fit the longest sequence
ROOM = {"abc_max_length": 20_000, "abc_pool_size": 512, "abc_global_every": 512}
SECONDS = 30.0  # per case
TITLE = "Bounded memories: speed and memory of training"
TABLES = (
    Shown("Forward and backward: times as fast as SDPA", "times", "ratio", "ms", SDPA),
    Shown("Forward and backward: times as fast as cumulative sums", "cumulative", "ratio", "ms", CUMULATIVE),
    Shown("Peak memory, forward and backward: times that of SDPA", "memory", "ratio", "peak_mib", SDPA),
)

CASES, QUICK_CASES = (1024, 4096, 16384), (128, 512)
LONGEST_CUMULATIVE = 4096
# abc-mlp, by length: times as fast as SDPA, and as cumulative sums, at least
AIMS, CUMULATIVE_AIMS = {4096: 1.0, 16384: 1.0}, {1024: 10.0}


class System(NamedTuple):
    """A system to measure: a function of q, k, v, and its parameters."""

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    parameters: Sequence[Tensor] = ()


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `times`, `cumulative` and `memory`. The mechanisms must have passed `disagreement`."""
    lengths, seconds = (QUICK_CASES, SECONDS / 10) if quick else (CASES, SECONDS)
    for place in places:
        for length in lengths:
            yield measure.Case(f"{place}: {length:,}", partial(times, length, names, place, seconds))
            yield measure.case(f"{place}: memory, {length:,}", "memory", memory, length, names, place)


def times(length: int, names: list[str], place: measure.Place, seconds: float) -> Results:
    """Time a training step of every system, compared with softmax and with cumulative sums."""
    seconds_of = medians(length, names, place, seconds)
    return {
        "times": compared(seconds_of, SDPA, length, place, AIMS),
        "cumulative": compared(seconds_of, CUMULATIVE, length, place, CUMULATIVE_AIMS),
    }


def medians(length: int, names: list[str], place: measure.Place, seconds: float) -> dict[str, float]:
    """Median seconds of every system."""
    inputs = _inputs(length, place)
    grad = torch.randn_like(inputs[0])
    calls = {name: partial(_time, system(name, place), inputs, grad) for name in systems(length, names)}
    return {name: duration for name, (duration,) in measure.medians(calls, seconds).items()}


def systems(length: int, names: list[str]) -> list[str]:
    """The systems to measure at this length: softmax first, and cumulative sums if they fit in memory."""
    serving = [name for name in names if make(name).capabilities.unsupported_reason(None, CAUSAL) is None]
    return [SDPA, *([CUMULATIVE] if REFERENCE in names and length <= LONGEST_CUMULATIVE else []), *serving]


def compared(
    times: dict[str, float], base: str, length: int, place: measure.Place, aims: dict[int, float]
) -> list[dict[str, Any]]:
    """Rows with the milliseconds of every system and the ratio to `base`; none if `base` was not measured."""
    others = [name for name in times if name not in (SDPA, CUMULATIVE)]
    return [
        {
            **_labels(length, name, place),
            "ms": times[name] * 1e3,
            "ratio": times[base] / times[name],
            "aim": aims.get(length) if name == REFERENCE and place.has_aims else None,
        }
        for name in ([base, *others] if base in times else [])
    ]


def memory(length: int, names: list[str], place: measure.Place) -> list[dict[str, Any]]:
    """Measure peak MiB above the inputs; no rows if it is unknown or too small to measure."""
    chosen, labels = systems(length, names), partial(_labels, length, place=place)
    return measure.peak_rows(chosen, SDPA, labels, peak_above_inputs, length, str(place))


def peak_above_inputs(name: str, length: int, place_name: str) -> int | None:
    """Peak bytes above the inputs; to be called in a fresh process."""
    torch.set_num_threads(1)
    place = measure.Place.parse(place_name)
    peak = None
    for size in (64, length):  # the first call loads libraries, which must not count
        measured, inputs = system(name, place), _inputs(size, place)
        grad = torch.randn_like(inputs[0])
        with measure.peak_growth(place.device) as growth:
            measured.attend(*inputs).backward(grad)
        peak = growth()
    return peak


def system(name: str, place: measure.Place) -> System:
    """The system with this name in the tables."""
    if name == SDPA:
        return System(partial(F.scaled_dot_product_attention, is_causal=True))
    mechanism = make(REFERENCE if name == CUMULATIVE else name).to(place.device)
    attend = partial(cumulative, mechanism) if name == CUMULATIVE else partial(_causal, mechanism)
    return System(attend, list(mechanism.parameters()))


def make(name: str) -> Mechanism:
    """Build a mechanism of the benchmark's size."""
    options = [option.name for option in find(name).options]  # the first of a bounded memory is its number of slots
    slots: dict[str, Any] = {options[0]: SLOTS} if issubclass(find(name), BoundedMechanism) else {}
    room: dict[str, Any] = {option: ROOM[option] for option in options if option in ROOM}
    return build(name, HEAD_DIM, HEADS, **slots, **room)


def _members() -> tuple[str, ...]:
    """The bounded memories that support causal attention without further options, and no variants of others."""
    names = []
    for name, cls in sorted(MECHANISMS.items()):
        variant = any(other is not cls and issubclass(cls, other) for other in MECHANISMS.values())
        if issubclass(cls, BoundedMechanism) and not variant:
            reason = build(name, HEAD_DIM, HEADS).capabilities.unsupported_reason(None, CAUSAL)
            names += [] if reason else [name]
    return tuple(sorted(names, key=lambda name: name != REFERENCE))


MECHANISMS_MEASURED = _members()


def _causal(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return cast(Tensor, mechanism(q, k, v, **measure.described(q, k), mask=CAUSAL))


def cumulative(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal abc-mlp by its formula, for all prefixes at once (Peng et al., 2022, arXiv:2110.02488, appendix B.1)."""
    control = cast(MLP, mechanism).control(k, measure.described(q, k)["key"])
    alpha = control.unsqueeze(-1)  # (B, H, N, n, 1)
    total = alpha.cumsum(2)
    keys, values = ((alpha * x.unsqueeze(3)).cumsum(2) / total for x in (k, v))
    weights = torch.einsum("bhtnd,bhtd->bhtn", keys, q * q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bhtn,bhtne->bhte", weights, values)


def _labels(length: int, name: str, place: measure.Place) -> dict[str, Any]:
    return {"device": str(place), "case": f"{length:,} tokens", "length": length, "mechanism": name}


def _inputs(length: int, place: measure.Place) -> tuple[Tensor, ...]:
    """Random q, k and v that require gradients."""
    shape = (max(1, TOKENS // length), HEADS, length, HEAD_DIM)
    return tuple(torch.randn(shape, device=place.device, dtype=place.dtype, requires_grad=True) for _ in range(3))


def _time(measured: System, inputs: tuple[Tensor, ...], grad: Tensor) -> measure.Seconds:
    """Time forward and backward pass together."""
    for tensor in (*inputs, *measured.parameters):
        tensor.grad = None
    start = measure.clock(grad.device)
    measured.attend(*inputs).backward(grad)
    return (measure.clock(grad.device) - start,)
