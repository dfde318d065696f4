"""The checks of `gpu`: every mechanism, mask, precision and execution, decoding, synchronisation and memory.

The rule is FlashAttention's: the error of an execution against float64 is at most twice that of plain torch at the same
precision, and a floor. An error is relative to the largest number of its tensor (`errors`). Plain torch is the
quadratic reference. It computes in float32 whatever its inputs are, so its error says little about half precision;
where that is more, the error of plain torch is what becomes of the float64 result when queries, keys, values and the
gradient of the output change by up to one unit in their last place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attention import CAUSAL, Mechanism
from ..attention.ops import dispatch
from . import measure
from .gpu_cases import DTYPES, KINDS, NAMES, Block, Row, Sizes, Task, inputs, make, one_line, serves

TIMES_PLAIN = 2.0
PARAMETER = "d "  # before the name of one whose gradient it is
CHANGES = 3  # random changes of the inputs
# Beside twice the error of plain torch: some units in the last place, and for float32 a sum over some hundred tokens.
FLOORS = {torch.float32: 1e-5, torch.bfloat16: 2**-5, torch.float16: 2**-7}
NO_PAIRS = {"pairs": 0, "pairs_per_token": 0}
# execution, and bounds that make the dispatch take one way
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "scan": ("scan", {}),
    "scan, chunks kept": ("scan", {**NO_PAIRS, "kept_tokens": 10**9, "kept_slot_tokens": 10**9}),
    "scan, segments again": (
        "scan",
        {**NO_PAIRS, "kept_tokens": 0, "kept_slot_tokens": 0, "segment_tokens": 256, "least_segment": 1},
    ),
}
STEPS = 20  # tokens decoded one by one
LINEAR_GROWTH = 1.3  # memory per token of the longer sequence over that of the shorter, at most


def tasks(device: torch.device, sizes: Sizes) -> list[Task]:
    """All checks; those that every other number hangs on come first."""
    found = [
        Task("agreement", f"{name}, {kind}", partial(agreement, name, kind, device, sizes), 0.5)
        for kind in KINDS
        for name in NAMES
        if serves(name, kind, sizes)
    ]
    causal = [name for name in NAMES if serves(name, "causal", sizes)]
    found += [Task("decoding", name, partial(decoding, name, device, sizes), 0.5) for name in causal]
    found += [Task("synchronisation", name, partial(synchronisation, name, device, sizes), 0.5) for name in causal]
    return found + [Task("memory", name, partial(memory, name, device, sizes), 1.0) for name in causal]


# ------------------------------------------------------------------------------------------------------------ agreement
def agreement(name: str, kind: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """Outputs and gradients of every execution and precision."""
    mechanism = make(name, sizes, device)
    exact_mechanism = deepcopy(mechanism).double()
    found: list[Row] = []
    for dtype in DTYPES:
        q, k, v = inputs(sizes, kind, sizes.tokens, 2, dtype, device)
        grad = torch.randn_like(q)
        exact_of = partial(_results, exact_mechanism, kind, "reference")
        exact = exact_of(*_doubles(q, k, v, grad))
        plain = _largest(errors(exact_of(*_doubles(q, k, v, grad, changed=True)), exact) for _ in range(CHANGES))
        case: Row = {"mechanism": name, "mask": kind, "dtype": _short(dtype), "execution": "reference"}
        try:
            reference = errors(_results(mechanism, kind, "reference", q, k, v, grad), exact)
            found.append({**case, **verdict(reference, plain, dtype)})
            plain = _largest((plain, reference))
        except Exception as error:
            found.append({**case, "ok": False, "failure": one_line(error)})
        for way, (execution, bounds) in WAYS.items():
            case["execution"] = way
            try:
                with dispatch.override(**bounds):
                    got = errors(_results(mechanism, kind, execution, q, k, v, grad), exact)
                found.append({**case, **verdict(got, plain, dtype)})
            except Exception as error:
                found.append({**case, "ok": False, "failure": one_line(error)})
    return found


def verdict(got: Mapping[str, float], plain: Mapping[str, float], dtype: torch.dtype) -> Row:
    """The tensor that is nearest to what is allowed, or furthest beyond it; a NaN is not allowed."""
    allowed = {name: TIMES_PLAIN * plain[name] + FLOORS[dtype] for name in got}
    excess = {name: got[name] / allowed[name] if got[name] == got[name] else float("inf") for name in got}
    name = max(excess, key=lambda name: excess[name])
    row = {"error": got[name], "plain": plain[name], "of": name, "allowed": allowed[name]}
    return {**row, "ok": excess[name] <= 1}


def errors(got: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest error of each tensor over its largest number; of parameters' gradients over the largest of them all.

    A parameter's gradient is a sum over tokens that may cancel.
    """
    sizes = {name: float(x.abs().max()) for name, x in exact.items()}
    of_parameters = max((size for name, size in sizes.items() if name.startswith(PARAMETER)), default=0.0)
    return {
        name: float((got[name].double() - x).abs().max())
        / max(of_parameters if name.startswith(PARAMETER) else sizes[name], 1e-30)
        for name, x in exact.items()
    }


