"""Entmax over selected blocks against entmax and softmax over all pairs: is the time really saved?

Method: one sequence of 2,048 tokens, 4 heads of 64 dimensions, blocks of 32 tokens, bidirectional, forward pass without
gradients, float32 unless the device says otherwise, one thread. On a CPU it is the CPU time of the thread, on a GPU
wall time. All systems take turns in one process; the median is reported.

"entmax, sorted" is 1.5-entmax over all pairs by the entmax package, which sorts every row; "entmax, top-k" is the same
with its partial sort (of 100 scores per row, more if that is not enough); "entmax" is ours, which does not sort;
"softmax" is torch's scaled dot-product attention. "random blocks" attends to as many blocks as the case says, drawn
beforehand: it has nothing to select. For the mechanisms, a case gives the number of selected blocks, without window and
global blocks; "in the pattern" has those, too, as in a model. Selection times, which are included in the ratios, are
also given separately. Projections and centroids are random: they cost the same as fitted ones.

A mechanism is not reported if its gathered blocks differ from its masked matrix in float64, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from entmax import entmax15
from torch import Tensor

from ...attention import MECHANISMS, TokenInfo, build, find
from ...attention.sparse.blocks import ATTENDED, Blocked, ProjectedBlocks, top
from ...attention.sparse.blocks import SIZE as SIZE_OPTION
from ...attention.sparse.predicted import CENTROIDS as CENTROIDS_OPTION
from . import measure
from .tables import Results, Shown

HEADS, HEAD_DIM, SIZE, CENTROIDS = 4, 64, 32, 8
SORTED, TOP_K, ENTMAX, SOFTMAX, RANDOM = "entmax, sorted", "entmax, top-k", "entmax", "softmax", "random blocks"
PATTERN = ", in the pattern"
SECONDS = 40.0  # per case
TITLE = "Sparse attention: speed"
TABLES = (
    Shown("Times as fast as entmax over all pairs, sorted", "sorted", "ratio", "ms", SORTED),
    Shown("Times as fast as softmax over all pairs", "softmax", "ratio", "ms", SOFTMAX),
)
MECHANISMS_MEASURED = tuple(sorted(name for name, cls in MECHANISMS.items() if issubclass(cls, Blocked)))
CASES: tuple[tuple[int, int], ...] = ((2048, 16), (2048, 4))  # tokens, blocks that a block attends to
QUICK_CASES = ((256, 4),)
# times as fast as entmax with 16 blocks of 64, and as softmax with 4, at least
AIMS = {(2048, 16): {RANDOM: 7.0, "others": 5.0}}
SOFTMAX_AIMS = {(2048, 4): {RANDOM: 2.0, "others": 1.5}}
PARITY = 1e-10

Call = Callable[[], measure.Seconds]


def disagreement(name: str) -> str | None:
    """Say how much gathered blocks differ from the masked matrix, or that there are no blocks; None if they agree."""
    if not issubclass(MECHANISMS[name], Blocked):
        return "it has no blocks; choose from: " + ", ".join(MECHANISMS_MEASURED)
    mechanism = make(name, 2, 16).double()
    inputs = [torch.randn(2, HEADS, 130, HEAD_DIM, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    keep = torch.ones(2, 130, dtype=torch.bool)
    keep[1, 100:] = False
    outputs = [mechanism(*inputs, key=TokenInfo.whole(130, keep), execution=way) for way in ("auto", "reference")]
    grad = torch.randn_like(outputs[0]) * keep[:, None, :, None]
    results = [[out * keep[:, None, :, None], *torch.autograd.grad(out, inputs, grad)] for out in outputs]
    worst = max(float((a - b).detach().abs().max()) for a, b in zip(*results, strict=True))
    return None if worst < PARITY else f"its blocks differ from the masked matrix by {worst:.1e}"


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows against each baseline, `sorted` and `softmax`. The mechanisms must have passed `disagreement`."""
    sizes, seconds = (QUICK_CASES, SECONDS / 20) if quick else (CASES, SECONDS)
    for place in places:
        for tokens, attended in sizes:
            about = f"{place}: {tokens:,} tokens, {attended} blocks"
            yield measure.Case(about, partial(times, names, tokens, attended, place, seconds))


