"""Which implementation runs: thresholds ("bounds") for each kind of device.

Bounds are data. `override` and the variable LEAPFORMER_DISPATCH ("pairs=0,chunk=32") replace them in experiments and
tests; `leapformer doctor` prints those in force. For a new GPU: `bash scripts/gpu.sh` times most of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...support.errors import LeapformerError
from ..masks import Mask

VARIABLE = "LEAPFORMER_DISPATCH"


@dataclass(frozen=True)
class Bounds:
    """Thresholds between implementations on one kind of device. They change speed and memory, not results.

    Every head has T queries, S keys and F features. Limits in tokens count queries and keys over heads and batch,
    B H (T + S), unless stated otherwise.

    Comparing all pairs, or summing in a state:
    pairs:            with a mask, all pairs are compared if T S < pairs * F; otherwise queries are cut into chunks,
                      which read earlier keys from a state.
    pairs_per_token:  without a mask, all pairs are compared if T S < pairs_per_token * (T + S) * F; otherwise all keys
                      are summed in one state.

    What is saved for the backward pass:
    kept_numbers:     most numbers in queries and keys, B H (T + S) D, for which all intermediates are saved. Longer
                      inputs are cut into segments that the backward pass runs again, which takes about a tenth longer
                      and far less memory.
    kept_slot_tokens: the same limit, in tokens, for memories of slots, which save more per token.

    Segments:
    segment_tokens:   tokens of a segment that the backward pass runs again.
    segment_slot_tokens: the same for memories of slots.
    least_segment:    fewest tokens of a segment, of one head (T + S). In shorter segments the states before them would
                      take more memory than their tokens.

    Chunks inside a segment:
    chunk:            queries of a chunk under a causal mask (recurrent mechanisms: their `block_queries` instead). In
                      streaming encoders shorter chunks are compared pair by pair, several at once up to this many
                      queries, and a longer one is summed in a state.
    chunk_keys:       keys of a chunk under a wait-k mask that shows several more keys to each query.
    states_in_turn:   states between up to this many chunks are computed one after another, those between more chunks in
                      groups: more arithmetic in fewer calls, which suits a GPU. Cumulative sums of more than
                      chunk * states_in_turn tokens are computed in parts, too.
    window:           queries of a block of sliding-window attention, at least the length of the window.
    kernels:          whether kernels in C compute whole sequences, if they can (CPUs).
    may_synchronise:  whether the host may wait for numbers on the device to decide what to compute. If it may, blocks
                      with mild decays take fewer products.

    source:           where these numbers come from.
    """

    pairs: float = 200.0
    pairs_per_token: float = 0.35
    kept_numbers: int = 3_000_000
    kept_slot_tokens: int = 8192
    segment_tokens: int = 8192
    segment_slot_tokens: int = 16_384
    least_segment: int = 256
    chunk: int = 64
    chunk_keys: int = 128
    states_in_turn: int = 10**9
    window: int = 64
    kernels: bool = True
    may_synchronise: bool = True
    source: str = "measured on CPUs, head dimensions 32 to 128"


BOUNDS: dict[str, Bounds] = {
    "cpu": Bounds(),
    "cuda": Bounds(
        pairs=400,
        pairs_per_token=0.7,
        kept_numbers=64_000_000,
        kept_slot_tokens=1_000_000,
        segment_tokens=1_000_000,
        segment_slot_tokens=1_000_000,
        states_in_turn=8,
        window=256,
        source="measured on an H100, head dimension 64",
    ),
}
IN_GRAPH = 8  # states that a graph computes in turn
BOOLEANS = {"True": True, "1": True, "False": False, "0": False}
KINDS = {field.name: type(getattr(BOUNDS["cpu"], field.name)) for field in fields(Bounds)}
_overrides: dict[str, Any] = {}
_for_onnx = False


def bounds(device: torch.device) -> Bounds:
    """The bounds in force on a device. Other devices than CPUs and GPUs, such as `meta`, have those of a GPU."""
    defaults, text = BOUNDS.get(device.type, BOUNDS["cuda"]), os.environ.get(VARIABLE)
    if not text and not _overrides:
        return defaults
    return replace(defaults, **{**_from_environment(text or ""), **_overrides})


@contextmanager
def override(**changes: Any) -> Iterator[None]:
    """Replace bounds in this process, on every device, inside the `with` block."""
    before = dict(_overrides)
    _overrides.update(changes)
    try:
        yield
    finally:
        _overrides.clear()
        _overrides.update(before)


def as_now() -> ContextDecorator:
    """Decorator of a function that runs later, or again: with the bounds that are replaced now."""
    return override(**_overrides)


def _from_environment(text: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            changes[name] = BOOLEANS[value] if KINDS[name] is bool else KINDS[name](value)
        except (KeyError, ValueError) as error:
            raise LeapformerError(f"{VARIABLE} {part!r}: give name=number with a name of {', '.join(KINDS)}") from error
    return changes


def few_pairs(q: Tensor, k: Tensor, mask: Mask, features: int) -> bool:
    """Whether to compare all pairs of q (.., T, D) and k (.., S, D), rather than sum `features` features in states."""
    limits, queries, keys = bounds(q.device), q.shape[2], k.shape[2]
    pairs = limits.pairs_per_token * (queries + keys) if mask is None else limits.pairs
    return queries * keys < pairs * features


def chunk_of(device: torch.device, ratio: int) -> int:
    """Queries of a chunk if every query sees `ratio` more keys than the query before it."""
    limits = bounds(device)
    return limits.chunk if ratio == 1 else max(min(8, limits.chunk), limits.chunk_keys // ratio)


def states_in_turn(device: torch.device) -> int:
    """The most states that are computed one after another, and not in groups. A graph contains each of them."""
    limit = bounds(device).states_in_turn
    return min(limit, IN_GRAPH) if is_traced() else limit


def is_traced() -> bool:
    """Whether operations are recorded in a graph (torch.compile, torch.export, torch.jit.trace) or are transformed.

    There are no numbers to look at then, and no slices of a tensor to write into.
    """
    return torch.compiler.is_compiling() or torch._C._is_tracing() or _has_proxies() or is_transformed()


def _has_proxies() -> bool:
    """Whether `make_fx` records operations."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def is_one(count: int) -> bool:
    """Whether a size is 1, also in graphs, where all other sizes are symbols that must not be compared."""
    return type(count) is int and count == 1


def is_exported() -> bool:
    """Whether operations are recorded for a graph of ONNX: not by `torch.export` alone, whose graph PyTorch runs."""
    return torch.compiler.is_exporting() and (_for_onnx or torch.onnx.is_in_onnx_export())


@contextmanager
def for_onnx() -> Iterator[None]:
    """Inside the `with` block, `torch.export` records operations for a graph of ONNX."""
    global _for_onnx
    _for_onnx = True
    try:
        yield
    finally:
        _for_onnx = False


def is_transformed() -> bool:
    """Whether torch.func, vmap or forward-mode differentiation is active: our custom backward passes support none."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


def is_batched(x: Tensor) -> bool:
    """Whether x is each tensor of a batch at once: under vmap, or with `is_grads_batched` of torch.autograd.grad."""
    return torch._C._functorch.is_batchedtensor(x) or torch._C._functorch.is_legacy_batchedtensor(x)
