"""Which implementation runs: bounds between them by device, the precision of sums, and why.

Bounds are data. `override` and the variable LEAPFORMER_DISPATCH ("pairs=0,chunk=32") replace them, for experiments and
tests; `leapformer doctor` prints those in force.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..masks import ChunkMask, Mask, seen
from .segments import Plan, Segment, cut

VARIABLE = "LEAPFORMER_DISPATCH"


@dataclass(frozen=True)
class Bounds:
    """Where one implementation takes over from another on a kind of device.

    pairs:            up to so many pairs of a query and a key per feature, all pairs beat chunks.
    pairs_per_token:  bidirectional, up to so many pairs per token and feature, all pairs beat one state.
    kept_numbers:     up to so many numbers in queries and keys together, all is kept for the backward pass; beyond that
                      segments are computed again, which takes about a tenth longer and far less memory.
    kept_slot_tokens: the same in tokens, over heads and batch, for memories of slots, which keep more per token.
    segment_tokens:   tokens of a segment, queries and keys, over heads and batch, but of each sequence at least
                      `least_segment`, or the states before segments would be more than the tokens themselves;
                      `segment_slot_tokens` for memories of slots.
    kept_segment:     tokens of a segment of which all is kept, over heads and batch: its tensors fit the caches.
    chunk:            queries of a chunk, causal; `chunk_keys` is the number of keys under wait-k.
    chunk_tokens:     tokens of a chunk of streaming encoders' chunks; longer ones have a state each.
    states_in_turn:   up to so many states are computed one after another, more in groups, which takes fewer calls.
    window:           queries of a sliding window's block, at least.
    looks:            numbers on the device may decide what is computed, which waits for them.
    source:           where the numbers are from.
    """

    pairs: float = 200.0
    pairs_per_token: float = 0.35
    kept_numbers: int = 3_000_000
    kept_slot_tokens: int = 8192
    segment_tokens: int = 8192
    segment_slot_tokens: int = 16_384
    kept_segment: int = 32_768
    least_segment: int = 256
    chunk: int = 64
    chunk_keys: int = 128
    chunk_tokens: int = 64
    states_in_turn: int = 10**9
    window: int = 64
    looks: bool = True
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
        kept_segment=1_000_000,
        states_in_turn=8,
        window=256,
        source="measured on an H100, head dimension 64",
    ),
}
_overrides: ContextVar[dict[str, Any]] = ContextVar("bounds", default={})  # noqa: B039  (never changed in place)


def bounds(device: torch.device) -> Bounds:
    """The bounds in force on a device. What is neither CPU nor GPU, as `meta`, takes those of a GPU."""
    found = BOUNDS.get(device.type, BOUNDS["cuda"])
    given = os.environ.get(VARIABLE)
    changes = {**(_from_environment(given) if given else {}), **_overrides.get()}
    return replace(found, **changes) if changes else found


@contextmanager
def override(**changes: Any) -> Iterator[None]:
    """Other bounds in this thread while this holds, on every device."""
    token = _overrides.set({**_overrides.get(), **changes})
    try:
        yield
    finally:
        _overrides.reset(token)


@functools.cache
def _from_environment(text: str) -> dict[str, Any]:
    kinds = {field.name: type(getattr(BOUNDS["cpu"], field.name)) for field in fields(Bounds)}
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            found[name] = value == "True" if kinds[name] is bool else kinds[name](value)
        except (KeyError, ValueError) as error:
            raise LeapformerError(f"{VARIABLE} {part!r}: give name=number with a name of {', '.join(kinds)}") from error
    return found


def few_pairs(q: Tensor, k: Tensor, mask: Mask, features: int) -> bool:
    """Whether all pairs of queries and keys are less work than sums of so many features in states."""
    limits, queries, keys = bounds(q.device), q.shape[2], k.shape[2]
    pairs = limits.pairs_per_token * (queries + keys) if mask is None else limits.pairs
    return queries * keys < pairs * features


def chunk_of(device: torch.device, ratio: int) -> int:
    """Queries per chunk where every query gains `ratio` keys."""
    limits = bounds(device)
    return limits.chunk if ratio == 1 else max(min(8, limits.chunk), limits.chunk_keys // ratio)


def segments_of(q: Tensor, k: Tensor, mask: Mask, kept_tokens: float, size: int) -> Plan:
    """How to cut q (B, H, T, D) and k (B, H, S, D).

    Up to `kept_tokens` all is kept for the backward pass, else parts of about `size` tokens are computed again.
    """
    queries, keys, limits = q.shape[2], k.shape[2], bounds(q.device)
    tokens = q.shape[0] * q.shape[1] * (queries + keys)
    again = tokens > kept_tokens
    if not again and (mask is None or tokens <= limits.kept_segment):
        return Plan([Segment(0, queries, 0, seen(mask, queries, keys), mask)], again=False)
    size = size if again else segment_size(q, limits.kept_segment)
    unit = mask.tokens if isinstance(mask, ChunkMask) else chunk_of(q.device, mask.ratio if mask else 1)
    return Plan(cut(mask, queries, keys, size, unit), again)


def segment_size(q: Tensor, segment_tokens: int) -> int:
    """Tokens of each sequence of q (B, H, T, D) in segments of `segment_tokens` over heads and batch."""
    return max(bounds(q.device).least_segment, segment_tokens // max(1, q.shape[0] * q.shape[1]))


def is_transformed() -> bool:
    """Whether torch.func or vmap is at work, which know nothing of custom backward passes."""
    return bool(torch._C._are_functorch_transforms_active())
