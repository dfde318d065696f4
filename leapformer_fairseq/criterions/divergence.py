"""The Kullback-Leibler divergence of two predictions, without tensors of the vocabulary's size beside the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_A_TIME = 2**20  # logits, which a processor's cache can hold


def divergence(teacher: Tensor, student: Tensor, real: Tensor) -> Tensor:
    """The sum of KL(teacher || student) in nats over the rows that are `real`, (..), of logits (.., V).

    Has a gradient for the student alone.
    """
    width = student.shape[-1]
    return _Divergence.apply(teacher.detach().reshape(-1, width), student.reshape(-1, width), real.reshape(-1))


class _Divergence(torch.autograd.Function):
    """`divergence` of (N, V); the gradient, softmax(student) - softmax(teacher), is made on the way."""

    @staticmethod
    def forward(ctx: Any, teacher: Tensor, student: Tensor, real: Tensor) -> Tensor:
        grad = torch.empty_like(student) if ctx.needs_input_grad[1] else None
        total = student.new_zeros((), dtype=torch.promote_types(student.dtype, torch.float32))
        size = max(1, AT_A_TIME // student.shape[1])
        for start in range(0, len(student), size):
            rows, keep = slice(start, start + size), real[start : start + size].unsqueeze(1)
            own, target = (x[rows].to(total.dtype).log_softmax(-1) for x in (student, teacher))
            share = target.exp()
            total += ((target.sub_(own) * share).sum(-1, keepdim=True) * keep).sum()
            if grad is not None:
                grad[rows] = own.exp_().sub_(share).mul_(keep)
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, sent: Tensor) -> tuple[None, Tensor, None]:
        (grad,) = ctx.saved_tensors
        return None, grad * sent.to(grad.dtype), None
