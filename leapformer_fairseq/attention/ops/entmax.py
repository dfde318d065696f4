"""Alpha-entmax, whose threshold is found by Newton's method, without sorting.

The weights are [z - tau]_+ ** p, with p = 1 / (alpha - 1) and z the scores times alpha - 1, whose maximum is 0. The
threshold tau makes the p-norm of [z - tau]_+ one. For alpha up to 2 this norm is convex and decreasing in tau, and at
least one at tau = -1, so Newton's method started there rises to the solution and never overshoots. (Peters et al.,
2019, arXiv:1905.05702, sort instead, for alpha 1.5 and 2.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import dispatch

ELEMENTS = 2**17  # most elements of the rows that are computed together, so that they stay in the CPU's cache
STEPS = 16  # at most; usually 4 to 9, at most 13 observed in float64


def entmax_weights(scores: Tensor, alpha: Tensor | float) -> Tensor:
    """Entmax over the last dimension of scores (.., S), which the caller has shifted so that the highest of a row is 0.

    alpha, above 1 and at most 2, is a number or a tensor that broadcasts. Rows without a visible key, all of whose
    scores are far below 0, give zeros.
    """
    if isinstance(alpha, float) and scores.is_cpu:
        rows = scores.flatten(0, -2)
        out = torch.empty_like(rows)
        size = max(1, ELEMENTS // max(1, rows.shape[1]))
        for start in range(0, len(rows), size):
            out[start : start + size] = _weights(rows[start : start + size] * (alpha - 1), 1 / (alpha - 1))
        return out.view_as(scores)
    return _weights(scores * (alpha - 1), 1 / (alpha - 1))


def _weights(z: Tensor, power: Tensor | float) -> Tensor:
    """[z - tau]_+ ** power for z (.., S) with maximum 0 in each row; rows in which all z are below -1 give zeros."""
    tau = torch.full_like(z[..., :1], -1)
    room = None if dispatch.is_traced() else torch.empty_like(z)  # autograd, which a graph may run under, allows none
    for _ in range(STEPS):
        step = _newton_step(torch.sub(z, tau, out=room).clamp_min_(0), power)
        tau = tau + step
        # On a GPU the host would have to wait, and a graph has no values.
        if z.is_cpu and not dispatch.is_traced() and not bool((step > torch.finfo(z.dtype).eps).any()):
            break
    above = torch.sub(z, tau, out=room).clamp_min_(0)
    weights = above.square() if isinstance(power, float) and power == 2 else _powered(above, power)
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)


def _newton_step(x: Tensor, power: Tensor | float) -> Tensor:
    """How much Newton's method raises tau, given x = [z - tau]_+, whose p-norm in each row is to become one.

    While tau is below the solution, norm and slope are at least one. If rounding raised it above, the step is 0.
    """
    if isinstance(power, float) and power == 2:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(1)
        slope = x.sum(-1, keepdim=True) / norm
    elif isinstance(power, float) and power == 1:
        norm, slope = x.sum(-1, keepdim=True).clamp_min_(1), (x > 0).sum(-1, keepdim=True)
    else:
        norm = (_powered(x, power).sum(-1, keepdim=True) ** (1 / power)).clamp_min(1)
        slope = _powered(x, power - 1).sum(-1, keepdim=True) * norm ** (1 - power)
    return (norm - 1) / slope.clamp_min(1)


def _powered(x: Tensor, power: Tensor | float) -> Tensor:
    """x ** power, but 0 where x is 0, for every power."""
    return x.where(x > 0, 1) ** power * (x > 0)