def _largest(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The largest error of each tensor."""
    several = list(found)
    return {name: max(errors[name] for errors in several) for name in several[0]}


def _doubles(*tensors: Tensor, changed: bool = False) -> Iterator[Tensor]:
    """The same numbers in float64, or numbers up to one unit in the last place of the tensors beside them."""
    for x in tensors:
        double = x.detach().double()
        if changed:
            double = double * (1 + torch.finfo(x.dtype).eps * (2 * torch.rand_like(double) - 1))
        yield double.requires_grad_()


def _results(
    mechanism: Mechanism, kind: str, execution: Any, q: Tensor, k: Tensor, v: Tensor, grad: Tensor
) -> dict[str, Tensor]:
    """The output and all gradients by name."""
    parameters = dict(mechanism.named_parameters())
    out = mechanism(q, k, v, mask=KINDS[kind], execution=execution)
    wanted = {"dq": q, "dk": k, "dv": v, **{PARAMETER + name: x for name, x in parameters.items()}}
    grads = torch.autograd.grad(out, list(wanted.values()), grad, allow_unused=True)
    pairs = zip(wanted, grads, strict=True)
    return {"output": out.detach(), **{name: x for name, x in pairs if x is not None}}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------------------- decoding
@torch.no_grad()
def decoding(name: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """Token by token, by `scan` and by the fused step, against all tokens at once."""
    found: list[Row] = []
    block = Block(name, sizes, device)
    for dtype in DTYPES:
        case = {"mechanism": name, "mask": "causal", "dtype": _short(dtype)}
        try:
            block = block.to(dtype)
            x = torch.randn(3, STEPS, sizes.heads * sizes.dim, device=device, dtype=dtype)
            exact_of = deepcopy(block).double()
            exact, changed = (
                {"output": exact_of(*_doubles(x, changed=changed), "reference")} for changed in (False, True)
            )
            plain = _largest(errors(got, exact) for got in (changed, {"output": block(x, "scan")}))
        except Exception as error:
            found.append({**case, "execution": "scan of all tokens", "ok": False, "failure": one_line(error)})
            continue
        for way, run in {"scan of one token": _by_scan, "fused step": _by_step}.items():
            try:
                out = run(block, x)
                if out is not None:
                    found.append({**case, "execution": way, **verdict(errors({"output": out}, exact), plain, dtype)})
            except Exception as error:
                found.append({**case, "execution": way, "ok": False, "failure": one_line(error)})
    return found


def _by_scan(block: Block, x: Tensor) -> Tensor:
    state, outputs = block.empty(x), []
    for t in range(x.shape[1]):
        out, state = block.extend(x[:, t : t + 1], state, t)
        outputs.append(out)
    return torch.cat(outputs, 1)


def _by_step(block: Block, x: Tensor) -> Tensor | None:
    step, state = block.step(), block.empty(x)
    if step is None:
        return None
    return torch.stack([step(x[:, t].contiguous(), state, t + 1) for t in range(x.shape[1])], 1)


# ------------------------------------------------------------------------------------------------------ synchronisation
def synchronisation(name: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """Whether a scan with its gradients, or a step, waits for the GPU."""
    rows = []
    for what, run in _to_watch(name, device, sizes).items():
        case: Row = {"mechanism": name, "what": what}
        if device.type != "cuda":
            run()
            rows.append({**case, "ok": None, "note": "only on a GPU"})
            continue
        try:
            run()  # what torch does late, once
            with _no_synchronisation():
                run()
            rows.append({**case, "ok": True})
        except Exception as error:
            rows.append({**case, "ok": False, "failure": one_line(error)})
    return rows


def _to_watch(name: str, device: torch.device, sizes: Sizes) -> dict[str, Any]:
    block = Block(name, sizes, device)
    x = torch.randn(2, sizes.tokens, sizes.heads * sizes.dim, device=device)
    grad = torch.randn_like(x)

    def scan() -> None:
        with dispatch.override(**WAYS["scan, segments again"][1]):
            block(x, "scan").backward(grad)

    fused = block.step()  # what is prepared once may wait

    @torch.no_grad()
    def step() -> None:
        state = block.empty(x)
        for t in range(3):
            if fused is None:
                _, state = block.extend(x[:, t : t + 1], state, t)
            else:
                fused(x[:, t], state, t + 1)

    return {"scan, forward and backward": scan, "three steps": step}


@contextmanager
def _no_synchronisation() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# --------------------------------------------------------------------------------------------------------------- memory
def memory(name: str, device: torch.device, sizes: Sizes) -> list[Row]:
    """The peak of forward and backward over a short and a long causal sequence, bfloat16; on a CPU not judged."""
    mechanism, peaks = make(name, sizes, device), []
    for tokens in sizes.memory:
        q, k, v = inputs(sizes, "causal", tokens, 1, torch.bfloat16, device)
        with measure.peak_growth(device) as growth:
            mechanism(q, k, v, mask=CAUSAL, execution="auto" if name == "softmax" else "scan").backward(q.detach())
        peaks.append(growth() or 0)
    return [memory_row(name, sizes.memory, peaks, judged=device.type == "cuda")]


def memory_row(name: str, tokens: tuple[int, int], peaks: list[int], judged: bool) -> Row:
    """Two peaks and whether memory per token stays the same."""
    growth = peaks[1] / tokens[1] / (peaks[0] / tokens[0]) if peaks[0] else None
    row: Row = {
        "mechanism": name,
        **{f"MiB at {n:,}": peak / measure.MIB for n, peak in zip(tokens, peaks, strict=True)},
    }
    row |= {"growth per token": growth, "allowed": LINEAR_GROWTH}
    if not judged or growth is None:
        return {**row, "ok": None, "note": "only on a GPU"}
    return {**row, "ok": growth <= LINEAR_GROWTH}
