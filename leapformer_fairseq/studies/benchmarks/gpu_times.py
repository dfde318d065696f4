"""Timings of the GPU benchmark: attention, training steps, decoding, and thresholds between implementations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention import LinearMechanism
from ...attention.ops import dispatch
from ...support.memory import MIB
from . import gpu_cases as cases
from . import measure, peers
from .gpu_cases import AGAIN, KEPT, KINDS, NO_PAIRS, SOFTMAX, Block, Row, Sizes, Task, one_line
from .measure import Place, Seconds

SDPA = "sdpa"
WARM_UP, MIN_ROUNDS, MAX_ROUNDS = 2, 3, 31
FLUSHED = 2**28  # bytes written before a call, several times a GPU's L2 cache
ALL_PAIRS: dict[str, Any] = {"pairs": 10**12, "pairs_per_token": 10**12}
# Linear attention with twice as many features as dimensions and with as many, a bounded memory, and a window of tokens;
# a decay for each feature, and the delta rule.
WIDE, NARROW, SLOTS, WINDOW = "leap", "relu", "abc-mlp", "abc-window"
GATED, DELTA = "gla", "delta"

Call = Callable[[], Seconds]
Attend = Callable[..., Tensor]


def tasks(device: torch.device, sizes: Sizes) -> list[Task]:
    """All plan, the most important first."""
    half, single = Place(device, torch.bfloat16), Place(device, torch.float32)
    served = {kind: [name for name in cases.serving(kind, sizes) if name != SOFTMAX] for kind in KINDS}
    causal = served["causal"]

    def attend(place: Place, kind: str, lengths: tuple[int, ...]) -> list[Task]:
        runs = {f"{place}: {kind} {n:,}": partial(attention, place, kind, n, served[kind], sizes) for n in lengths}
        return [Task("attention", case, run, 5.0) for case, run in runs.items()]

    first, later = sizes.lengths[:4], sizes.lengths[4:]
    plan = attend(half, "causal", first)
    plan += [Task("training", f"{n:,}", partial(training, half, n, causal, sizes), 15.0) for n in sizes.train_lengths]
    plan += [
        Task("decoding step", f"batch {n}, {context:,} tokens", partial(decoding, half, n, context, causal, sizes), 5.0)
        for n in sizes.batches
        for context in sizes.contexts
    ]
    plan += attend(half, "bidirectional", first) + _sweeps(half, sizes) + attend(single, "causal", first)
    plan += attend(half, "wait-k", first[:2])
    plan.append(Task("fairseq", "a training step of whole language models", partial(with_fairseq, half, sizes), 30.0))
    if device.type == "cuda":
        plan += [Task("attention", f"fla {n:,}", partial(kernels, half, n, causal, sizes), 15.0) for n in first]
    for place in (half, single):
        plan += attend(place, "causal", later) + attend(place, "bidirectional", later)
    return plan + attend(single, "bidirectional", first)


# --------------------------------------------------------------------------------------------------------------- timing
def medians(calls: Mapping[str, Call], seconds: float) -> tuple[dict[str, Seconds], dict[str, str]]:
    """The median of each part of each call; calls take turns. Also one-line errors of the calls that failed."""
    samples: dict[str, list[Seconds]] = {name: [] for name in calls}
    failures: dict[str, str] = {}
    start, rounds = 0.0, -WARM_UP
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() < start + seconds):
        start = time.perf_counter() if rounds == 0 else start
        for name in [name for name in calls if name not in failures]:
            try:
                sample = calls[name]()
                samples[name] += [sample] if rounds >= 0 else []
            except Exception as error:
                failures[name] = one_line(error)
        rounds += 1
    kept = {name: samples[name] for name in calls if name not in failures}
    return {name: tuple(map(statistics.median, zip(*some, strict=True))) for name, some in kept.items()}, failures


def timed(device: torch.device, *parts: Callable[[], object]) -> Seconds:
    """Run parts one after the other and return the seconds from the start to the end of each.

    On a GPU by its own clock, with a cold cache; on a CPU, the CPU time of the thread.
    """
    if device.type != "cuda":
        ends = [measure.clock(device), *((part(), measure.clock(device))[1] for part in parts)]
        return tuple(end - ends[0] for end in ends[1:])
    _cache(device).zero_()
    start, *events = (torch.cuda.Event(enable_timing=True) for _ in (None, *parts))
    torch.cuda.synchronize(device)
    start.record()
    for part, event in zip(parts, events, strict=True):
        part()
        event.record()
    torch.cuda.synchronize(device)
    return tuple(start.elapsed_time(event) / 1e3 for event in events)


@cache
def _cache(device: torch.device) -> Tensor:
    return torch.empty(FLUSHED, dtype=torch.uint8, device=device)


def both(attend: Attend, inputs: tuple[Tensor, ...], parameters: list[nn.Parameter], grad: Tensor) -> Seconds:
    """Time the forward pass, and forward and backward pass together."""
    for x in (*inputs, *parameters):
        x.grad = None
    outputs: list[Tensor] = []
    return timed(grad.device, lambda: outputs.append(attend(*inputs)), lambda: outputs.pop().backward(grad))


def compared(labels: Row, calls: Mapping[str, Call], seconds: float, base: str, *parts: str) -> list[Row]:
    """A row for each call: milliseconds of each part, and the speed-up over `base`."""
    medians_of, failures = medians(calls, seconds)
    rows = []
    for name, times in medians_of.items():
        row = {**labels, "mechanism": name}
        for part, ours, theirs in zip(parts, times, medians_of.get(base, times), strict=True):
            row |= {f"{part}ms": ours * 1e3, f"{part}ratio": theirs / ours if base in medians_of else None}
        rows.append(row)
    return rows + _failed(labels, failures)


def _failed(labels: Row, failures: Mapping[str, str]) -> list[Row]:
    return [{**labels, "mechanism": name, "failure": failure} for name, failure in failures.items()]


def _with_speed(rows: list[Row], tokens: int) -> list[Row]:
    return [{**row, "tokens_per_second": tokens / row["ms"] * 1e3} if "ms" in row else row for row in rows]


def _peak(call: Callable[[], object], device: torch.device) -> float | None:
    """Peak MiB that a call adds; None on a CPU, where the resident set says too little."""
    if device.type != "cuda":
        return None
    with measure.peak_growth(device) as growth:
        call()
    return (growth() or 0) / MIB


# ------------------------------------------------------------------------------------------------------------ attention
def attention(place: Place, kind: str, length: int, names: list[str], sizes: Sizes) -> list[Row]:
    """Time forward pass, and forward and backward pass, of SDPA and mechanisms, in milliseconds."""
    mask, q_and_k = KINDS[kind], cases.lengths(kind, length)
    seen: Row = {"is_causal": kind == "causal"}
    if kind == "wait-k" and mask is not None:
        seen = {"attn_mask": mask.mask(*q_and_k, place.device)}
    ways: dict[str, Attend] = {SDPA: partial(F.scaled_dot_product_attention, **seen)}
    if kind != "wait-k" and place.device.type == "cuda" and place.dtype != torch.float32:
        ways["FlashAttention"] = partial(peers.flash, kind == "causal")
    ways |= {name: cases.make(name, sizes, place.device) for name in names}
    return _attention(place, kind, length, ways, sizes)


def kernels(place: Place, length: int, names: list[str], sizes: Sizes) -> list[Row]:
    """`attention` for our features with the kernels of flash-linear-attention, if it is installed."""
    kernel, failures = peers.linear_kernel(), dict[str, str]()
    labels: Row = {"device": str(place), "case": f"causal {length:,}"}
    if kernel is None:
        return [{**labels, "mechanism": "fla", "note": "flash-linear-attention is not installed"}]
    ways: dict[str, Attend] = {SDPA: partial(F.scaled_dot_product_attention, is_causal=True)}
    for name, mechanism in ((name, cases.make(name, sizes, place.device)) for name in names):
        # The kernels normalise by the features that they read.
        if isinstance(mechanism, LinearMechanism) and mechanism.capabilities.normalized:
            way = ways[f"{name} (fla)"] = partial(peers.by_kernel, kernel, mechanism)
            try:
                if not (error := peers.difference(mechanism, way, place)) < peers.TOLERANCE:
                    failures[f"{name} (fla)"] = f"differs from ours by {error:.1e}"
            except Exception as error:
                failures[f"{name} (fla)"] = one_line(error)
    right = {name: way for name, way in ways.items() if name not in failures}
    rows = _attention(place, "causal", length, right, sizes)
    return [row for row in rows if row["mechanism"] != SDPA] + _failed(labels, failures)


def _attention(place: Place, kind: str, length: int, ways: Mapping[str, Attend], sizes: Sizes) -> list[Row]:
    tensors = cases.inputs(sizes, kind, length, None, place.dtype, place.device)
    grad, calls = torch.randn_like(tensors[0]), dict[str, Call]()
    for name, way in ways.items():
        if isinstance(way, nn.Module):
            calls[name] = partial(
                both,
                partial(way, **measure.described(*tensors[:2]), mask=KINDS[kind]),
                tensors,
                list(way.parameters()),
                grad,
            )
        else:
            calls[name] = partial(both, way, tensors, [], grad)
    labels: Row = {"device": str(place), "case": f"{kind} {length:,}", "batch": len(grad)}
    return compared(labels, calls, sizes.seconds, SDPA, "forward_", "")


# ------------------------------------------------------------------------------------------------------------- training
class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, name: str, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        width = sizes.heads * sizes.dim
        self.norms = nn.ModuleList(nn.LayerNorm(width, device=device) for _ in range(2))
        self.attention = Block(name, sizes, device)
        inner, outer = nn.Linear(width, 4 * width, device=device), nn.Linear(4 * width, width, device=device)
        self.ffn = nn.Sequential(inner, nn.GELU(), outer)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        x = x + self.ffn(self.norms[1](x))
        return x


def training(place: Place, length: int, names: list[str], sizes: Sizes) -> list[Row]:
    """Time forward and backward pass and AdamW of a stack of layers, under bfloat16 autocast."""
    device, batch = place.device, max(1, sizes.batch_tokens // length)
    x = torch.randn(batch, length, sizes.heads * sizes.dim, device=device)
    calls, peaks, failures = dict[str, Call](), dict[str, Row](), dict[str, str]()
    for name in (SOFTMAX, *names):
        try:
            model = nn.Sequential(*(Layer(name, sizes, device) for _ in range(sizes.layers)))
            optimizer = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")
            step = partial(_train, model, optimizer, x)
            step()
            peaks[name], calls[name] = {"peak_mib": _peak(step, device)}, partial(timed, device, step)
        except Exception as error:
            failures[name] = one_line(error)
    labels: Row = {"device": str(place), "case": f"{length:,} tokens", "batch": batch}
    rows = compared(labels, calls, 2 * sizes.seconds, SOFTMAX, "")
    return _with_speed([{**row, **peaks[row["mechanism"]]} for row in rows], x.shape[:2].numel()) + _failed(
        labels, failures
    )


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(x.device.type, torch.bfloat16):
        out = model(x)
    out.float().square().mean().backward()
    optimizer.step()


# ------------------------------------------------------------------------------------------------------------- decoding
def _cached(block: Block, x: Tensor, context: int) -> Callable[[], object]:
    """The baseline: one more token over a preallocated KV cache, in as few operations as possible."""
    projections = block.q, block.k, block.v
    weight = torch.cat([layer.weight for layer in projections]).t().contiguous()
    bias, out_weight = torch.cat([layer.bias for layer in projections]), block.out.weight.t().contiguous()
    cache = torch.randn(2, len(x), block.heads, context + 1, x.shape[1] // block.heads, dtype=x.dtype, device=x.device)

    def step() -> Tensor:
        projected = torch.addmm(bias, x, weight).view(len(x), 3, block.heads, 1, -1)
        cache[:, :, :, -1:] = projected[:, 1:].transpose(0, 1)
        out = F.scaled_dot_product_attention(projected[:, 0], cache[0], cache[1])
        return torch.addmm(block.out.bias, out.flatten(1), out_weight)

    return step


@torch.no_grad()
def decoding(place: Place, batch: int, context: int, names: list[str], sizes: Sizes) -> list[Row]:
    """Time a step of one attention block with its projections, in milliseconds, eager and as a CUDA graph."""
    device, rows, steps = place.device, list[Row](), dict[str, Callable[[], object]]()
    x = torch.randn(batch, sizes.heads * sizes.dim, device=device, dtype=place.dtype)
    for form in ("eager", "graph") if device.type == "cuda" else ("eager",):
        labels: Row = {"device": str(place), "case": f"batch {batch}, {context:,} tokens, {form}", "batch": batch}
        calls, failures = dict[str, Call](), dict[str, str]()
        for name in (SDPA, *names):
            try:
                if form == "eager":
                    block = Block(SOFTMAX if name == SDPA else name, sizes, device).to(place.dtype)
                    steps[name] = (_cached if name == SDPA else _step)(block, x, context)
                calls[name] = partial(timed, device, steps[name] if form == "eager" else _graph(steps[name]))
            except Exception as error:
                failures[name] = one_line(error)
        rows += _with_speed(compared(labels, calls, sizes.seconds / 2, SDPA, ""), batch) + _failed(labels, failures)
    return rows


def _step(block: Block, x: Tensor, context: int) -> Callable[[], object]:
    """A step at position `context`; the state has read 16 tokens, since its size does not depend on their number."""
    state = block.empty(x.unsqueeze(1))
    some = torch.randn(len(x), 16, x.shape[1], device=x.device, dtype=x.dtype)
    _, state = block.extend(some, state, 0)
    step = block.step()
    if step is None:
        return lambda: block.extend(x.unsqueeze(1), state, context)
    return partial(step, x, state, context)


def _graph(step: Callable[[], object]) -> Callable[[], object]:
    """Capture a step as a CUDA graph, which is a single launch."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# --------------------------------------------------------------------------------------------------------------- bounds
