"""Speed and memory of every execution of every attention mechanism, compared with torch's softmax attention (SDPA).

Method: 8 heads of 32 dimensions, batch = max(1, 2048 / N) for the longer side N; float32 unless the device says
otherwise; one thread, unless the signature says so. A measurement is one forward pass and one backward pass with the
gradients of q, k, v and all parameters of the mechanism. With one thread of a CPU it is its CPU time, otherwise wall
time. All executions of all mechanisms and SDPA take turns in one process; the median is reported. Ratio = time of SDPA
/ time of ours. SDPA gets `is_causal` if that suffices, else a boolean mask. "auto" is the execution that the dispatch
chooses. On a GPU, if they are available, SDPA restricted to FlashAttention, and our features with the kernels of
flash-linear-attention ("fla"), are also measured.

"share" is the number of operations a second, forward and backward, as a part of that in a product of two matrices of
1,024 x 1,024. The operations are those that torch counts in our forms in PyTorch, and in SDPA, under a causal mask half
of them.

The "step" is one more token of causal self-attention with N tokens in the state, compared with a preallocated KV cache
(batch 1): the mechanism alone, in PyTorch operations. Models decode with a fused step, see the benchmark "decode".
Memory is the peak above the inputs of one forward and backward pass in a fresh process: growth of the resident set on a
CPU, of allocated memory on a GPU; ratio = memory of ours / memory of SDPA.

A mechanism is not reported if one of its executions differs from its reference in float64, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from ...attention import CAUSAL, MECHANISMS, Mechanism, PrefixMask, TokenInfo, build
from ...attention.ops import dispatch
from ...attention.sparse.pattern import Pattern
from . import measure, peers
from .tables import Shown

HEADS, HEAD_DIM = 8, 32
SIDE, PRODUCT = 1024, ("a product of matrices", "")
SDPA = "sdpa"
# required options, and sizes for the longest sequence
OPTIONS: dict[str, dict[str, Any]] = {
    "cosformer": {"cosformer_length": 4096},
    "abc-linformer": {"abc_max_length": 20_000},
    "abc-pool": {"abc_pool_size": 625},
    "abc-global": {"abc_global_every": 512},
}
# by default, without sparsity patterns, which `leapformer bench sparse` measures
MECHANISMS_MEASURED = tuple(
    sorted(name for name, cls in MECHANISMS.items() if name != "softmax" and not issubclass(cls, Pattern))
)
EXECUTIONS = ("auto", "reference", "scan")
# the reference is not timed above this many pairs of query and key per head
REFERENCE_PAIRS = 1024 * 1024
PARITY = 1e-10  # largest relative difference between forms in float64
SECONDS = 20.0  # per case
TITLE = "Attention: speed and memory"
TABLES = (
    Shown("Forward and backward: times as fast as SDPA", "times", "ratio", "forward_backward_ms", SDPA, ("auto", SDPA)),
    Shown("Operations a second, as a part of a product's", "times", "share", "share", SDPA, ("auto", SDPA)),
    Shown("Forward: times as fast as SDPA", "times", "ratio_forward", "forward_ms", SDPA, ("auto", SDPA)),
    Shown("One step of generation: times as fast as a KV cache", "steps", "ratio", "us", "softmax"),
    Shown("Peak memory, forward and backward: times that of SDPA", "memory", "ratio", "peak_mib", SDPA),
)


class Case(NamedTuple):
    """A kind of attention, "causal", "bidirectional" or "wait-k", and its size."""

    kind: str
    queries: int
    keys: int

    @property
    def mask(self) -> PrefixMask | None:
        return {"causal": CAUSAL, "bidirectional": None, "wait-k": PrefixMask(lagging=3, ratio=8)}[self.kind]

    @property
    def batch(self) -> int:
        return max(1, 2048 // max(self.queries, self.keys))

    def __str__(self) -> str:
        size = f"{self.queries:,}" if self.queries == self.keys else f"{self.queries:,}/{self.keys:,}"
        return f"{self.kind} {size}"


def _square(kind: str, *lengths: int) -> list[Case]:
    return [Case(kind, length, length) for length in lengths]


CASES = [
    *_square("causal", 8, 32, 128, 512, 2048, 8192, 16384),
    *_square("bidirectional", 8, 32, 128, 512, 2048, 8192),
    *(Case("wait-k", *sizes) for sizes in ((256, 2000), (512, 4000), (1024, 8000))),
]
QUICK_CASES = [*_square("causal", 128, 512), *_square("bidirectional", 128, 512), Case("wait-k", 64, 500)]
MEMORY_CASE, QUICK_MEMORY_CASE = Case("causal", 16384, 16384), Case("causal", 2048, 2048)
# SDPA's time over that of "auto", forward and backward, on one CPU thread, at least
AIMS: dict[str, dict[Case, float]] = {
    "leap": {
        Case("causal", 512, 512): 2.0,
        Case("causal", 2048, 2048): 6.0,
        Case("causal", 16384, 16384): 35.0,
        Case("bidirectional", 512, 512): 4.0,
        Case("bidirectional", 2048, 2048): 14.0,
        Case("bidirectional", 8192, 8192): 50.0,
        Case("wait-k", 256, 2000): 2.0,
        Case("wait-k", 512, 4000): 4.0,
        Case("wait-k", 1024, 8000): 8.0,
    },
    "delta": {
        Case("causal", 512, 512): 1.2,
        Case("causal", 2048, 2048): 3.0,
        Case("causal", 8192, 8192): 12.0,
    },
}
MEMORY_AIM_OF = "leap"
MEMORY_AIM = 1.2  # peak memory of leap over that of SDPA, at most


def cases(names: list[str], places: list[measure.Place], quick: bool, threads: int = 1) -> Iterator[measure.Case]:
    """Rows of `times`, `steps` and `memory`; with several threads of `times` only, without aims.

    The mechanisms must have passed `disagreement`.
    """
    seconds = SECONDS / 10 if quick else SECONDS
    memory_case = QUICK_MEMORY_CASE if quick else MEMORY_CASE
    for place in places:
        for case in QUICK_CASES if quick else CASES:
            yield measure.case(f"{place}: {case}", "times", times, case, names, place, seconds, threads == 1)
            if case.kind == "causal" and threads == 1:
                about = f"{place}: a step after {case.keys:,} keys"
                yield measure.case(about, "steps", steps, case.keys, names, place, seconds / 10)
        if threads == 1:
            yield measure.case(f"{place}: memory of {memory_case}", "memory", memory, memory_case, names, place)


def make(name: str, device: torch.device | str = "cpu") -> Mechanism:
    """Build a mechanism of the benchmark's size."""
    return build(name, HEAD_DIM, HEADS, **OPTIONS.get(name, {})).to(device)


