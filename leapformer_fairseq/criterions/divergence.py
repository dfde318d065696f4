"""The Kullback-Leibler divergence of two predictions, whose only large intermediate is the gradient.

Autograd would keep several tensors of the size of the logits, which for a large vocabulary dominate the memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_A_TIME = 2**20  # logits per step, few enough for a processor's cache


def divergence(teacher: Tensor, student: Tensor, real: Tensor) -> Tensor:
    """The sum of KL(teacher || student), in nats, over positions of logits (.., V) where the mask `real` (..) is set.

    Only the student gets a gradient.
    """
    width = student.shape[-1]
    return _Divergence.apply(teacher.detach().reshape(-1, width), student.reshape(-1, width), real.reshape(-1))


class _Divergence(torch.autograd.Function):
    """`divergence` of (N, V); the forward pass also computes the gradient, softmax(student) - softmax(teacher)."""

    @staticmethod
    def forward(ctx: Any, teacher: Tensor, student: Tensor, real: Tensor) -> Tensor:
        grad = torch.empty_like(student) if ctx.needs_input_grad[1] else None
        total = student.new_zeros((), dtype=torch.promote_types(student.dtype, torch.float32))
        size = max(1, AT_A_TIME // student.shape[1])
        for start in range(0, len(student), size):
            rows, keep = slice(start, start + size), real[start : start + size].unsqueeze(1)
            lprobs, target = (x[rows].to(total.dtype).log_softmax(-1) for x in (student, teacher))
            probs = target.exp()
            total += ((target.sub_(lprobs) * probs).sum(-1, keepdim=True) * keep).sum()
            if grad is not None:
                grad[rows] = lprobs.exp_().sub_(probs).mul_(keep)
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, None]:
        (grad,) = ctx.saved_tensors
        return None, grad * grad_output.to(grad.dtype), None