@torch.no_grad()
def times(names: list[str], tokens: int, attended: int, place: measure.Place, seconds: float) -> Results:
    """Time a forward pass of every system, compared with each baseline."""
    seconds_of = measure.medians(systems(names, tokens, attended, place), seconds)

    def against(base: str, aims: dict[tuple[int, int], dict[str, float]]) -> list[dict[str, Any]]:
        wanted = aims.get((tokens, attended), {}) if place.has_aims else {}
        return rows(seconds_of, base, tokens, attended, wanted, place)

    return {"sorted": against(SORTED, AIMS), "softmax": against(SOFTMAX, SOFTMAX_AIMS)}


def systems(names: list[str], tokens: int, attended: int, place: measure.Place) -> dict[str, Call]:
    """Functions that time the systems, by name: seconds of attention, and of selection."""
    q, k, v = (torch.randn(1, HEADS, tokens, HEAD_DIM, device=place.device, dtype=place.dtype) for _ in range(3))
    real = torch.ones(1, tokens, dtype=torch.bool, device=place.device)
    blocks = -(-tokens // SIZE)
    full = build("entmax", HEAD_DIM, HEADS)
    plain = make(MECHANISMS_MEASURED[0], attended).to(place.device)
    drawn = top(torch.rand(1, HEADS, blocks, blocks, device=place.device), attended)
    calls: dict[str, Call] = {
        SOFTMAX: partial(_alone, partial(F.scaled_dot_product_attention, q, k, v), place),
        SORTED: partial(_alone, partial(sorted_entmax, q, k, v), place),
        TOP_K: partial(_alone, partial(sorted_entmax, q, k, v, highest=100), place),
        ENTMAX: partial(_alone, partial(full, q, k, v), place),
        RANDOM: partial(_alone, partial(plain.attend, q, k, v, drawn, real, ends=False), place),
    }
    for name in names:
        mechanism = make(name, attended).to(place.device)
        for label, around in ((name, False), (name + PATTERN, True)):
            calls[label] = partial(_selected, mechanism, (q, k, v), real, around, place)
    return calls


def make(name: str, attended: int, size: int = SIZE) -> Blocked:
    """Build a mechanism of the benchmark's size."""
    wanted = {SIZE_OPTION.name: size, ATTENDED.name: attended, CENTROIDS_OPTION.name: CENTROIDS}
    accepted = {option.name for option in find(name).options}
    options: dict[str, Any] = {option: value for option, value in wanted.items() if option in accepted}
    return cast(Blocked, build(name, HEAD_DIM, HEADS, **options))


def sorted_entmax(q: Tensor, k: Tensor, v: Tensor, highest: int | None = None) -> Tensor:
    """Entmax over all pairs by the entmax package, which sorts the `highest` scores of each row; None: all."""
    weights = entmax15(q.float() @ k.float().mT * HEAD_DIM**-0.5, k=highest)
    return cast(Tensor, weights.to(v.dtype) @ v)


def rows(
    times: dict[str, measure.Seconds],
    base: str,
    tokens: int,
    attended: int,
    aims: dict[str, float],
    place: measure.Place,
) -> list[dict[str, Any]]:
    """Rows with milliseconds, selection included, and the ratio to the baseline."""
    others = [name for name in times if name != base]
    return [
        {
            "device": str(place),
            "case": f"{attended} of {-(-tokens // SIZE)} blocks",
            "mechanism": name,
            "ms": sum(times[name]) * 1e3,
            "selection_ms": times[name][1] * 1e3,
            "ratio": sum(times[base]) / sum(times[name]),
            "aim": _aim(name, aims),
        }
        for name in [base, *others]
    ]


def _aim(name: str, aims: dict[str, float]) -> float | None:
    predicts = name in MECHANISMS and issubclass(MECHANISMS[name], ProjectedBlocks)
    return aims.get("others" if predicts else name)


def _alone(call: Callable[[], Tensor], place: measure.Place) -> measure.Seconds:
    start = measure.clock(place.device)
    call()
    return measure.clock(place.device) - start, 0.0


def _selected(
    mechanism: Blocked, qkv: tuple[Tensor, Tensor, Tensor], real: Tensor, around: bool, place: measure.Place
) -> measure.Seconds:
    start = measure.clock(place.device)
    graph = mechanism.select(qkv[0], qkv[1], real, around)
    middle = measure.clock(place.device)
    mechanism.attend(*qkv, graph, real, ends=around)
    return measure.clock(place.device) - middle, middle - start
