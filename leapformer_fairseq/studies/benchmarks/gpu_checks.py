"""The checks of `gpu`: every mechanism, mask, precision and execution, decoding, synchronisation and memory.

The rule is FlashAttention's: the error of an execution against float64 is at most twice that of plain torch at the same
precision, plus a floor. An error is relative to the largest number of its tensor (`errors`). Plain torch is the
quadratic reference. It computes in float32 for any inputs, so its error says little about half precision. The error of
plain torch is therefore at least the change of the float64 result when queries, keys, values and the gradient of the
output change by up to one unit in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...attention import CAUSAL, MECHANISMS, Mechanism, Step
from ...attention.ops import dispatch
from ...support.memory import MIB
from . import gpu_cases as cases
from . import measure
from .gpu_cases import AGAIN, KEPT, KINDS, SOFTMAX, Block, Row, Sizes, Task, one_line

Results = dict[str, Tensor]

TIMES_PLAIN = 2.0
PARAMETER = "d "  # prefix of a parameter's name: its gradient
CHANGES = 3  # random changes of the inputs
# Allowed in addition: some units in the last place, and for float32 the rounding of a sum over some hundred tokens.
FLOORS = {torch.float32: 1e-5, torch.bfloat16: 2**-5, torch.float16: 2**-7}
GROUPS = {**KEPT, "chunk": 32, "states_in_turn": 1}
SEGMENTS = {**AGAIN, "segment_tokens": 256, "least_segment": 1, "may_synchronise": False}
AUTOCAST = "auto, autocast"
# name -> execution, thresholds that force one implementation
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "reference": ("reference", {}),
    "auto": ("auto", {}),
    AUTOCAST: ("auto", {}),
    "scan": ("scan", {}),
    "scan, chunks kept": ("scan", KEPT),
    "scan, states in groups": ("scan", GROUPS),
    "scan, segments again": ("scan", SEGMENTS),
}
STEPS = 20  # tokens decoded one by one
LINEAR_GROWTH = 1.3  # memory per token of the longer sequence over that of the shorter, at most


def tasks(device: torch.device, sizes: Sizes) -> list[Task]:
    """All checks; agreement, on which all other results depend, comes first."""
    served = {kind: cases.serving(kind, sizes) for kind in KINDS}
    checks = [
        Task("agreement", f"{name}, {kind}", partial(agreement, name, kind, device, sizes), 0.5)
        for kind in KINDS
        for name in served[kind]
    ]
    causal = served["causal"]
    linear = [name for name in causal if name == SOFTMAX or MECHANISMS[name].capabilities.constant_state]
    sections = {
        "decoding": (decoding, causal),
        "synchronisation": (synchronisation, causal),
        "memory": (memory, linear),
    }
    for section, (check, names) in sections.items():
        checks += [Task(section, name, partial(check, name, device, sizes), 0.5) for name in names]
    return checks


# ------------------------------------------------------------------------------------------------------------ agreement
def agreement(name: str, kind: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """Check outputs and gradients of every execution and precision."""
    mechanism, rows = cases.make(name, sizes, device), list[Row]()
    exact_of = partial(_results, deepcopy(mechanism).double(), kind, "reference")
    for dtype in FLOORS:
        q, k, v = cases.inputs(sizes, kind, sizes.tokens, 2, dtype, device)
        tensors = q, k, v, torch.randn_like(q)
        exact = exact_of(*_doubles(*tensors))
        changed = [errors(exact_of(*_doubles(*tensors, changed=True)), exact) for _ in range(CHANGES)]
        ways = [way for way in WAYS if way != AUTOCAST or dtype != torch.float32]
        runs = {way: partial(_results, mechanism, kind, way, *tensors) for way in ways}
        rows += _judged({"mechanism": name, "mask": kind}, runs, exact, changed, dtype)
    return rows


def _judged(
    labels: Row,
    runs: Mapping[str, Callable[[], Results]],
    exact: Results,
    plain: list[dict[str, float]],
    dtype: torch.dtype,
) -> list[Row]:
    """A row for each execution; the reference comes first, and its errors count as plain ones for the others."""
    rows: list[Row] = []
    for execution, run in runs.items():
        row = {**labels, "dtype": str(dtype).removeprefix("torch."), "execution": execution}
        try:
            measured = errors(run(), exact)
            rows.append({**row, **verdict(measured, {name: max(x[name] for x in plain) for name in measured}, dtype)})
            plain = [*plain, measured] if execution == "reference" else plain
        except Exception as error:
            rows.append({**row, "ok": False, "failure": one_line(error)})
    return rows


def verdict(ours: Mapping[str, float], plain: Mapping[str, float], dtype: torch.dtype) -> Row:
    """Judge the tensor that is closest to its limit, or furthest beyond it; NaN is beyond any limit."""
    allowed = {name: TIMES_PLAIN * plain[name] + FLOORS[dtype] for name in ours}
    excess = {name: ours[name] / allowed[name] if ours[name] == ours[name] else float("inf") for name in ours}
    name = max(excess, key=lambda name: excess[name])
    row = {"error": ours[name], "plain": plain[name], "of": name, "allowed": allowed[name]}
    return {**row, "ok": excess[name] <= 1}


def errors(actual: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest error of each tensor, relative to its largest number.

    Gradients of parameters are relative to the largest one of all, since a sum over tokens may cancel.
    """
    sizes = {name: float(x.abs().max()) for name, x in exact.items()}
    of_parameters = max((size for name, size in sizes.items() if name.startswith(PARAMETER)), default=0.0)
    return {
        name: float((actual[name].double() - x).abs().max())
        / max(of_parameters if name.startswith(PARAMETER) else sizes[name], 1e-30)
        for name, x in exact.items()
    }


