"""Descriptions of mechanisms, from which fused computations are chosen: the step of one token, and whole sequences.

A mechanism returns one of them from `Mechanism.kernel`; it does not know how the step is computed.

Shapes: B batch entries, H heads, n slots, l packed vectors, D head dimension, C width of the block's input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor, nn

from .layers import ProportionNetwork

# Weight (G, C) and bias (G,) of the logits of G gates.
Affine = tuple[Tensor, Tensor]


class Projections(NamedTuple):
    """The projections of a block; `k` and `v` are None in cross-attention, whose keys are already in the state."""

    q: nn.Linear
    out: nn.Linear
    k: nn.Linear | None = None
    v: nn.Linear | None = None


@dataclass(frozen=True)
class LinearKernel:
    """A feature map: an activation, then cosine reweighting, a rotation or neither. Sums are divided by a normalizer.

    floor:      lower bound of the normalizer.
    networks:   proportion networks of queries and of keys. They read activated vectors, or, if `raw`, projected ones.
    proportion: maps positions (B or 1, T), from 1, and the lengths (B,) of the sequences, None if unknown, to
                proportions (B or 1, T).
    rotation:   maps a position to cosine and sine for each leading pair of dimensions, (pairs, 2). The normalizer uses
                the features before the rotation.
    gate:       the forget gate of each head, G = H.
    """

    activation: Literal["relu", "elu"]
    floor: float
    networks: Sequence[ProportionNetwork] = ()
    raw: bool = False
    proportion: Callable[[Tensor, Tensor | None], Tensor] | None = None
    rotation: Callable[[int], Tensor] | None = None
    gate: Affine | None = None


FEATURES = ("plain", "direction", "forgotten", "unit")  # numbered as in recurrent_step.c


@dataclass(frozen=True)
class RecurrentKernel:
    """A recurrence without a normalizer, with log-decays g = -rate softplus(logit); outputs are scaled to unit RMS.

    features:    plain: q and k; direction: silu(q) and silu(k), scaled to length one; unit: q and k, scaled to length
                 one; forgotten: silu(q), and for k the fraction that the gate forgets.
    rates:       (H,), the rate of each head.
    gate:        gates per head or per feature, G = H or H D; None: g = -rate for every token.
    floor:       each token multiplies the state by floor + (1 - floor) e^g.
    strength:    weight (H, C) of the logits of the delta rule's strengths; None: values are added.
    most:        strengths are most * sigmoid(logit).
    output:      weight (H D, C) of the output gate's logits; None: no output gate.
    swish:       whether the output gate is logit * sigmoid(logit) instead of sigmoid(logit).
    convolution: `ShortConvolution.step`, applied to queries, keys and values first.
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

    summed:     the mass is the running sum of the control, (B, H, n); otherwise it is given, (B, n).
    normalized: the sums in the slots are divided by the mass, clamped from below by `floor`.
    masked:     slots without mass are excluded from the softmax.
    """

    summed: bool
    normalized: bool
    masked: bool
    floor: float = 1.0


@dataclass(frozen=True)
class SlotKernel:
    """A memory of sums over the keys (ABC), and its control. Cross-attention only reads, and needs no control.

    positional: the control of a token depends only on its position.
    weight:     W (H n, C), if the control is computed from logits W x of the block's input x.
    alpha:      maps these logits to the control.
    """

    reading: Reading
    positional: bool = False
    weight: Tensor | None = None
    alpha: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class PackedKernel:
    """Luna: keys are written into slots by their similarity to the packed sequence. Cross-attention only reads.

    alpha: maps tokens (B, H, 1, D), projected for writing, and pseudo-queries (B, H, l, D) to how strongly each token
           is written into each slot, (B, H, 1, l).
    write: the projection for writing, if the mechanism has one; otherwise the key projection is used.
    raw:   keys are the block's input itself.
    """

    alpha: Callable[[Tensor, Tensor], Tensor]
    write: nn.Linear | None = None
    raw: bool = False


@dataclass(frozen=True)
class CachedKernel:
    """softmax(q . k / sqrt(D)) v over the keys and values of a cache, as PyTorch computes it."""


Kernel = LinearKernel | RecurrentKernel | SlotKernel | PackedKernel | CachedKernel
