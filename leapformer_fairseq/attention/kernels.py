"""Descriptions of mechanisms, from which `decoding` chooses the fused step of one token.

A mechanism returns one of these from `Mechanism.kernel`; it does not know how the step is computed.

Shapes: B batch entries, H heads, n slots, l packed vectors, D head dimension, C width of the block's input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from torch import Tensor, nn

# Weight (G, C) and bias (G,) of the logits of G gates.
Affine = tuple[Tensor, Tensor]


class Network(Protocol):
    """A proportion network as kernels need it: the weights and biases of its layers, of each head or `shared`."""

    weights: nn.ParameterList
    biases: nn.ParameterList
    shared: bool


class Projections(NamedTuple):
    """The projections of a block; `k` and `v` are None in cross-attention, whose keys are in the state already."""

    q: nn.Linear
    out: nn.Linear
    k: nn.Linear | None = None
    v: nn.Linear | None = None


@dataclass(frozen=True)
class LinearKernel:
    """A feature map: an activation, then the cosine reweighting or a rotation, if any; sums are normalized.

    floor:      the least value that sums are divided by.
    networks:   the proportion networks of queries and of keys, applied to activated vectors, or to projected ones if
                `raw`.
    proportion: the proportions (B or 1,) of a position (from 1) in sequences of lengths (B,), or of unknown ones.
    rotation:   the cosine and sine of each leading pair of dimensions, (pairs, 2), at a position. The normalizer uses
                the features before the rotation.
    gate:       the forget gate of each head, G = H.
    """

    activation: Literal["relu", "elu"]
    floor: float
    networks: Sequence[Network] = ()
    raw: bool = False
    proportion: Callable[[int, Tensor | None], Tensor] | None = None
    rotation: Callable[[int], Tensor] | None = None
    gate: Affine | None = None


FEATURES = ("plain", "direction", "forgotten", "unit")  # numbered as in recurrent_step.c


@dataclass(frozen=True)
class RecurrentKernel:
    """A recurrence without a normalizer, with log-decays g = -rate softplus(logit), read at unit RMS.

    features:    plain: q and k; direction: silu(q) and silu(k) at length one; unit: q and k at length one; forgotten:
                 silu(q), and for k the share that the gate forgets.
    rates:       (H,), the factor of each head's log-decays.
    gate:        of each head or each feature, G = H or H D; None: g = -rate for every token.
    floor:       a token keeps floor + (1 - floor) e^g of the state.
    strength:    weight (H, C) of the logits of the delta rule's strengths; None: values are added.
    most:        strengths are most sigmoid(logit).
    output:      weight (H D, C) of the output gate's logits; None: no output gate.
    swish:       whether the output gate is logit * sigmoid(logit), not sigmoid(logit).
    convolution: `ShortConvolution.step` of queries, keys and values, before all this.
    """

    features: Literal["plain", "direction", "forgotten", "unit"]
    rates: Tensor
    gate: Affine | None = None
    floor: float = 0.0
    strength: Tensor | None = None
    most: float = 1.0
    output: Tensor | None = None
    swish: bool = False
    convolution: Callable[[Tensor, Tensor], Tensor] | None = None


class Reading(NamedTuple):
    """How a memory of slots is read, given the mass of each slot.

    summed:     the mass is the sum of the control, (B, H, n), to which each token adds; otherwise it is given, (B, n).
    normalized: sums in the slots are divided by the mass, by at least `floor`.
    masked:     slots without mass are left out of the softmax.
    """

    summed: bool
    normalized: bool
    masked: bool
    floor: float = 1.0


@dataclass(frozen=True)
class SlotKernel:
    """A memory that is a sum over the keys (ABC), and its control. A kernel that only reads needs no control.

    positional: the control of a token depends on its position alone.
    weight:     W (H n, C) of the logits W x, if the control is a function of the block's input x.
    alpha:      that function: the control, given the logits.
    """

    reading: Reading
    positional: bool = False
    weight: Tensor | None = None
    alpha: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class PackedKernel:
    """Luna: keys are written into slots by their similarity to the packed sequence; unpacking only reads.

    alpha: how strongly tokens (B, H, 1, D), as projected to write, are written, given pseudo-queries (B, H, l, D).
    write: the projection that writes, if the mechanism has its own; otherwise that of the keys does.
    raw:   keys are the block's input as it is.
    """

    alpha: Callable[[Tensor, Tensor], Tensor]
    write: nn.Linear | None = None
    raw: bool = False


Kernel = LinearKernel | RecurrentKernel | SlotKernel | PackedKernel
