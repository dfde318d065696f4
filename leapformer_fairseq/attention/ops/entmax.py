"""The threshold of alpha-entmax by Newton's method, without sorting.

With p = 1 / (alpha - 1) and z the scores times alpha - 1, less their highest, tau makes the p-norm of [z - tau]_+ one.
For alpha up to 2 that norm is convex and falls with tau, and at tau = -1 it is at least one: Newton's method from there
rises to the solution and never passes it. (Peters et al., 2019, arXiv:1905.05702, sort instead, for 1.5 and 2.)
"""

from __future__ import annotations

import torch
from torch import Tensor

ELEMENTS = 2**17  # of the rows that are worked on together: they stay in a processor's cache
STEPS = 16  # at most; 4 to 9 are usual, 13 the most seen in float64


def entmax_weights(scores: Tensor, alpha: Tensor | float) -> Tensor:
    """Weights (.., S) over the last dimension of scores that are at most 0, where alpha, up to 2, is a number or
    broadcasts."""
    if isinstance(alpha, float) and scores.is_cpu:
        rows = scores.flatten(0, -2)
        out = torch.empty_like(rows)
        size = max(1, ELEMENTS // max(1, rows.shape[1]))
        for start in range(0, len(rows), size):
            out[start : start + size] = _weights(rows[start : start + size] * (alpha - 1), 1 / (alpha - 1))
        return out.view_as(scores)
    return _weights(scores * (alpha - 1), 1 / (alpha - 1))


def _weights(z: Tensor, power: Tensor | float) -> Tensor:
    """[z - tau]_+ ** power, for z whose highest in each row is 0; 0 for rows that are below -1 throughout."""
    tau = torch.full_like(z[..., :1], -1)
    above = torch.empty_like(z)
    for _ in range(STEPS):
        torch.sub(z, tau, out=above).clamp_min_(0)
        step = _newton_step(above, power)
        tau += step
        if z.is_cpu and not bool((step > torch.finfo(z.dtype).eps).any()):  # on a GPU, looking would wait for it
            break
    torch.sub(z, tau, out=above).clamp_min_(0)
    weights = above.square_() if isinstance(power, float) and power == 2 else _powered(above, power)
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)


def _newton_step(x: Tensor, power: Tensor | float) -> Tensor:
    """By how much to raise tau so that the p-norm of x = [z - tau]_+ in each row becomes one, at most.

    The norm and its slope are at least one before the solution; below, where rounding leads, nothing is raised.
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
    """x ** power, 0 where x is 0 whatever the power."""
    return x.where(x > 0, 1) ** power * (x > 0)
