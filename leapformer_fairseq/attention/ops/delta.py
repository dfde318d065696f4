"""The delta rule over blocks of keys: what is read of, and written to, a state that every key corrects.

A block of keys follows the state S. Its keys read with rows of K, write with rows of W, and have strengths b:

    u_j = b_j (v_j - K_j S - sum_{i < j} A_ji u_i),    O = Q S + P U,    S' = left S + W^T U

With T = (diag(1 / b) + A)^-1, where A counts below its diagonal, U = T V - T K S, which needs the state only at its
end: all but S' is computed for all blocks at once (Yang et al., 2024, arXiv:2406.06484, section 3). Decays are in Q, K,
W, A and P already.

Shapes: N = G n blocks, n after each other in each of G sequences, of C keys, R queries, F features, X value columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import linear
from .segments import first_order

LEAST = 1e-36  # squares of strengths, which a sigmoid reaches only where nothing is written


class Blocks(NamedTuple):
    """What blocks of keys and queries are made of, as above; only the first keys, those in W, change the state."""

    q: Tensor  # (N, R, F)
    scores: Tensor  # P, (N, R, C)
    reading: Tensor  # K, (N, C, F)
    writing: Tensor  # W, (N, C or fewer, F)
    v: Tensor  # (N, C, X)
    system: Tensor  # A, (N, C, C)
    strength: Tensor  # b, (N, C, 1)
    left: Tensor | None  # (N, 1 or F, 1); None: all


def inverse(system: Tensor, strength: Tensor) -> Tensor:
    """(diag(1 / b) + A)^-1 = (1 + diag(b) A)^-1 diag(b), of the part of A (.., C, C) that is below its diagonal.

    Strengths are (.., C, 1); one of 0, as of padding, gives a row and a column of zeros.
    """
    wanted = torch.diag_embed(strength.squeeze(-1))
    return torch.linalg.solve_triangular(system * strength, wanted, upper=False, unitriangular=True)


def delta_block(scores: Tensor, v: Tensor, system: Tensor, strength: Tensor) -> Tensor:
    """O (.., R, X) of one block that nothing precedes: P (.., R, C), V (.., C, X), A (.., C, C), b (.., C, 1)."""
    return _DeltaBlock.apply(scores, v, system, strength)


def delta_sums(blocks: Blocks, first: Tensor, after_last: bool = False) -> tuple[Tensor, Tensor]:
    """O (N, R, X), and the state (G, F, X) after all blocks that follow `first`, (G, F, X).

    With `after_last`, what is left of the state is left of what the block wrote, too: S' = left (S + W^T U).
    """
    return _DeltaSums.apply(first, after_last, *blocks)


class _DeltaSums(torch.autograd.Function):
    """`delta_sums`. Autograd left to itself would solve two systems more, and keep twice as much."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, after_last: bool, *given: Tensor) -> tuple[Tensor, Tensor]:
        q, scores, reading, writing, v, system, strength, left = given
        own = writing.shape[1]
        solved = inverse(system, strength)
        taken, update = solved @ reading, solved @ v
        transition, added = writing.mT @ taken[:, :own], writing.mT @ update[:, :own]
        transition.neg_().diagonal(dim1=1, dim2=2).add_(1 if left is None or after_last else left.squeeze(-1))
        if left is not None and after_last:
            transition, added = transition.mul_(left), added.mul_(left)
        before, after = linear.states(_by_group(transition, first), _by_group(added, first), first)
        before = before.flatten(0, 1)
        update.baddbmm_(taken, before, alpha=-1)
        ctx.after_last = after_last
        ctx.save_for_backward(q, scores, writing, strength, left, solved, taken, update, transition, before, after)
        return (q @ before).baddbmm_(scores, update), after

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor, grad_after: Tensor) -> tuple[Tensor | None, ...]:
        q, scores, writing, strength, left, solved, taken, update, transition, before, after = saved
        own = writing.shape[1]
        to_update = scores.mT @ grad
        to_before = (q.mT @ grad).baddbmm_(taken.mT, to_update, alpha=-1)
        sent, to_first = linear.states(
            _by_group(transition.mT, after), _by_group(to_before, after), grad_after, backward=True
        )
        to_left, before_blocks = None, _by_group(before, after)
        if left is not None and ctx.after_last:
            to_left = linear.gradient_of_left(sent, before_blocks, after, _by_group(left, after)).flatten(0, 1)
            sent = sent.mul_(_by_group(left, after))
        elif left is not None:
            to_left = (sent * before_blocks).sum(-1, keepdim=True).flatten(0, 1).sum_to_size(left.shape)
        sent = sent.flatten(0, 1)  # to the state after each block
        to_update[:, :own] += writing @ sent
        to_v, to_system, to_strength = _solved_back(solved, to_update, update, strength)
        found = Blocks(
            q=grad @ before.mT,
            scores=grad @ update.mT,
            reading=(to_v @ before.mT).neg_(),
            writing=update[:, :own] @ sent.mT,
            v=to_v,
            system=to_system,
            strength=to_strength,
            left=to_left,
        )
        return to_first, None, *found


class _DeltaBlock(torch.autograd.Function):
    """`delta_block`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, v: Tensor, system: Tensor, strength: Tensor) -> Tensor:
        solved = inverse(system, strength)
        update = solved @ v
        ctx.save_for_backward(scores, strength, solved, update)
        return scores @ update

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor, ...]:
        scores, strength, solved, update = saved
        return grad @ update.mT, *_solved_back(solved, scores.mT @ grad, update, strength)


def _solved_back(solved: Tensor, to_update: Tensor, update: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of V, A and b, given that of U = (diag(1 / b) + A)^-1 V."""
    to_v = solved.mT @ to_update
    to_system = to_v @ update.mT
    to_strength = to_system.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) / strength.square().clamp_min(LEAST)
    return to_v, to_system.tril_(-1).neg_(), to_strength


def _by_group(x: Tensor, of: Tensor) -> Tensor:
    """(N, .., ..) to (G, n, .., ..), for G as in `of`."""
    return x.unflatten(0, (len(of), -1))
