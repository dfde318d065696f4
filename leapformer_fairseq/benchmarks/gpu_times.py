"""The times of `gpu`: attention, a training step, and decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import LinearMechanism
from . import gpu_bounds, measure, peers
from .gpu_calls import Call, both, medians, timed
from .gpu_cases import KINDS, MAIN, OTHERS, Block, Row, Sizes, Task, inputs, make, one_line, serves
from .measure import Place

SDPA = "sdpa"
KERNELS = ("leap", "relu")  # whose features are given to the kernels of flash-linear-attention
TRAINED = ("softmax", "leap", "relu", "abc-mlp", "luna")


def tasks(device: torch.device, sizes: Sizes) -> list[Task]:
    """What is asked first comes first."""
    half, single = Place(device, torch.bfloat16), Place(device, torch.float32)

    def attend(place: Place, kind: str, length: int, names: tuple[str, ...], section: str = "attention") -> Task:
        run = partial(attention, place, kind, length, names, sizes)
        return Task(section, f"{place}: {kind} {length:,}", run, 3.0)

    first, later = sizes.lengths[:4], sizes.lengths[4:]
    found = [attend(half, "causal", length, MAIN) for length in first]
    found += [Task("training", f"{n:,} tokens", partial(training, half, n, sizes), 8.0) for n in sizes.train_lengths]
    found += [
        Task("decoding step", f"batch {n}, {context:,} tokens", partial(decoding, half, n, context, sizes), 5.0)
        for n in sizes.batches
        for context in sizes.contexts
    ]
    found += [attend(half, "bidirectional", length, MAIN) for length in first]
    found += gpu_bounds.tasks(half, sizes)
    found += [attend(single, "causal", length, MAIN) for length in first]
    if device.type == "cuda":
        found += [
            Task("attention", f"{half}: fla {length:,}", partial(kernels, half, length, sizes), 15.0)
            for length in first
        ]
    found += [attend(half, "wait-k", length, MAIN) for length in first[:2]]
    found += [attend(half, "causal", length, MAIN) for length in later]
    found.append(Task("fairseq", "a training step of whole language models", partial(with_fairseq, half, sizes), 30.0))
    found += [attend(half, "causal", length, OTHERS) for length in first]
    found += [attend(half, "bidirectional", length, MAIN) for length in later]
    found += [attend(single, "causal", length, MAIN) for length in later]
    return found + [attend(single, "bidirectional", length, MAIN) for length in sizes.lengths]


# ------------------------------------------------------------------------------------------------------------ attention
def attention(place: Place, kind: str, length: int, names: Sequence[str], sizes: Sizes) -> list[Row]:
    """Milliseconds of forward, and of forward and backward pass, of SDPA and of mechanisms."""
    device, mask = place.device, KINDS[kind]
    q, k, v = tensors = inputs(sizes, kind, length, max(1, sizes.batch_tokens // length), place.dtype, device)
    ways: dict[str, Callable[..., Tensor]] = {}
    if kind == "wait-k" and mask is not None:
        ways[SDPA] = partial(F.scaled_dot_product_attention, attn_mask=mask.mask(q.shape[2], k.shape[2], device))
    else:
        ways[SDPA] = partial(F.scaled_dot_product_attention, is_causal=kind == "causal")
        if device.type == "cuda" and place.dtype != torch.float32:
            ways["FlashAttention"] = partial(peers.flash, kind == "causal")
    for name in names:
        if serves(name, kind, sizes):
            ways[name] = partial(make(name, sizes, device), mask=mask)
    labels = {"device": str(place), "case": f"{kind} {length:,}", "batch": len(q)}
    return _attention_rows(labels, ways, tensors, sizes.seconds)


def kernels(place: Place, length: int, sizes: Sizes) -> list[Row]:
    """The same of our features with the kernels of flash-linear-attention, where it is installed."""
    batch = max(1, sizes.batch_tokens // length)
    labels: Row = {"device": str(place), "case": f"causal {length:,}", "batch": batch}
    kernel = peers.linear_kernel()
    if kernel is None:
        return [{**labels, "mechanism": "fla", "note": "flash-linear-attention is not installed"}]
    tensors = inputs(sizes, "causal", length, batch, place.dtype, place.device)
    ways: dict[str, Callable[..., Tensor]] = {SDPA: partial(F.scaled_dot_product_attention, is_causal=True)}
    failed: list[Row] = []
    for name in KERNELS:
        mechanism = make(name, sizes, place.device)
        assert isinstance(mechanism, LinearMechanism)
        way = partial(peers.by_kernel, kernel, mechanism)
        try:
            if (error := peers.difference(mechanism, way, place)) < peers.TOLERANCE:
                ways[f"{name} (fla)"] = way
            else:
                failed.append({**labels, "mechanism": f"{name} (fla)", "failure": f"differs from ours by {error:.1e}"})
        except Exception as error:
            failed.append({**labels, "mechanism": f"{name} (fla)", "failure": one_line(error)})
    return [row for row in _attention_rows(labels, ways, tensors, sizes.seconds) if row["mechanism"] != SDPA] + failed


def _attention_rows(
    labels: Row, ways: Mapping[str, Callable[..., Tensor]], tensors: tuple[Tensor, ...], seconds: float
) -> list[Row]:
    grad = torch.randn_like(tensors[0])
    found, failures = medians({name: partial(both, way, tensors, grad) for name, way in ways.items()}, seconds)
    base = found.get(SDPA)
    rows = [
        {
            **labels,
            "mechanism": name,
            "forward_ms": forward * 1e3,
            "forward_backward_ms": whole * 1e3,
            "ratio_forward": base[0] / forward if base else None,
            "ratio": base[1] / whole if base else None,
        }
        for name, (forward, whole) in found.items()
    ]
    return rows + [{**labels, "mechanism": name, "failure": failure} for name, failure in failures.items()]


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


def training(place: Place, length: int, sizes: Sizes) -> list[Row]:
    """Forward and backward pass and AdamW of a stack of layers, under bfloat16 autocast."""
    device, batch = place.device, max(1, sizes.batch_tokens // length)
    x = torch.randn(batch, length, sizes.heads * sizes.dim, device=device)
    labels = {"device": str(place), "case": f"{length:,} tokens", "batch": batch}
    calls: dict[str, Call] = {}
    failures: dict[str, str] = {}
    peaks: dict[str, float | None] = {}
    for name in TRAINED:
        try:
            model = nn.Sequential(*(Layer(name, sizes, device) for _ in range(sizes.layers)))
            optimizer = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")
            step = partial(_train, model, optimizer, x)
            step()
            with measure.peak_growth(device) as growth:
                step()
            peak = growth() if device.type == "cuda" else None
            calls[name], peaks[name] = partial(timed, device, step), None if peak is None else peak / measure.MIB
        except Exception as error:
            failures[name] = one_line(error)
    found, more = medians(calls, 2 * sizes.seconds)
    base = found.get("softmax")
    rows = [
        {
            **labels,
            "mechanism": name,
            "ms": seconds * 1e3,
            "tokens_per_second": batch * length / seconds,
            "ratio": base[0] / seconds if base else None,
            "peak_mib": peaks[name],
        }
        for name, (seconds,) in found.items()
    ]
    failed = {**failures, **more}
    return rows + [{**labels, "mechanism": name, "failure": failure} for name, failure in failed.items()]


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(x.device.type, torch.bfloat16):
        out = model(x)
    out.float().square().mean().backward()
    optimizer.step()


# ------------------------------------------------------------------------------------------------------------- decoding
class CachedStep:
    """One more token over keys and values in memory that was allocated before, in as few operations as there are."""

    def __init__(self, block: Block, batch: int, context: int) -> None:
        weight = block.q.weight
        self.heads = block.heads
        self.weight = torch.cat([layer.weight for layer in (block.q, block.k, block.v)]).t().contiguous()
        self.bias = torch.cat([layer.bias for layer in (block.q, block.k, block.v)])
        self.out_weight, self.out_bias = block.out.weight.t().contiguous(), block.out.bias
        shape = (2, batch, self.heads, context + 1, weight.shape[0] // self.heads)
        self.cache = torch.randn(shape, dtype=weight.dtype, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        projected = torch.addmm(self.bias, x, self.weight).view(len(x), 3, self.heads, 1, -1)
        self.cache[:, :, :, -1:] = projected[:, 1:].transpose(0, 1)
        out = F.scaled_dot_product_attention(projected[:, 0], self.cache[0], self.cache[1])
        return torch.addmm(self.out_bias, out.flatten(1), self.out_weight)


@torch.no_grad()
def decoding(place: Place, batch: int, context: int, sizes: Sizes) -> list[Row]:
    """Microseconds of a step of one attention block, its projections included, eager and as a CUDA graph."""
    device = place.device
    x = torch.randn(batch, sizes.heads * sizes.dim, device=device, dtype=place.dtype)
    labels = {"device": str(place), "case": f"batch {batch}, {context:,} tokens", "batch": batch}
    calls: dict[tuple[str, str], Call] = {}
    failures: dict[tuple[str, str], str] = {}
    cached = CachedStep(Block("softmax", sizes, device).to(place.dtype), batch, context)
    steps: dict[str, Callable[[], object]] = {SDPA: partial(cached, x)}
    for name in (*MAIN, *OTHERS):
        if not serves(name, "causal", sizes):
            continue
        try:
            steps[name] = _step(Block(name, sizes, device).to(place.dtype), x, context)
        except Exception as error:
            failures[name, "eager"] = one_line(error)
    for name, step in steps.items():
        calls[name, "eager"] = partial(timed, device, step)
        if device.type != "cuda":
            continue
        try:
            calls[name, "graph"] = partial(timed, device, _graph(step))
        except Exception as error:
            failures[name, "graph"] = one_line(error)
    found, more = medians(calls, sizes.seconds)
    rows = [
        {
            **labels,
            "mechanism": name,
            "form": form,
            "us": seconds * 1e6,
            "tokens_per_second": batch / seconds,
            "ratio": found[SDPA, form][0] / seconds if (SDPA, form) in found else None,
        }
        for (name, form), (seconds,) in found.items()
    ]
    failed = {**failures, **more}
    return rows + [{**labels, "mechanism": name, "form": form, "failure": x} for (name, form), x in failed.items()]


def _step(block: Block, x: Tensor, context: int) -> Callable[[], object]:
    """The step at a position; what is in the state, of constant size, is not so much."""
    state = block.empty(x.unsqueeze(1))
    some = torch.randn(len(x), 16, x.shape[1], device=x.device, dtype=x.dtype)
    _, state = block.extend(some, state, 0)
    step = block.step()
    if step is None:
        return lambda: block.extend(x.unsqueeze(1), state, context)
    return partial(step, x, state, context)


def _graph(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one launch."""
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


# -------------------------------------------------------------------------------------------------------------- fairseq
def with_fairseq(place: Place, sizes: Sizes) -> list[Row]:
    """A training step of whole language models beside fairseq's, where fairseq is installed."""
    try:
        import fairseq  # noqa: F401
        import tqdm  # noqa: F401
    except ImportError as error:
        return [{"case": "a training step", "note": f"not measured: {error}"}]
    from . import train

    quick = sizes.layers < 4
    case = (train.QUICK_CASES if quick else train.CASES)[-1]
    return train.times(case, ["softmax", "leap"], place, 10 * sizes.seconds, quick)
