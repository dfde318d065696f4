"""One decoding step in few operations: what generation runs for every token and layer.

It is the same function as `update` and `attend` on one row. Queries, keys and values come out of one product, the state
is changed in place, and what does not depend on the row is prepared once. For linear mechanisms a channel of zero
weight and bias 1 per head makes the values [v, 1], and on a CPU all that follows the product is one call of C
(`native`), where it compiles.

Shapes: B rows, H heads, D head dimension, E value dimension, F features, N sides (1 for queries, 2 with keys).
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import native
from .forms import normalize
from .proportion import ProportionNetwork, right_angle
from .rotation import rotate

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "elu": lambda x: F.elu(x) + 1}


@dataclass(frozen=True)
class StepMap:
    """How a mechanism maps a row: an activation, then the cosine re-weighting or a rotation, if there is one.

    Proportions come from a network each for queries and keys, or are numbers, (B or 1,), for a position (from 1) in
    sequences of known lengths, (B,), or of unknown ones. A rotation is the cosine and sine for each leading pair of
    dimensions, (pairs, 2); the normalizer takes rows as they were before.
    """

    activation: Literal["relu", "elu"]
    networks: Sequence[ProportionNetwork] = ()
    proportion: Callable[[int, Tensor | None], Tensor] | None = None
    rotation: Callable[[int], Tensor] | None = None


class _Mapped(NamedTuple):
    """Features (B, N, H, F), and others for the normalizer where a mechanism has them."""

    x: Tensor
    norm: Tensor | None = None


class Projections(NamedTuple):
    """The projections of a block; cross-attention, whose keys are in the state, has no `k` and `v`."""

    q: nn.Linear
    out: nn.Linear
    k: nn.Linear | None = None
    v: nn.Linear | None = None


class Step(ABC):
    """The step of one attention block, self-attention or cross-attention.

    Holds copies of the projections' weights, transposed, which makes a product with few rows a quarter faster; so it
    serves as long as they do not change.
    """

    def __init__(self, heads: int, projections: Projections, ones: bool = False) -> None:
        q, out, k, v = projections
        self.heads, self.dim, self.sides = heads, q.out_features // heads, 1 if k is None else 2
        parts = [_affine(x) for x in (q, k) if x is not None]
        if v is not None:
            parts.append(_with_ones(*_affine(v), heads) if ones else _affine(v))
        self.weight = torch.cat([weight for weight, _ in parts]).t().contiguous()
        self.bias = torch.cat([bias for _, bias in parts])
        out_weight, self.out_bias = _affine(out)
        self.out_weight = out_weight.t().contiguous()

    @abstractmethod
    def extend(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        """Output (B, C) of rows x (B, C) at `position` (from 1) that see the state and themselves.

        Their keys and values are added to the state, in place. `lengths` (B,) are those of the sequences, if known.
        """

    @abstractmethod
    def attend(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        """Output (B, C) of rows x (B, C) at `position` that see the state of B sequences, or of B / n.

        Then n rows behind each other share one.
        """

    def sharing(self, rows: int, states: int) -> int:
        """How many rows behind each other share a state. Raises ValueError where they do not fit to the states."""
        if rows % states or (self.sides == 2 and rows != states):
            raise ValueError(
                f"{rows} rows for the state of {states} sequences; reorder the state when the batch changes"
            )
        return rows // states

    def project_more(self, weight: Tensor, bias: Tensor) -> None:
        """Let `project` also give weight x + bias, behind the rest."""
        self.weight = torch.cat([self.weight, weight.t().to(self.weight)], 1)
        self.bias = torch.cat([self.bias, bias.to(self.bias)])

    def project(self, x: Tensor) -> Tensor:
        """Queries, or queries, keys and values, of all heads behind each other."""
        return torch.addmm(self.bias, x, self.weight)

    def project_out(self, heads: Tensor) -> Tensor:
        """The block's output (B, C) of what the heads read, (B, H * E)."""
        return torch.addmm(self.out_bias, heads.to(self.out_bias.dtype), self.out_weight)