def serving(names: list[str], case: Case) -> list[str]:
    """The mechanisms that support this kind of attention."""
    return [name for name in names if make(name).capabilities.unsupported_reason(None, case.mask) is None]


def disagreement(name: str) -> str | None:
    """Say which execution of the mechanism differs from its reference, and by how much; None if all agree."""
    mechanism, exact = make(name).double(), measure.Place(torch.device("cpu"), torch.float64)
    for case in (Case("causal", 150, 150), Case("bidirectional", 33, 47), Case("wait-k", 40, 300)):
        if not serving([name], case):
            continue
        q, k, v = _inputs(case, exact, batch=1)
        expected = _results(mechanism, q, k, v, case, "reference")
        # by a kernel, and in PyTorch, with intermediates of no token or of all tokens saved for the backward pass
        for kernels, kept in ((True, 0), (False, 0), (False, 10**9)):
            limits = {"segment_tokens": 100, "segment_slot_tokens": 100, "least_segment": 1}
            with dispatch.override(kernels=kernels, kept_numbers=kept, kept_slot_tokens=kept, **limits):
                error = _largest_error(_results(mechanism, q, k, v, case, "scan"), expected)
            if not error < PARITY:
                return f"its scan differs from the reference by {error:.1e} ({case})"
    if not serving([name], Case("causal", 20, 20)):
        return None
    q, k, v = _inputs(Case("causal", 20, 20), exact, batch=1)
    tokens = measure.described(q, k)["key"].without_lengths()
    with torch.no_grad():
        expected = [mechanism(q, k, v, query=tokens, key=tokens, mask=CAUSAL, execution="reference")]
        outputs, state = [], mechanism.init_state(1, HEAD_DIM, k, mask=CAUSAL)
        for t in range(20):
            here = tokens.narrow(t, t + 1)
            q_t, k_t, v_t = (x[:, :, t : t + 1] for x in (q, k, v))
            out, state = mechanism.scan_(state, q_t, k_t, v_t, here, here, CAUSAL)
            outputs.append(out)
        error = _largest_error([torch.cat(outputs, 2)], expected)
    return None if error < PARITY else f"token by token it differs from the reference by {error:.1e}"


