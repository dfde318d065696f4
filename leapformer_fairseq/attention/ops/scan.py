"""Sums over whole sequences by the kernel in C (`cpu/scan.c`), forward and backward.

It computes what `linear` and `recurrent` compute in PyTorch. But it reads queries, keys and values as the projections
left them, maps them to features itself, and saves for the backward pass nothing but its inputs, its output, the
normalizers and a state for each 1,024 tokens.

Shapes: B batch, H heads, T queries, S keys, D head dimension, F features, E value columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..masks import ChunkMask, Mask, PrefixMask
from . import cpu, dispatch
from .segments import first_order

ACTIVATIONS = ("none", "relu", "elu", "direction")  # numbered as in scan.c
SEGMENT = 1024  # tokens between saved states, as in scan.c
PAIRS = 64  # queries that are compared in pairs with the keys of their block
LITTLE = 40.0  # largest exponent of decays: (e^40)^2 times any feature is far below the largest float32
LONGEST = 128  # tokens, no more than features, that are all compared in pairs where all are seen
FEW = 1 << 17  # with fewer numbers in queries and keys, another thread does not pay


class Map(NamedTuple):
    """How the kernel maps queries and keys x (B, H, T, D) to features.

    activation: relu, elu + 1, direction (silu, then scaled to length one), or none.
    turns:      cosine and sine of every query and of every key, (B or 1, H or 1, T or S, 2): features are then
                [x cos, x sin].
    networks:   proportion networks of queries and of keys that compute these angles, packed, (1 or H, numbers).
    hidden:     the width of their hidden layer.
    raw:        they read x before the activation.
    query_scale: factor of queries, if they are directions.
    """

    activation: Literal["none", "relu", "elu", "direction"] = "none"
    turns: tuple[Tensor, Tensor] | None = None
    networks: tuple[Tensor, Tensor] | None = None
    hidden: int = 0
    raw: bool = False
    query_scale: float = 1.0

    @property
    def turned(self) -> bool:
        return self.turns is not None or self.networks is not None


IDENTITY = Map()


def runs(*tensors: Tensor) -> bool:
    """Whether the kernel is there and can read these tensors."""
    kind = tensors[0].dtype
    if kind not in (torch.float32, torch.float64) or any(x.dtype != kind or not _is_plain(x) for x in tensors):
        return False
    return not dispatch.is_traced() and dispatch.bounds(tensors[0].device).kernels and cpu.scan() is not None


def knows(mask: Mask, decay: Tensor | None) -> bool:
    """Whether the kernel can compute with these log-decays: with look-ahead, a chunk must not decay below e^-LITTLE."""
    if decay is None or not (isinstance(mask, ChunkMask) and mask.ahead):
        return True
    chunks = F.pad(decay.detach(), (0, 0, 0, -decay.shape[2] % mask.tokens)).unflatten(2, (-1, mask.tokens))
    return bool((chunks.sum(3) > -LITTLE).all())


def _is_plain(x: Tensor) -> bool:
    """Whether the numbers of a tensor are in memory of the CPU; those of subclasses, such as FakeTensor, are not."""
    return x.is_cpu and type(x).__torch_dispatch__ is Tensor.__torch_dispatch__


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    features: Map = IDENTITY,
    *,
    floor: float | None = None,
    decay: Tensor | None = None,
    strength: Tensor | None = None,
    keep: Tensor | None = None,
    first: Tensor | None = None,
    lasts: bool = True,
) -> tuple[Tensor, Tensor]:
    """What queries (B, H, T, D) read of keys (B, H, S, D) and values (B, H, S, E), (B, H, T, E), and the last state.

    floor: lower bound of the normalizer; None: sums are not divided by one.
    decay: log-decays <= 0 of the keys, (B, H, S, 1), that it `knows`; or (B, H, S, D) of each feature: then there are
           no turns and no normalizer.
    strength: of the delta rule, (B, H, S, 1); None: values are added. With it there are no turns and no normalizer.
    keep:  (B, S), False at keys that are padding, which may hold anything but a decay or a strength.
    first: the state before the first key, (B, H, F, E), with a column for the normalizer if there is one.
    lasts: False: the last state is empty, (B, H, 0, 0), which saves half of the time of texts of a few tokens.

    Every key must be seen by some query. The output has the memory layout of the queries.
    """
    if features.networks and features.hidden < 1:
        raise ValueError("the kernel does not know proportion networks without a hidden layer; give turns")
    turns, networks = features.turns or (None, None), features.networks or (None, None)
    by_feature = decay is not None and decay.shape[-1] > 1
    of_keys = (x if x is None or x.shape[-1] > 1 else x.squeeze(-1) for x in (decay, strength))
    inputs = [q, k, v, *turns, *networks, *of_keys, None if keep is None else keep.unsqueeze(1), first]
    about = _About(mask, features, floor, by_feature, lasts)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return _Scan.apply(about, *inputs)
    return about.forward(inputs, saves=False)[:2]  # type: ignore[return-value]


_SIDES = ("q", "k", "v", "query_turns", "key_turns", "query_network", "key_network")
INPUTS = (*_SIDES, "decay", "strength", "keep", "first")


class _About(NamedTuple):
    """What a call is about besides its tensors."""

    mask: Mask
    features: Map
    floor: float | None
    by_feature: bool  # decays
    lasts: bool

    def forward(self, inputs: Sequence[Tensor | None], saves: bool) -> list[Tensor]:
        """The output, the last state, the normalizers and, if it `saves` them, states for the backward pass."""
        tensors = _prepared(inputs, self._shapes(inputs))
        sizes = self._sizes(tensors)
        q, v = tensors["q"], tensors["v"]
        lead = q.shape[:2]
        state = (self._width(q), v.shape[3] + (self.floor is not None))
        out, last = _laid_out(q, v.shape[3]), q.new_empty(*lead, *(state if self.lasts else (0, 0)))
        normalizer = q.new_empty(*lead, q.shape[2] if sizes.normalizes else 0)
        states = [q.new_empty(*lead, _saved(sizes, "decay" in tensors), *state)] if saves else []
        results = [out, last, normalizer, *states]
        names = ("out", "last", "normalizer", "states")[: len(results)]  # one without numbers is NULL in scan.c
        _call(sizes, {**tensors, **dict(zip(names, results, strict=True))}, backward=False)
        return results

    def backward(
        self, inputs: Sequence[Tensor | None], results: Sequence[Tensor], to_out: Tensor | None, to_last: Tensor | None
    ) -> list[Tensor | None]:
        """The gradients of the inputs."""
        tensors = _prepared(inputs, self._shapes(inputs))
        sizes = self._sizes(tensors)
        out, _, normalizer, states = results
        to_out = torch.zeros_like(out) if to_out is None else _rows(to_out.to(out.dtype))
        gradients = {f"to_{name}": _laid_out(tensors[name], tensors[name].shape[3]) for name in ("q", "k", "v")}
        for name in ("query_network", "key_network", "decay", "strength", "first"):
            if name in tensors:
                gradients[f"to_{name}"] = out.new_empty(tensors[name].shape)
        given = {"out": out, "normalizer": normalizer, "states": states, "to_out": to_out}
        if to_last is not None:
            given["to_last"] = to_last.contiguous()
        _call(sizes, {**tensors, **given, **gradients}, backward=True)
        # Each head has its gradients, summed here where the input was broadcast: the same for any number of threads.
        pairs = zip(inputs, (gradients.get(f"to_{name}") for name in INPUTS), strict=True)
        return [None if x is None or to_x is None else to_x.sum_to_size(x.shape) for x, to_x in pairs]

    def _shapes(self, inputs: Sequence[Tensor | None]) -> dict[str, tuple[int, ...]]:
        """The shape of each input: the kernel reads as much, whatever is there."""
        q, k, v = inputs[:3]
        assert q is not None and k is not None and v is not None
        (batch, heads, queries, dim), keys, values = q.shape, k.shape[2], v.shape[3]
        network = (batch, heads, (dim + 2) * self.features.hidden + 1)
        return {
            "q": (batch, heads, queries, dim),
            "k": (batch, heads, keys, dim),
            "v": (batch, heads, keys, values),
            "query_turns": (batch, heads, queries, 2),
            "key_turns": (batch, heads, keys, 2),
            "query_network": network,
            "key_network": network,
            "decay": (batch, heads, keys, dim) if self.by_feature else (batch, heads, keys),
            "strength": (batch, heads, keys),
            "keep": (batch, heads, keys),
            "first": (batch, heads, self._width(q), values + (self.floor is not None)),
        }

    def _width(self, q: Tensor) -> int:
        return q.shape[3] * (1 + self.features.turned)

    def _sizes(self, tensors: dict[str, Tensor]) -> cpu.Scan:
        """The numbers that the kernel gets besides tensors."""
        mask, features = self.mask, self.features
        (batch, heads, queries, dim), (keys, values) = tensors["q"].shape, tensors["v"].shape[2:]
        shared, growing, unit, gain, ahead, block = keys, 0, 1, 1, 0, PAIRS
        if mask is None and queries and max(queries, keys) <= min(LONGEST, self._width(tensors["q"])):
            shared, growing, unit, gain, block = 0, queries, queries, keys, queries
        if isinstance(mask, PrefixMask):
            shared, growing, gain = min(mask.shared, keys), mask.growing(queries, keys), max(1, min(mask.ratio, keys))
            block = dispatch.chunk_of(tensors["q"].device, gain) if gain <= PAIRS else 0
        elif isinstance(mask, ChunkMask):
            unit = max(1, min(mask.tokens, queries))
            shared, growing, gain, ahead = 0, queries, unit, max(0, min(mask.ahead, unit - mask.size))
            block = unit if ahead else PAIRS // unit * unit
        few = batch * heads * (queries + keys) * dim < FEW
        return cpu.Scan(
            **dict(batch=batch, heads=heads, queries=queries, keys=keys, dim=dim, values=values),
            **dict(shared=shared, growing=growing, unit=unit, gain=gain, ahead=ahead, block=block),
            activation=ACTIVATIONS.index(features.activation),
            turned=features.turned,
            hidden=features.hidden,
            gates=dim if self.by_feature else 1,
            raw=features.raw,
            normalizes=self.floor is not None,
            threads=1 if few else torch.get_num_threads(),
            floor=self.floor or 0.0,
            query_scale=features.query_scale,
        )


class _Scan(torch.autograd.Function):
    """`scan` with gradients."""

    @staticmethod
    def forward(ctx: Any, about: _About, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.about, results = about, about.forward(inputs, saves=True)
        ctx.save_for_backward(*inputs, *results)
        ctx.set_materialize_grads(False)
        return results[0], results[1]

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, to_out: Tensor | None, to_last: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, results = saved[: len(INPUTS)], saved[len(INPUTS) :]
        return None, *ctx.about.backward(inputs, results, to_out, to_last)


def _saved(sizes: cpu.Scan, fades: bool) -> int:
    """How many states a forward pass saves at most: before each segment but the first, see `segment_of` in scan.c."""
    later = max(0, sizes.queries + sizes.keys - 1) // SEGMENT
    alone = sizes.shared > PAIRS or not sizes.growing or not sizes.block  # the first keys, in a segment of their own
    return later + (alone or (fades and sizes.shared + sizes.gain > 1))


def _prepared(inputs: Sequence[Tensor | None], shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The inputs that there are, by name, as the kernel reads them; of these shapes, which is an error for others."""
    tensors = {name: x.detach() for name, x in zip(INPUTS, inputs, strict=True) if x is not None}
    like = tensors["q"]
    for name, x in tensors.items():
        x = x.to(like.dtype)
        x = x if x.shape == shapes[name] else x.expand(shapes[name])
        tensors[name] = x.contiguous() if name == "first" else _rows(x)
    return tensors


def _rows(x: Tensor) -> Tensor:
    """x with contiguous rows: the kernel takes any other strides."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _laid_out(like: Tensor, width: int) -> Tensor:
    """An empty tensor (B, H, T, width) with the order of dimensions in memory of `like`."""
    strides = like.stride()
    order = sorted(range(3), key=lambda d: -strides[d])
    empty = like.new_empty(*(like.shape[d] for d in order), width)
    return empty.permute(*(order.index(d) for d in range(3)), 3)


def _call(sizes: cpu.Scan, tensors: dict[str, Tensor], backward: bool) -> None:
    library = cpu.load()  # a backward pass runs it even if kernels were turned off since
    assert library is not None
    tensors = {name: x.resolve_neg() for name, x in tensors.items()}
    given = sizes.packed({name: (x.data_ptr(), *x.stride()[:3]) for name, x in tensors.items()})
    double = tensors["q"].dtype == torch.float64
    run = library.leapformer_scan_double if double else library.leapformer_scan_float
    if run(given, backward):
        raise MemoryError("there is no memory for the buffers of attention; read shorter texts or smaller batches")
