"""A student and a teacher of the same sizes, and the attention blocks in which their mechanisms differ.

In such a block the student's layer can use its own attention, the teacher's, or both at once. With both, the layer
continues with the teacher's output, so every block gets the input that it would get in the teacher.

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

LEAST_WEIGHT = 1e-6  # lower weights are raised to this before taking their logarithm


class ReplacedBlock(NamedTuple):
    """An attention block of the student in which the teacher has another mechanism.

    `inside` is the student's layer, `attribute` the name of the attention in it. `teacher` has the parameters of the
    teacher's attention, but the context and mask of the student's.
    """

    block: str
    layer: int
    inside: nn.Module
    attribute: str
    student: MechanismAttention
    teacher: MechanismAttention

    @property
    def name(self) -> str:
        """The block and its layer, such as "decoder-cross.2", counted from 1 (`layer` itself is counted from 0)."""
        return f"{self.block}.{self.layer + 1}"

    def put(self, attention: nn.Module) -> None:
        """Make the student's layer use this attention."""
        setattr(self.inside, self.attribute, attention)

    @property
    def compares_weights(self) -> bool:
        """Whether both mechanisms have weights that sum to one."""
        return all(part.mechanism.capabilities.normalized for part in (self.student, self.teacher))


def replaced_blocks(student: Any, teacher: Any) -> list[ReplacedBlock]:
    """The blocks in which the two have different mechanisms, by block and layer.

    Raises LeapformerError if the models differ in size.
    """
    replaced = []
    for block in BLOCKS:
        if not hasattr(student, block.stack):
            continue
        ours, theirs = (layers_of(getattr(model, block.stack)) for model in (student, teacher))
        if len(ours) != len(theirs):
            raise LeapformerError(
                f"the student has {len(ours)} {block.stack} layers, the teacher {len(theirs)}; they must be equal"
            )
        for layer in range(len(ours)):
            here, there = (getattr(layers[layer], block.attribute, None) for layers in (ours, theirs))
            if here is None or there is None or here.mechanism.name == there.mechanism.name:
                continue
            _check_sizes(here, there, f"{block.name}, layer {layer + 1}")
            guest = copy.copy(there)
            guest.context, guest.mask = here.context, here.mask
            replaced.append(ReplacedBlock(block.name, layer, ours[layer], block.attribute, here, guest))
    return replaced


def _check_sizes(student: MechanismAttention, teacher: MechanismAttention, where: str) -> None:
    sizes = [(part.embed_dim, part.num_heads) for part in (student, teacher)]
    if sizes[0] != sizes[1]:
        raise LeapformerError(
            f"{where}: {sizes[0][0]} wide with {sizes[0][1]} heads in the student, {sizes[1][0]} with {sizes[1][1]} in "
            "the teacher; they must be equal"
        )


class Errors(NamedTuple):
    """How a student's block differs from the teacher's, given the same inputs.

    output:  the squared error of the output, relative to the squared output of the teacher.
    weights: the cross-entropy of the student's attention weights with respect to the teacher's, mean over heads and
             queries; 0 if weights are not compared.
    """

    output: Tensor
    weights: Tensor


@contextmanager
def compared(
    blocks: Sequence[ReplacedBlock], keep: Tensor | None, weights: bool = False
) -> Iterator[Mapping[str, Errors]]:
    """Compare each block in one pass of the student, made inside this context, that uses the teacher's attention.

    Yields a mapping that the pass fills with the errors of each block by name. The pass ends at the last block, before
    the output layer, which is the largest product in many models. Even if the pass has no gradients, the errors have:
    those of the student's attention only. `keep` (B, T) is True at the decoder's real tokens. With `weights`, attention
    weights are compared, too, where those of both mechanisms sum to one; this is quadratic.
    """
    errors: dict[str, Errors] = {}
    for block in blocks:
        block.put(_Both(block, errors, len(blocks), keep, weights))
    try:
        yield errors
    except _AllCompared:
        pass
    finally:
        for block in blocks:
            block.put(block.student)


class _AllCompared(Exception):
    """Ends a pass after its last comparison."""


class _Both(nn.Module):
    """Runs the student's attention and the teacher's, records their difference, and returns the teacher's output.

    `errors` gets an entry from each of the `count` blocks that are compared.
    """

    def __init__(
        self, block: ReplacedBlock, errors: dict[str, Errors], count: int, keep: Tensor | None, weights: bool
    ) -> None:
        super().__init__()
        self.student, self.teacher = block.student, block.teacher
        self.name, self.errors, self.count, self.keep = block.name, errors, count, keep
        self.encoder = block.block == BLOCKS[0].name
        self.weights = weights and block.compares_weights

    def forward(self, query: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """The teacher's output (T, B, C), and its weights."""
        wanted = {"need_head_weights": True} if self.weights else {}
        with torch.no_grad():
            target, weights = self.teacher(query, *args, **{**options, **wanted})
        with torch.enable_grad():
            out, student_weights = self.student(query, *args, **{**options, **wanted})
            padding = options.get("key_padding_mask")
            keep = self.keep
            if self.encoder:  # where queries are the keys, with the same padding
                keep = None if padding is None else ~padding.bool()
            errors = Errors(_relative(out, target, keep), _cross_entropy(student_weights, weights, keep))
            self.errors[self.name] = errors
        if len(self.errors) == self.count:
            raise _AllCompared
        asked_for_heads = options.get("need_head_weights", False)
        return target, weights if weights is None or asked_for_heads or not self.weights else weights.mean(0)

    def __getattr__(self, name: str) -> Any:
        # Layers also read attributes of their attention.
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
    """-sum_s a log b, a being the teacher's and b the student's weights (H, B, T, S); mean over heads, real queries."""
    if student is None or teacher is None or student.dim() != 4:
        return torch.zeros(())
    rows = -(teacher.float() * student.float().clamp_min(LEAST_WEIGHT).log()).sum(-1)
    return rows.mean() if keep is None else rows[:, keep].mean()