def _doubles(*tensors: Tensor, changed: bool = False) -> Iterator[Tensor]:
    """Convert tensors to float64, `changed` by up to one unit in the last place of their own precision if requested."""
    for x in tensors:
        double = x.detach().double()
        if changed:
            double = double * (1 + torch.finfo(x.dtype).eps * (2 * torch.rand_like(double) - 1))
        yield double.requires_grad_()


def _results(mechanism: Mechanism, kind: str, way: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Results:
    """The output and all gradients, by name."""
    wanted = {"dq": q, "dk": k, "dv": v, **{PARAMETER + name: x for name, x in mechanism.named_parameters()}}
    execution, changes = WAYS[way]
    with dispatch.override(**changes):
        with torch.autocast(q.device.type, q.dtype if way == AUTOCAST else None, enabled=way == AUTOCAST):
            out = mechanism(q, k, v, **measure.described(q, k), mask=KINDS[kind], execution=execution)
        grads = torch.autograd.grad(out, list(wanted.values()), grad, allow_unused=True)
    return {"output": out.detach()} | {name: x for name, x in zip(wanted, grads, strict=True) if x is not None}


# ------------------------------------------------------------------------------------------------------------- decoding
@torch.no_grad()
def decoding(name: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """Check a pass over all tokens, `scan` token by token, and the fused step against the reference."""
    block, rows = Block(name, sizes, device), list[Row]()
    for dtype in FLOORS:
        block = block.to(dtype)
        x = torch.randn(3, STEPS, sizes.heads * sizes.dim, device=device, dtype=dtype)
        step, exact_of = block.step(), deepcopy(block).double()
        runs: dict[str, Callable[[], Results]] = {
            "reference": partial(_at_once, block, "reference", x),
            "scan of all tokens": partial(_at_once, block, "scan", x),
            "scan of one token": partial(_token_by_token, block, None, x),
        }
        if step is not None:
            runs["fused step"] = partial(_token_by_token, block, step, x)
        exact, changed = ({"output": exact_of(*_doubles(x, changed=changed), "reference")} for changed in (False, True))
        rows += _judged({"mechanism": name, "mask": "causal"}, runs, exact, [errors(changed, exact)], dtype)
    return rows


def _at_once(block: Block, execution: str, x: Tensor) -> Results:
    return {"output": block(x, execution)}


def _token_by_token(block: Block, step: Step | None, x: Tensor) -> Results:
    """Outputs token by token: by the fused step, or by `scan` if there is none."""
    state, outputs = block.empty(x), []
    for t in range(x.shape[1]):
        if step is None:
            out, state = block.extend(x[:, t : t + 1], state, t)
        else:
            out = step(x[:, t].contiguous(), state, t + 1).unsqueeze(1)
        outputs.append(out)
    return {"output": torch.cat(outputs, 1)}


# ------------------------------------------------------------------------------------------------------ synchronisation
def synchronisation(name: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """Check that a scan with its gradients, and steps, do not synchronise with the GPU, unless they may look."""
    block = Block(name, sizes, device)
    x = torch.randn(2, sizes.tokens, sizes.heads * sizes.dim, device=device)
    grad = torch.randn_like(x)
    step = torch.no_grad()(partial(_token_by_token, block, block.step(), x[:, :3]))  # its preparation may wait

    def scan() -> None:
        with dispatch.override(**SEGMENTS):
            block(x, "scan").backward(grad)

    rows = []
    runs: dict[str, Callable[[], object]] = {"scan, forward and backward": scan, "three steps": step}
    for what, run in runs.items():
        row: Row = {"mechanism": name, "what": what}
        try:
            run()  # torch may synchronise when it initialises something
            if device.type == "cuda":
                with _no_synchronisation():
                    run()
            judged: Row = {"ok": True} if device.type == "cuda" else {"ok": None, "note": "only on a GPU"}
            rows.append({**row, **judged})
        except Exception as error:
            rows.append({**row, "ok": False, "failure": one_line(error)})
    return rows


@contextmanager
def _no_synchronisation() -> Iterator[None]:
    """Make every synchronisation with the GPU an error, in all threads."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# --------------------------------------------------------------------------------------------------------------- memory
def memory(name: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """Compare the peak memory of forward and backward pass of a short and a long causal sequence in bfloat16.

    Not judged on a CPU. Only of mechanisms with a constant state, and of softmax, whose kernels are linear in memory:
    entmax is quadratic.
    """
    mechanism, peaks = cases.make(name, sizes, device), []
    for tokens in (sizes.memory[0], *sizes.memory):  # a first time for memory that stays, such as cuBLAS's workspace
        q, k, v = cases.inputs(sizes, "causal", tokens, 1, torch.bfloat16, device)
        mechanism.zero_grad(set_to_none=True)
        with measure.peak_growth(device) as growth:
            mechanism(
                q, k, v, **measure.described(q, k), mask=CAUSAL, execution="auto" if name == SOFTMAX else "scan"
            ).backward(q.detach())
        peaks.append(growth() or 0)
    return [memory_row(name, sizes.memory, peaks[1:], judged=device.type == "cuda")]


def memory_row(name: str, tokens: tuple[int, int], peaks: list[int], judged: bool) -> Row:
    """The row for two peaks, in bytes, and whether memory per token is about constant."""
    growth = peaks[1] / tokens[1] / (peaks[0] / tokens[0]) if peaks[0] else None
    sizes = {f"MiB at {n:,}": peak / MIB for n, peak in zip(tokens, peaks, strict=True)}
    row: Row = {"mechanism": name, **sizes, "growth per token": growth, "allowed": LINEAR_GROWTH}
    if not judged or growth is None:
        return {**row, "ok": None, "note": "only on a GPU"}
    return {**row, "ok": growth <= LINEAR_GROWTH}
