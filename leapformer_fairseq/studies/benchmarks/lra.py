"""Training speed and memory on Long Range Arena: by length at equal batch size, and with the tasks' own batches.

Method: a training step (forward pass, loss, backward pass, Adam) of the Text model of a paper, random bytes without
padding, float32 unless the device says otherwise, one thread. The model is LeaPformer's (appendix A.10: 2 layers, 64
wide, 2 heads), for the rows of both papers, or with `--protocol luna` Luna's (section 4.1: 4 layers, 256 wide, 4 heads,
norms after the blocks in its own rows), for the rows of that paper, as in its Table 2 and the axis of its Figure 1.
On a CPU it is the CPU time of the thread, on a GPU wall time. All systems take turns in one process; the median is
reported. "softmax" is torch's scaled dot-product attention; "softmax, materialised" computes all weights, as the
papers' code does. No row has attention dropout: with it, torch computes all weights on a CPU, and linear attention has
none. Enlarged cosFormers (LeaPformer's Table 8) have the feed-forward layers that Text has there.
By length (as in Luna's Table 2; Ma et al., 2021): batches of 4. Tasks (LeaPformer's Table 2, with its models only):
their own batches at full length, 1k Pathfinder, 2k ListOps, 4k Text.

Memory is the peak above the model and the batch of one training step in a fresh process; ratio = memory of a row /
memory of materialised softmax. No row recomputes layers in the backward pass.

A mechanism is not reported if its training form differs from its reference in float64, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention import build
from ...data.lra import prepare
from ...modules import MechanismAttention
from ...support.errors import LeapformerError
from ..lra import protocols
from ..lra.params import model_of
from ..lra.protocols import BASELINE, Row
from . import measure
from .tables import Results, Shown

MATERIALISED, COSFORMER, LEAP, SMALL = "softmax, materialised", "cosformer", "leap", "leap-1"
ALL_WEIGHTS = (MATERIALISED, "synthesizer")
BATCH, SECONDS = 4, 60.0  # per case
LENGTHS, QUICK_LENGTHS = (1024, 2048, 3072, 4096), (128, 256)
TASKS = {"1k": "pathfinder", "2k": "listops", "4k": "text"}
TITLE = "Long Range Arena: speed and memory of training"
TABLES = (
    Shown("Training: times as fast as softmax", "softmax", "ratio", "ms", BASELINE),
    Shown("Training: times as fast as cosFormer", "cosformer", "ratio", "ms", COSFORMER),
    Shown(
        "Peak memory of a training step: times that of materialised softmax",
        "memory",
        "ratio",
        "peak_mib",
        MATERIALISED,
    ),
    Shown("Training with the tasks' own batches: times as fast as softmax", "tasks", "ratio", "ms", BASELINE),
)
AIMS = dict(zip(LENGTHS, (1.3, 2.0, 3.0, 4.0), strict=True))  # leap over softmax
COSFORMER_AIMS = {LEAP: 0.85, SMALL: 0.92}  # the paper has 0.90 and 0.98
MEMORY_AIM = 0.25  # leap at 4,096 tokens
PARITY = 1e-9
LEFT_OUT = ("linformer-2", "leap-2", "abc-mlp", "abc-random")


@cache
def rows(protocol: str = protocols.LEAPFORMER) -> dict[str, Row]:
    """The rows of `timed_rows` except variants of equal speed, with tables for the longest length."""
    measured_rows = {}
    for name, row in protocols.timed_rows(protocol).items():
        if name not in LEFT_OUT and not name.endswith("packed"):
            longest = {option: LENGTHS[-1] for option in row.train if option.endswith("-max-length")}
            measured_rows[name] = Row(row.title, {**row.train, **longest}, row.tasks)
    return measured_rows


def measured(protocol: str = protocols.LEAPFORMER) -> tuple[str, ...]:
    """The names of the rows that are measured by default."""
    return (BASELINE, MATERIALISED, *(name for name in rows(protocol) if name != BASELINE))


class System(NamedTuple):
    """A model and its training step."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer


def plan_of(name: str, protocol: str = protocols.LEAPFORMER) -> None:
    """Raise LeapformerError for an unknown row."""
    if name not in measured(protocol):
        raise LeapformerError(f"--mechanisms {name}: choose from {', '.join(measured(protocol))}")


def disagreement(name: str, protocol: str = protocols.LEAPFORMER) -> str | None:
    """Say how much `scan` of a row's mechanism differs from its reference; None if it does not."""
    plan, chosen = _mechanism(name, protocol)
    mechanism = build(plan, 16, 2, block="encoder-self", input_dim=32, **chosen).double().eval()
    inputs = [torch.randn(2, 2, 150, 16, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    grad, results = torch.randn(2, 2, 150, 16, dtype=torch.float64), []
    for execution in ("scan", "reference"):
        out = mechanism(*inputs, **measure.described(*inputs[:2]), execution=execution)
        grads = torch.autograd.grad(out, inputs, grad, allow_unused=True)
        results.append([out, *(x for x in grads if x is not None)])
    worst = max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in zip(*results, strict=True))
    return None if worst < PARITY else f"its training form differs from its reference by {worst:.1e}"


def cases(
    names: list[str], places: list[measure.Place], quick: bool, protocol: str = protocols.LEAPFORMER
) -> Iterator[measure.Case]:
    """Rows of `softmax`, `cosformer`, `memory` and, of LeaPformer's models and except in quick runs, `tasks`."""
    lengths, seconds = (QUICK_LENGTHS, SECONDS / 20) if quick else (LENGTHS, SECONDS)
    for place in places:
        for length in lengths:
            timed = partial(by_length, names, length, place, seconds, protocol)
            yield measure.Case(f"{place}: {length:,} tokens", timed)
            yield measure.case(f"{place}: memory, {length:,} tokens", "memory", _memory, names, length, place, protocol)
        for label, task in [] if quick or protocol == protocols.LUNA else TASKS.items():
            yield measure.case(f"{place}: {task}", "tasks", with_own_batch, names, label, task, place, seconds)


def by_length(names: list[str], length: int, place: measure.Place, seconds: float, protocol: str) -> Results:
    """Time a training step of every row, compared with softmax, and with cosFormer if it is a row."""
    times, case = _times(names, "text", BATCH, length, place, seconds, protocol), f"{length:,} tokens"
    return {
        "softmax": _compared(times, BASELINE, case, length, place),
        "cosformer": _compared(times, COSFORMER, case, length, place),
    }


def with_own_batch(
    names: list[str], label: str, task: str, place: measure.Place, seconds: float
) -> list[dict[str, Any]]:
    """Time a training step with the batch of the task's protocol, without rows that compute all weights.

    Those would not fit in memory.
    """
    settings = protocols.load("leapformer").tasks[task]
    length = {"pathfinder": 1024, "listops": 2000, "text": 4000}[task]
    plain = [name for name in names if name not in ALL_WEIGHTS]
    times = _times(plain, task, settings["batch-size"], length, place, seconds, protocols.LEAPFORMER)
    return _compared(times, BASELINE, f"{label} ({task})", length, place)


def _times(
    names: list[str], task: str, batch: int, length: int, place: measure.Place, seconds: float, protocol: str
) -> dict[str, float]:
    tokens, target = inputs(task, batch, length, place)
    calls: dict[str, Callable[[], measure.Seconds]] = {
        name: partial(measure.timed, place.device, train, system(name, task, place, protocol), tokens, target)
        for name in names
    }
    return {name: duration for name, (duration,) in measure.medians(calls, seconds).items()}


def _compared(times: dict[str, float], base: str, case: str, length: int, place: measure.Place) -> list[dict[str, Any]]:
    """Rows with milliseconds and the ratio to `base`; none if `base` was not measured."""
    names = [base, *(name for name in times if name != base)] if base in times else []
    return [
        {
            "device": str(place),
            "case": case,
            "length": length,
            "mechanism": name,
            "ms": times[name] * 1e3,
            "ratio": times[base] / times[name],
            "aim": _aim(name, base, length) if place.has_aims and "(" not in case else None,
        }
        for name in names
    ]


def _aim(name: str, base: str, length: int) -> float | None:
    if base == COSFORMER:
        return COSFORMER_AIMS.get(name)
    return AIMS.get(length) if name == LEAP else None


def _memory(names: list[str], length: int, place: measure.Place, protocol: str) -> list[dict[str, Any]]:
    """Measure peak MiB of a step; no rows if it is unknown or materialised softmax is not measured."""
    labels, aimed = {"device": str(place), "case": f"{length:,} tokens", "length": length}, length == LENGTHS[-1]
    return measure.peak_rows(
        names, MATERIALISED, lambda name: {**labels, "mechanism": name}, peak_of_a_step, length, str(place), protocol,
        aim=lambda name: MEMORY_AIM if name == LEAP and aimed and place.has_aims else None,
    )  # fmt: skip


def peak_of_a_step(name: str, length: int, place_name: str, protocol: str) -> int | None:
    """Peak bytes above model and batch; to be called in a fresh process."""
    torch.set_num_threads(1)
    place = measure.Place.parse(place_name)
    measured, peak = system(name, "text", place, protocol), None
    for size in (64, length):  # the first call loads libraries, which must not count
        tokens, target = inputs("text", BATCH, size, place)
        with measure.peak_growth(place.device) as growth:
            train(measured, tokens, target)
        peak = growth()
    return peak


def system(name: str, task: str, place: measure.Place, protocol: str = protocols.LEAPFORMER) -> System:
    """Build the model of a row for a task, and its optimizer."""
    row = _row(name, protocol)
    options = {"arch": protocols.load(protocol).tasks[task]["arch"], **row.train, **row.tasks.get(task, {})}
    options["attention-dropout"] = 0
    if task == "text":
        options["max-positions"] = LENGTHS[-1]
    model = model_of(options, task, [prepare.BLACK] if task == "pathfinder" else [])
    model = model.to(place.device, place.dtype).train()
    if name == MATERIALISED:
        for module in model.modules():
            if isinstance(module, MechanismAttention):
                vars(module.mechanism)["_in_segments"] = module.mechanism._reference  # of this instance alone
    return System(model, torch.optim.Adam(model.parameters(), 1e-4))


def inputs(task: str, batch: int, length: int, place: measure.Place) -> tuple[Tensor, Tensor]:
    """Random sequences without padding, and classes."""
    about = prepare.TASKS[task]
    tokens = torch.randint(1, 250 if about.vocabulary > 250 else about.vocabulary - 1, (batch, length))
    return tokens.to(place.device), torch.randint(0, about.classes, (batch,), device=place.device)


def train(measured: System, tokens: Tensor, target: Tensor) -> None:
    """Run a training step."""
    measured.optimizer.zero_grad()
    F.cross_entropy(measured.model([tokens]).float(), target).backward()
    measured.optimizer.step()


def _row(name: str, protocol: str) -> Row:
    return rows(protocol)[BASELINE if name == MATERIALISED else name]


def _mechanism(name: str, protocol: str = protocols.LEAPFORMER) -> tuple[str, dict[str, Any]]:
    """The mechanism of a row and its options, with sizes small enough for a test."""
    from ...attention import find

    options = {option.replace("-", "_"): value for option, value in _row(name, protocol).train.items()}
    plan = options.pop("encoder_self_attention")
    accepted = {option.name for option in find(plan).options}
    small = {"leap_factor": 4, "abc_slots": "8", "luna_length": 8}
    return plan, {key: small.get(key, value) for key, value in options.items() if key in accepted}