def _sweeps(place: Place, sizes: Sizes) -> list[Task]:
    """A case per threshold, mechanism and length."""
    lengths = sorted(sizes.lengths)
    middle, long = lengths[len(lengths) // 2], lengths[-2]
    chunks = {str(n): {**NO_PAIRS, "chunk": n} for n in (32, 64, 128, 256)}
    keys = {str(n): {**NO_PAIRS, "chunk_keys": n} for n in (64, 128, 256, 512)}
    counts = (62_500, 250_000, 1_000_000)
    segments = {f"{n:,}": {**AGAIN, "segment_tokens": n, "segment_slot_tokens": n} for n in counts}
    turns = {"in turn": {**NO_PAIRS, "states_in_turn": 10**9}, "in groups": {**NO_PAIRS, "states_in_turn": 8}}
    waits = {str(x): {**NO_PAIRS, "may_synchronise": x} for x in (True, False)}
    windows = {str(n): {"window": n} for n in (64, 256, 1024)}
    again, pairs = {"kept": KEPT, "again": AGAIN}, {"all pairs": ALL_PAIRS, "states": NO_PAIRS}
    plan: list[tuple[str, str, str, int, Mapping[str, dict[str, Any]]]] = [
        *(("chunk", name, "causal", long, chunks) for name in (WIDE, SLOTS)),
        ("chunk", NARROW, "causal", middle, chunks),
        ("segment_tokens", WIDE, "causal", long, segments),
        ("segment_slot_tokens", SLOTS, "causal", long, segments),
        ("kept_numbers", WIDE, "causal", long, again),
        ("kept_slot_tokens", SLOTS, "causal", long, again),
        ("chunk_keys", WIDE, "wait-k", long, keys),
        *(("states_in_turn", name, "causal", long, turns) for name in (WIDE, GATED, DELTA)),
        ("may_synchronise", GATED, "causal", middle, waits),
        ("window", WINDOW, "causal", middle, windows),
    ]
    for bound, kind in (("pairs", "causal"), ("pairs_per_token", "bidirectional")):
        plan += [(bound, name, kind, n, pairs) for name in (WIDE, NARROW) for n in sizes.cross]
    return [
        Task("bounds", f"{bound}: {name}, {kind} {n:,}", partial(sweep, place, bound, name, kind, n, ways, sizes))
        for bound, name, kind, n, ways in plan
    ]


def sweep(
    place: Place, bound: str, name: str, kind: str, length: int, ways: Mapping[str, dict[str, Any]], sizes: Sizes
) -> list[Row]:
    """Time forward and backward pass under different values of a threshold, which may include the current one."""
    tensors = cases.inputs(sizes, kind, length, None, place.dtype, place.device)
    mechanism, grad = cases.make(name, sizes, place.device), torch.randn_like(tensors[0])
    attend, parameters = (
        partial(mechanism, **measure.described(*tensors[:2]), mask=KINDS[kind]),
        list(mechanism.parameters()),
    )

    def under(changes: dict[str, Any]) -> Seconds:
        with dispatch.override(**changes):
            return both(attend, tensors, parameters, grad)

    calls = {value: partial(under, changes) for value, changes in ways.items()}
    labels: Row = {"device": str(place), "bound": bound, "case": f"{name}, {kind} {length:,}", "length": length}
    labels["features"] = getattr(mechanism, "features", sizes.dim)
    labels["now"] = str(getattr(dispatch.bounds(place.device), bound))
    rows = compared(labels, calls, sizes.seconds / 2, "", "forward_", "")
    best = min((row["ms"] for row in rows if "ms" in row), default=0.0)
    for row in rows:
        value, row["mechanism"] = row["mechanism"], name
        row["value"] = value
        if "ms" in row:
            row |= {"fastest": row["ms"] == best, "peak_mib": _peak(calls[value], place.device)}
    return rows


# -------------------------------------------------------------------------------------------------------------- fairseq
def with_fairseq(place: Place, sizes: Sizes) -> list[Row]:
    """Time a training step of whole language models, compared with fairseq's if that is installed."""
    try:
        import fairseq  # noqa: F401
        import tqdm  # noqa: F401
    except ImportError as error:
        return [{"case": "a training step", "note": f"not measured: {error}"}]
    from . import train

    quick = sizes.layers < 4
    case = (train.QUICK_CASES if quick else train.CASES)[-1]
    return train.times(case, ["softmax", "leap"], place, 10 * sizes.seconds, quick)