def times(
    case: Case, names: list[str], place: measure.Place, seconds: float, aimed: bool = True
) -> list[dict[str, Any]]:
    """Time every execution of the mechanisms, in milliseconds; SDPA is in the first row."""
    inputs = _inputs(case, place)
    grad = torch.randn_like(inputs[0])
    mechanisms = {name: make(name, place.device) for name in serving(names, case)}
    tokens = measure.described(*inputs[:2])
    ways: dict[tuple[str, str], Callable[..., Tensor]] = {(SDPA, SDPA): _sdpa(case, place.device)}
    ways |= {(name, "auto"): way for name, way in peers.find(mechanisms, case.kind, place).items()}
    for name, mechanism in mechanisms.items():
        for execution in EXECUTIONS:
            if execution != "reference" or case.queries * case.keys <= REFERENCE_PAIRS:
                ways[name, execution] = partial(mechanism, **tokens, mask=case.mask, execution=execution)
    parameters = [parameter for mechanism in mechanisms.values() for parameter in mechanism.parameters()]
    calls = {label: partial(_time, way, inputs, parameters, grad) for label, way in ways.items()}
    operations = {label: _operations(call) for label, call in calls.items() if label[1] in ("auto", SDPA)}
    if case.kind == "causal":
        operations[SDPA, SDPA] /= 2
    medians = measure.medians({**calls, PRODUCT: partial(_product, place)}, seconds)
    base_forward, base = medians[SDPA, SDPA]
    (product,) = medians.pop(PRODUCT)
    return [
        {
            **_labels(case, place, name, form),
            "forward_ms": forward * 1e3,
            "forward_backward_ms": both * 1e3,
            "ratio_forward": base_forward / forward,
            "ratio": base / both,
            "share": operations[name, form] / both / (2 * SIDE**3 / product) if (name, form) in operations else None,
            "aim": AIMS.get(name, {}).get(case) if form == "auto" and aimed and place.has_aims else None,
        }
        for (name, form), (forward, both) in medians.items()
    ]


