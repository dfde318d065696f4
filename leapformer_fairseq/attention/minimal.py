"""LeaPformer on one page: the same attention computed three ways. Read this first.

Softmax attention compares every query with every key. Linear attention replaces exp(q . k) by a dot product of
features, phi(q) . phi(k), so that a sum over keys can be kept instead of the keys (Katharopoulos et al., 2020,
arXiv:2006.16236):

    o_t = sum_{s <= t} (phi(q_t) . phi(k_s)) v_s / sum_{s <= t} phi(q_t) . phi(k_s)
        = phi(q_t) S_t / phi(q_t) z_t,    S_t = S_(t-1) + phi(k_t) v_t^T,    z_t = z_(t-1) + phi(k_t)

LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046, eq. 8-10) compares a query and a key by
relu(q) . relu(k) cos(pi/2 (p_q - p_k)), where a small network finds the proportion p in (0, 1) of each: a learned
"where in the sequence". Since cos(a - b) = cos a cos b + sin a sin b, this is a dot product of features as well.

`reference` compares all pairs, which is quadratic in the length. `scan` is linear: for training and prompts. `step`
takes one token and a state of constant size: for generation. They agree up to rounding, with each other and with the
mechanism "leap" of this package (`tests/attention/test_minimal.py`), which adds padding, wait-k and chunk masks,
memory-saving gradients and kernels.

Shapes: B batch, H heads, T tokens, D head dimension, E value dimension. A state is (B, H, 2 D, E + 1): S_t, and z_t in
the last column.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

FLOOR = 1e-4  # lower bound of the normalizer, so that a query that matches no key gives 0


class Proportion(nn.Module):
    """A network that maps tokens (B, H, T, D) to their proportions (B, H, T, 1); all heads share it."""

    def __init__(self, head_dim: int, factor: int = 4) -> None:
        super().__init__()
        hidden = head_dim // factor
        self.layers = nn.Sequential(nn.Linear(head_dim, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def features(x: Tensor, proportion: Proportion) -> Tensor:
    """phi(x) = [x cos(pi/2 p), x sin(pi/2 p)] of x after the ReLU, (B, H, T, 2 D)."""
    x = x.relu()
    angle = math.pi / 2 * proportion(x)
    return torch.cat([x * angle.cos(), x * angle.sin()], -1)


def with_ones(v: Tensor) -> Tensor:
    """Values with an additional column of ones, (B, H, T, E + 1), whose sum is the normalizer."""
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)


def normalized(sums: Tensor) -> Tensor:
    """Sums (B, H, T, E + 1) divided by their last column."""
    return sums[..., :-1] / sums[..., -1:].clamp_min(FLOOR)


def reference(fq: Tensor, fk: Tensor, v: Tensor) -> Tensor:
    """Causal attention (B, H, T, E) by comparing all pairs, given features fq of queries and fk of keys."""
    scores = (fq @ fk.mT).tril()
    return normalized(scores @ with_ones(v))


def scan(fq: Tensor, fk: Tensor, v: Tensor, state: Tensor | None = None, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """The same in linear time, chunk by chunk: all pairs inside a chunk, the state for all earlier tokens.

    Returns the output and the state after the last token, from which another `scan` or `step` continues.
    """
    if state is None:
        state = fk.new_zeros(*fk.shape[:2], fk.shape[-1], v.shape[-1] + 1)
    outputs = []
    for q, k, u in zip(fq.split(chunk, 2), fk.split(chunk, 2), with_ones(v).split(chunk, 2), strict=True):
        outputs.append(normalized(q @ state + (q @ k.mT).tril() @ u))
        state = state + k.mT @ u
    return torch.cat(outputs, 2), state


def step(fq: Tensor, fk: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token, T = 1: write it to the state, then read the state, which includes the token itself."""
    state = state + fk.mT @ with_ones(v)
    return normalized(fq @ state), state
