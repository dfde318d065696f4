"""The bounds between implementations, varied one at a time: which setting is the fastest on this GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attention.ops import dispatch
from . import measure
from .gpu_calls import Call, both, medians
from .gpu_cases import KINDS, Row, Sizes, Task, inputs, make
from .measure import Place, Seconds

NO_PAIRS = {"pairs": 0.0, "pairs_per_token": 0.0}
ALL_PAIRS = {"pairs": 1e12, "pairs_per_token": 1e12}
AGAIN = {"kept_tokens": 0, "kept_slot_tokens": 0}
KEPT = {"kept_tokens": 10**12, "kept_slot_tokens": 10**12}


def tasks(place: Place, sizes: Sizes) -> list[Task]:
    """One per bound, mechanism and length."""
    lengths = sorted(sizes.lengths)
    middle, long = lengths[len(lengths) // 2], lengths[-2]
    chunks = {str(n): {**NO_PAIRS, "chunk": n} for n in (32, 64, 128, 256)}
    keys = {str(n): {**NO_PAIRS, "chunk_keys": n} for n in (64, 128, 256, 512)}
    operands = {str(x): {**NO_PAIRS, "half_operands": x} for x in (True, False)}
    segments = {f"{n:,}": {**NO_PAIRS, **AGAIN, "segment_tokens": n} for n in (31_250, 62_500, 125_000, 250_000, 10**6)}
    again = {"kept": {**NO_PAIRS, **KEPT}, "again": {**NO_PAIRS, **AGAIN}}
    plan: list[tuple[str, str, str, int, dict[str, dict[str, Any]]]] = [
        ("chunk", "leap", "causal", long, chunks),
        ("half_operands", "leap", "causal", long, operands),
        ("chunk", "abc-mlp", "causal", long, chunks),
        ("chunk", "relu", "causal", middle, chunks),
        ("segment_tokens", "leap", "causal", long, segments),
        ("segment_tokens", "abc-mlp", "causal", long, segments),
        ("kept_tokens", "leap", "causal", long, again),
        ("kept_slot_tokens", "abc-mlp", "causal", long, again),
        ("chunk_keys", "leap", "wait-k", long, keys),
    ]
    found = [
        Task(
            "bounds",
            f"{bound}: {name}, {kind} {length:,}",
            partial(sweep, place, bound, name, kind, length, ways, sizes),
        )
        for bound, name, kind, length, ways in plan
    ]
    pairs = {"all pairs": ALL_PAIRS, "states": NO_PAIRS}
    found += [
        Task("bounds", f"{bound}: {name}, {kind} {n:,}", partial(sweep, place, bound, name, kind, n, pairs, sizes))
        for bound, kind in (("pairs", "causal"), ("pairs_per_token", "bidirectional"))
        for name in ("leap", "relu")
        for n in sizes.cross
    ]
    return found


def sweep(
    place: Place,
    bound: str,
    name: str,
    kind: str,
    length: int,
    ways: Mapping[str, Mapping[str, Any]],
    sizes: Sizes,
) -> list[Row]:
    """Forward and backward pass under different bounds, one of which may be that in force."""
    batch = max(1, sizes.batch_tokens // length)
    tensors = inputs(sizes, kind, length, batch, place.dtype, place.device)
    mechanism, grad = make(name, sizes, place.device), torch.randn_like(tensors[0])
    attend = partial(mechanism, mask=KINDS[kind])
    calls = {value: partial(_under, changes, attend, tensors, grad) for value, changes in ways.items()}
    found, failures = medians(calls, sizes.seconds / 2)
    best = min((times[1] for times in found.values()), default=0.0)
    now = getattr(dispatch.bounds(place.device), bound)
    labels = {
        "device": str(place),
        "bound": bound,
        "case": f"{name}, {kind} {length:,}",
        "mechanism": name,
        "length": length,
        "features": sizes.dim * getattr(mechanism, "features_per_dim", 1),
        "now": f"{now:,}" if isinstance(now, int) and not isinstance(now, bool) else str(now),
    }
    rows = [
        {
            **labels,
            "value": value,
            "forward_backward_ms": whole * 1e3,
            "peak_mib": _peak(calls[value], place.device),
            "fastest": whole == best,
        }
        for value, (_, whole) in found.items()
    ]
    return rows + [{**labels, "value": value, "failure": failure} for value, failure in failures.items()]


def _under(
    changes: Mapping[str, Any], attend: Callable[..., Tensor], tensors: tuple[Tensor, ...], grad: Tensor
) -> Seconds:
    with dispatch.override(**changes):
        return both(attend, tensors, grad)


def _peak(call: Call, device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    with measure.peak_growth(device) as growth:
        call()
    peak = growth()
    return None if peak is None else peak / measure.MIB


def crossings(rows: Sequence[Row]) -> list[Row]:
    """What `pairs` and `pairs_per_token` should be: the bound that the longest length at which all pairs win gives.

    Causal, all pairs are taken of N tokens up to N^2 = pairs * features; bidirectional, up to N = 2 * pairs_per_token *
    features.
    """
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row["bound"] in ("pairs", "pairs_per_token") and row.get("fastest"):
            key = row["device"], row["bound"], row["mechanism"]
            line = found.setdefault(
                key,
                dict(zip(("device", "bound", "mechanism"), key, strict=True))
                | {"now": row["now"], "all pairs win up to": 0, "suggested": 0.0},
            )
            n = row["length"]
            if row["value"] == "all pairs" and n > line["all pairs win up to"]:
                line["all pairs win up to"] = n
                line["suggested"] = n * n / row["features"] if row["bound"] == "pairs" else n / 2 / row["features"]
    return list(found.values())