@torch.no_grad()
def steps(length: int, names: list[str], place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Time one more token after `length` ones, in microseconds; softmax with a KV cache is in the first row."""
    case = Case("causal", length, length)
    q, k, v = (x.detach() for x in _inputs(case, place, batch=1))
    device = place.device
    past = measure.described(q, k)["key"].without_lengths()
    assert past.inputs is not None
    next_one = TokenInfo(torch.tensor([[length + 1]], device=device), inputs=past.inputs[:, :1])
    calls = {}
    for name in ("softmax", *(name for name in serving(names, case) if name != "softmax")):
        mechanism = make(name, device)
        _, state = mechanism.scan_(mechanism.init_state(1, HEAD_DIM, k, mask=CAUSAL), k, k, v, past, past, CAUSAL)
        q_t, k_t, v_t = (x[:, :, :1] for x in (q, k, v))
        calls[name] = partial(_step, partial(mechanism.scan_, state, q_t, k_t, v_t, next_one, next_one), device)
    medians = measure.medians(calls, seconds)
    return [
        {**_labels(case, place, name, "step"), "us": step * 1e6, "ratio": medians["softmax"][0] / step}
        for name, (step,) in medians.items()
    ]


def memory(case: Case, names: list[str], place: measure.Place) -> list[dict[str, Any]]:
    """Measure peak MiB above the inputs, SDPA in the first row; no rows if it is unknown or too small to measure."""
    systems = (SDPA, *serving(names, case))
    aimed = case == MEMORY_CASE and place.has_aims
    return measure.peak_rows(
        systems, SDPA, lambda name: _labels(case, place, name, SDPA if name == SDPA else "auto"),
        peak_above_inputs, case, str(place), aim=lambda name: MEMORY_AIM if aimed and name == MEMORY_AIM_OF else None,
    )  # fmt: skip


def peak_above_inputs(name: str, case: Case, place_name: str) -> int | None:
    """Peak bytes above the inputs; to be called in a fresh process."""
    torch.set_num_threads(1)
    place = measure.Place.parse(place_name)
    peak = None
    for size in (*_square("causal", 64), case):  # the first call loads libraries, which must not count
        inputs = _inputs(size, place)
        tokens = {} if name == SDPA else measure.described(*inputs[:2])
        attend = _sdpa(size, place.device) if name == SDPA else partial(make(name, place.device), mask=size.mask)
        grad = torch.randn_like(inputs[0])
        with measure.peak_growth(place.device) as growth:
            attend(*inputs, **tokens).backward(grad)
        peak = growth()
    return peak


def _labels(case: Case, place: measure.Place, mechanism: str, form: str) -> dict[str, Any]:
    return {
        "device": str(place),
        "case": str(case),
        **case._asdict(),
        "batch": 1 if form == "step" else case.batch,
        "mechanism": mechanism,
        "form": form,
    }


def _inputs(case: Case, place: measure.Place, batch: int | None = None) -> tuple[Tensor, ...]:
    """Random q, k and v that require gradients."""
    shapes = ((batch or case.batch, HEADS, count, HEAD_DIM) for count in (case.queries, case.keys, case.keys))
    return tuple(torch.randn(shape, device=place.device, dtype=place.dtype, requires_grad=True) for shape in shapes)


def _sdpa(case: Case, device: torch.device) -> Callable[..., Tensor]:
    if case.kind == "wait-k" and case.mask:
        mask = case.mask.mask(case.queries, case.keys, device)
        return partial(F.scaled_dot_product_attention, attn_mask=mask)
    return partial(F.scaled_dot_product_attention, is_causal=case.kind == "causal")


def _time(
    attend: Callable[..., Tensor], inputs: tuple[Tensor, ...], parameters: Sequence[Tensor], grad: Tensor
) -> measure.Seconds:
    """Time the forward pass, and forward and backward pass together."""
    for tensor in (*inputs, *parameters):
        tensor.grad = None
    start = measure.clock(grad.device)
    out = attend(*inputs)
    middle = measure.clock(grad.device)
    out.backward(grad)
    return middle - start, measure.clock(grad.device) - start


def _operations(call: Callable[[], object]) -> float:
    """Operations of a call in PyTorch, as torch counts them."""

    def attention(q: Any, k: Any, v: Any, *unused: Any, **others: Any) -> int:
        return sdpa_flop_count(q, k, v)

    def attention_back(grad: Any, q: Any, k: Any, v: Any, *unused: Any, **others: Any) -> int:
        return sdpa_backward_flop_count(grad, q, k, v)

    fused = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_back,
    }
    whole = dispatch.override(kernels=False, kept_numbers=10**12, kept_slot_tokens=10**12)  # nothing is computed again
    with whole, FlopCounterMode(display=False, custom_mapping=fused) as counter:
        call()
    return float(counter.get_total_flops())


def _product(place: measure.Place) -> measure.Seconds:
    """Time a product of two matrices."""
    a = torch.randn(SIDE, SIDE, device=place.device, dtype=place.dtype)
    return measure.timed(place.device, torch.mm, a, a)


def _step(extend: Callable[[], object], device: torch.device) -> measure.Seconds:
    start = measure.clock(device)
    with torch.no_grad():
        extend()
    return (measure.clock(device) - start,)


def _results(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, case: Case, execution: Any) -> list[Tensor]:
    """The output and all gradients of its squared sum; gradients of unused inputs are zeros."""
    inputs = (q, k, v, *mechanism.parameters())
    out = mechanism(q, k, v, **measure.described(q, k), mask=case.mask, execution=execution)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs, materialize_grads=True)]


def _largest_error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest error relative to each tensor's largest number, or to 1 if that is larger; NaN if there is any."""
    errors = ((a - b).abs().max() / b.abs().max().clamp_min(1) for a, b in zip(actual, expected, strict=True))
    return float(torch.stack(list(errors)).max())