class LinearStep(Step):
    """The step of a mechanism with the state K^T [V, 1], `state.kv` (B, H, F, E + 1)."""

    def __init__(self, mapping: StepMap, heads: int, floor: float, projections: Projections) -> None:
        super().__init__(heads, projections, ones=True)
        self.mapping, self.floor = mapping, floor
        networks = mapping.networks[: self.sides]
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        self.proportions = _joined(networks, dtype) if networks else None
        self.right_angle = right_angle(dtype)
        self.shift = self.weight.new_tensor([0.0, -self.right_angle], dtype=dtype)  # cos(a - pi / 2) is sin(a)
        self.packed = [_packed(network) for network in networks]
        self.sizes: dict[tuple[int, ...], native.Sizes] = {}

    def extend(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        kv = state.kv
        projected = self.project(x).to(kv.dtype)
        heads = self._native(projected, kv, position, lengths)
        if heads is None:
            split = 2 * self.heads * self.dim
            mapped = self._map(projected[:, :split], position, lengths)
            values = projected[:, split:].view(len(x), self.heads, 1, -1)
            if mapped.norm is None:
                kv.addcmul_(mapped.x[:, 1].unsqueeze(-1), values)
            else:
                kv[..., :-1].addcmul_(mapped.x[:, 1].unsqueeze(-1), values[..., :-1])
                kv[..., -1].add_(mapped.norm[:, 1])
            heads = self._read(mapped, kv)
        return self.project_out(heads)

    def attend(self, x: Tensor, state: Any, position: int, lengths: Tensor | None = None) -> Tensor:
        kv = state.kv
        projected = self.project(x).to(kv.dtype)
        heads = self._native(projected, kv, position, lengths)
        return self.project_out(self._read(self._map(projected, position, lengths), kv) if heads is None else heads)

    def _map(self, rows: Tensor, position: int, lengths: Tensor | None) -> _Mapped:
        """Features of projected rows (B, N * H * D)."""
        x = _ACTIVATIONS[self.mapping.activation](rows).view(len(rows), self.sides, self.heads, self.dim)
        if self.mapping.rotation is not None:
            return _Mapped(rotate(x, self.mapping.rotation(position).to(x)), x)
        if self.proportions is not None:
            weights = torch.add(self.shift, self.proportions(x), alpha=self.right_angle).cos_()
            return _Mapped((x.unsqueeze(-2) * weights.unsqueeze(-1)).flatten(-2))
        if self.mapping.proportion is not None:
            angle = self.mapping.proportion(position, lengths).to(x)[:, None, None, None] * self.right_angle
            return _Mapped(torch.cat([x * angle.cos(), x * angle.sin()], -1))
        return _Mapped(x)

    def _read(self, mapped: _Mapped, kv: Tensor) -> Tensor:
        """Normalised sums (B, H * E) of the queries, the first of the sides."""

        def sums(rows: Tensor, kv: Tensor) -> Tensor:
            together = rows[:, 0].view(len(kv), -1, *rows.shape[2:]).transpose(1, 2)  # those that share a state
            return (together @ kv).transpose(1, 2)

        read = sums(mapped.x, kv)
        if mapped.norm is not None:
            read[..., -1:] = sums(mapped.norm, kv[..., -1:])
        return normalize(read, self.floor).reshape(len(mapped.x), -1)

    def _native(self, projected: Tensor, kv: Tensor, position: int, lengths: Tensor | None) -> Tensor | None:
        """What the heads read, (B, H * E), by the compiled step; None where that does not serve."""
        if kv.dtype != torch.float32 or not kv.is_cpu or (step := native.step()) is None:
            return None
        shape = (len(projected), *kv.shape)
        if shape not in self.sizes:
            self.sizes[shape] = self._native_sizes(*shape)
        sizes = self.sizes[shape]
        if max(sizes.dim, sizes.values) > native.MAX_DIM or not kv.is_contiguous():
            return None
        networks = [packed.numbers.data_ptr() for packed in self.packed] + [None, None]
        proportions, rotation = None, None
        if self.mapping.proportion is not None:
            proportions = self.mapping.proportion(position, lengths).float().expand(len(projected)).contiguous()
        if self.mapping.rotation is not None:
            rotation = self.mapping.rotation(position).float()
            sizes.pairs = len(rotation)
        out = projected.new_empty(len(projected), self.heads * (sizes.values - 1))
        step(
            ctypes.byref(sizes),
            *(projected.data_ptr(), projected.stride(0)),
            kv.data_ptr(),
            *networks[:2],
            *(None if table is None else table.data_ptr() for table in (proportions, rotation)),
            out.data_ptr(),
        )
        return out

    def _native_sizes(self, rows: int, states: int, heads: int, features: int, values: int) -> native.Sizes:
        packed = self.packed[0] if self.packed else None
        return native.Sizes(
            rows=rows,
            heads=heads,
            dim=self.dim,
            values=values,
            shared=self.sharing(rows, states),
            update=self.sides == 2,
            activation=self.mapping.activation == "elu",
            reweighted=features == 2 * self.dim,
            hidden=packed.hidden if packed else 0,
            network_stride=packed.stride if packed else 0,
            floor=self.floor,
        )


def _affine(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of a projection; a bias of zeros where it has none."""
    weight = linear.weight.detach()
    return weight, weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()


def _with_ones(weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The projection to values with one more channel per head that is always 1."""
    weight, bias = weight.unflatten(0, (heads, -1)), bias.unflatten(0, (heads, -1))
    weight = torch.cat([weight, weight.new_zeros(heads, 1, weight.shape[2])], 1)
    return weight.flatten(0, 1), torch.cat([bias, bias.new_ones(heads, 1)], 1).flatten()


def _joined(networks: Sequence[ProportionNetwork], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """One function for the proportions (B, N, H, 1) of all sides (B, N, H, D), by one product for each layer."""
    if not networks[0].shared:
        return lambda x: torch.stack([net(x[:, i].unsqueeze(2)) for i, net in enumerate(networks)], 1).squeeze(3)
    sides = len(networks)
    weights = list(zip(*([weight.detach() for weight in network.weights] for network in networks), strict=True))
    biases = list(zip(*([bias.detach().flatten() for bias in network.biases] for network in networks), strict=True))
    # Every row passes the first layer of every side; from there on each side keeps to itself.
    joint = [torch.cat(weights[0], 1).to(dtype), *(torch.block_diag(*layer).to(dtype) for layer in weights[1:])]
    offsets = [torch.cat(layer).to(dtype) for layer in biases]

    def proportions(x: Tensor) -> Tensor:
        rows = torch.addmm(offsets[0], x.reshape(-1, x.shape[-1]), joint[0])
        for weight, offset in zip(joint[1:], offsets[1:], strict=True):
            rows = torch.addmm(offset, rows.relu_(), weight)
        own = rows.sigmoid_().view(*x.shape[:3], sides).diagonal(0, 1, 3)  # of each side by its own network: (B, H, N)
        return own.transpose(1, 2).unsqueeze(-1)

    return proportions


@dataclass(frozen=True)
class _Packed:
    """A proportion network as step.c wants it: one row of numbers per head, or one for all."""

    numbers: Tensor
    hidden: int

    @property
    def stride(self) -> int:
        return self.numbers.shape[1] if len(self.numbers) > 1 else 0


def _packed(network: ProportionNetwork) -> _Packed:
    # (1 or heads, in, out) and (1 or heads, 1, out), layer after layer
    layers = [part.detach().float() for pair in zip(network.weights, network.biases, strict=True) for part in pair]
    rows = [part.reshape(1 if network.shared else len(part), -1) for part in layers]
    hidden = network.weights[0].shape[-1] if len(network.weights) > 1 else 0
    return _Packed(torch.cat(rows, 1).contiguous().cpu(), hidden)
