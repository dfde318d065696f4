"""Blocks of a model whose attention another model, of the same sizes, does by another mechanism: teacher and student.

Either model's attention can stand in a layer of the student, or both at once: then the rest of the student sees what
the teacher does, and so every block is given what it would be given in the teacher.

Shapes: T queries, S keys, B batch, C width, H heads.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..support.errors import LeapformerError
from .attention import MechanismAttention
from .swap import BLOCKS, layers_of

LEAST_WEIGHT = 1e-6  # of which a logarithm is taken


class ReplacedBlock(NamedTuple):
    """An attention block of the student in which the teacher has another mechanism.

    `teacher` shares the parameters of the teacher's attention and is told what passes of the student are told.
    """

    block: str
    layer: int
    inside: nn.Module
    attribute: str
    student: MechanismAttention
    teacher: MechanismAttention

    @property
    def name(self) -> str:
        """The block and the number of its layer, from one, as in "decoder-cross.2"; `layer` is from zero."""
        return f"{self.block}.{self.layer + 1}"

    def put(self, attention: nn.Module) -> None:
        """Let the student's layer use this attention."""
        setattr(self.inside, self.attribute, attention)

    @property
    def compares_weights(self) -> bool:
        """Whether both mechanisms have weights that sum to one."""
        return all(part.mechanism.capabilities.normalized for part in (self.student, self.teacher))


def replaced_blocks(student: Any, teacher: Any) -> list[ReplacedBlock]:
    """Where the two have different mechanisms, block by block and layer by layer.

    Raises LeapformerError for models of different sizes.
    """
    found = []
    for block in BLOCKS:
        if not hasattr(student, block.stack):
            continue
        ours, theirs = (layers_of(getattr(model, block.stack)) for model in (student, teacher))
        if len(ours) != len(theirs):
            raise LeapformerError(
                f"the student has {len(ours)} {block.stack} layers, the teacher {len(theirs)}; they must be equal"
            )
        for layer in range(len(ours)):
            own, other = (getattr(layers[layer], block.attribute, None) for layers in (ours, theirs))
            if own is None or other is None or own.mechanism.name == other.mechanism.name:
                continue
            _check_sizes(own, other, f"{block.name}, layer {layer + 1}")
            guest = copy.copy(other)
            guest.context, guest.mask = own.context, own.mask
            found.append(ReplacedBlock(block.name, layer, ours[layer], block.attribute, own, guest))
    return found


def _check_sizes(student: MechanismAttention, teacher: MechanismAttention, where: str) -> None:
    sizes = [(part.embed_dim, part.num_heads) for part in (student, teacher)]
    if sizes[0] != sizes[1]:
        raise LeapformerError(
            f"{where}: {sizes[0][0]} wide with {sizes[0][1]} heads in the student, {sizes[1][0]} with {sizes[1][1]} in "
            "the teacher; they must be equal"
        )


class Errors(NamedTuple):
    """What a student's block does differently, given the same inputs.

    output:  the squared error of the outputs, relative to the teacher's squared output.
    weights: the cross-entropy of the student's attention weights with the teacher's, mean over heads and queries; 0
             where it was not asked for.
    """

    output: Tensor
    weights: Tensor


@contextmanager
def compared(
    blocks: Sequence[ReplacedBlock], keep: Tensor | None, weights: bool = False
) -> Iterator[Mapping[str, Errors]]:
    """Compare each block in one pass of the student, which is made inside and uses the teacher's attention.

    The pass ends at the last block: the output layer, the largest product of many models, is not computed. The errors,
    by the block's name, have gradients even in a pass that has none: those of the student's attention alone. `keep`
    (B, T) is True at real tokens of the decoder. With `weights` weights are compared where both mechanisms have weights
    that sum to one, which is quadratic.
    """
    found: dict[str, Errors] = {}
    for block in blocks:
        block.put(_Both(block, found, len(blocks), keep, weights))
    try:
        yield found
    except _AllCompared:
        pass
    finally:
        for block in blocks:
            block.put(block.student)


class _AllCompared(Exception):
    """Ends a pass of which nothing more is wanted."""


class _Both(nn.Module):
    """A student's attention and the teacher's in one place; outside it looks like the teacher's."""

    def __init__(
        self, block: ReplacedBlock, found: dict[str, Errors], count: int, keep: Tensor | None, weights: bool
    ) -> None:
        super().__init__()
        self.student, self.teacher = block.student, block.teacher
        self.name, self.found, self.count, self.keep = block.name, found, count, keep
        self.encoder = block.block == BLOCKS[0].name
        self.weights = weights and block.compares_weights

    def forward(self, query: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """The teacher's output (T, B, C), and its weights."""
        wanted = {"need_head_weights": True} if self.weights else {}
        with torch.no_grad():
            target, weights = self.teacher(query, *args, **{**options, **wanted})
        with torch.enable_grad():
            out, own = self.student(query, *args, **{**options, **wanted})
            padding = options.get("key_padding_mask")
            keep = self.keep
            if self.encoder:  # whose queries are the keys
                keep = None if padding is None else ~padding.bool()
            self.found[self.name] = Errors(_relative(out, target, keep), _cross_entropy(own, weights, keep))
        if len(self.found) == self.count:
            raise _AllCompared
        asked_for_heads = options.get("need_head_weights", False)
        return target, weights if weights is None or asked_for_heads or not self.weights else weights.mean(0)

    def __getattr__(self, name: str) -> Any:
        # what layers ask of an attention beside its output
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("teacher"), name)


def _relative(out: Tensor, target: Tensor, keep: Tensor | None) -> Tensor:
    """|out - target|^2 / |target|^2 over real tokens of (T, B, C)."""
    target = target.float()
    error, size = (out.float() - target).square(), target.square()
    if keep is not None:
        real = keep.t().unsqueeze(-1)
        error, size = error * real, size * real
    return error.sum() / size.sum().clamp_min(torch.finfo(torch.float32).tiny)


def _cross_entropy(student: Tensor | None, teacher: Tensor | None, keep: Tensor | None) -> Tensor:
    """-sum_s a log b of weights (H, B, T, S), mean over heads and real queries."""
    if student is None or teacher is None or student.dim() != 4:
        return torch.zeros(())
    rows = -(teacher.float() * student.float().clamp_min(LEAST_WEIGHT).log()).sum(-1)
    return rows.mean() if keep is None else rows[:, keep].mean()
