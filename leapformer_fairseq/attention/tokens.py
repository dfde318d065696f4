"""What attention knows about the tokens of a batch, besides queries, keys and values.

Shapes: B batch, T tokens, C width of the block's input. Keep masks are True at real tokens (fairseq's padding masks
are the opposite).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..support.errors import LeapformerError


class Carry(NamedTuple):
    """What a layer passes to the next besides its output: l vectors per sequence.

    values: (B, l, C).
    keep:   (B, l), False for vectors that are not in use; None: all are in use.
    """

    values: Tensor
    keep: Tensor | None = None

    def for_batch(self, size: int) -> Carry:
        """The carry for `size` batch entries: one for each sentence, or several neighbours, its hypotheses."""
        count = self.values.shape[0]  # `len` would become a constant in a graph
        if count == size:
            return self

        def fitted(x: Tensor) -> Tensor:
            return x[:: count // size] if count > size else x.repeat_interleave(size // count, 0)

        return Carry(fitted(self.values), None if self.keep is None else fitted(self.keep))


@dataclass(frozen=True)
class TokenInfo:
    """The tokens of one side: queries or keys.

    positions: (B or 1, T), 1 at the first real token, so left padding does not shift a sequence.
    lengths:   (B or 1,), lengths of the whole sequences, true or predicted; None if unknown, as in generation.
    keep:      (B, T), True at real tokens; None: no padding.
    inputs:    (B, T, C), the block's input before the projections, for mechanisms that need it.
    carry:     what the previous layer passed on, for mechanisms that have a carry.
    """

    positions: Tensor
    lengths: Tensor | None = None
    keep: Tensor | None = None
    inputs: Tensor | None = None
    carry: Carry | None = None

    @classmethod
    def whole(cls, count: int, keep: Tensor | None = None, device: torch.device | None = None) -> TokenInfo:
        """Complete sequences of `count` columns, padded on either side where `keep` (B, count) is False."""
        checked_keep(keep, (None, count))
        if keep is None:
            return cls(torch.arange(1, count + 1, device=device).unsqueeze(0), torch.full((1,), count, device=device))
        return cls(keep.long().cumsum(1), keep.sum(1), keep)

    @classmethod
    def following(cls, seen: Tensor, count: int, keep: Tensor | None = None) -> TokenInfo:
        """The next `count` tokens, after `seen` (B or 1,) real tokens, of sequences of unknown length."""
        columns = torch.ones(1, count, dtype=torch.long, device=seen.device) if keep is None else keep.long()
        return cls(seen.unsqueeze(1) + columns.cumsum(1), None, keep)

    def of_length(self, lengths: Tensor | None) -> TokenInfo:
        """The same tokens with other lengths (B or 1,), predicted ones, or None."""
        return replace(self, lengths=lengths)

    def without_lengths(self) -> TokenInfo:
        """The same tokens for a block that must not know how long the sequence becomes."""
        return self.of_length(None)

    def required_inputs(self, dtype: torch.dtype | None = None) -> Tensor:
        """What gates and controls read, (B, T, C): the block's input, converted to `dtype`.

        Raises LeapformerError if it is missing.
        """
        if self.inputs is None:
            raise LeapformerError(
                "the block's input, which this mechanism reads, is missing; give TokenInfo(..., inputs=x), x (B, T, C) "
                "before the projections, or use `Attention`, which does (a mechanism of your own: declare needs_inputs)"
            )
        return self.inputs if dtype is None else self.inputs.to(dtype)

    def cleared(self) -> TokenInfo:
        """The same tokens with zeros as the inputs of padding."""
        if self.inputs is None or self.keep is None:
            return self
        return replace(self, inputs=self.inputs.where(self.keep.unsqueeze(-1), 0))

    def reversed(self) -> TokenInfo:
        """The columns in reverse order."""
        keep, inputs = (None if x is None else x.flip(1) for x in (self.keep, self.inputs))
        return replace(self, positions=self.positions.flip(1), keep=keep, inputs=inputs)

    def folded(self, shared: int) -> TokenInfo:
        """The tokens of `shared` neighbouring batch entries, one after the other, as tokens of a single entry."""

        def neighbours(x: Tensor) -> Tensor:
            """(B * shared, ..) to (B, shared, ..); a single entry stands for all and becomes (1, shared, ..)."""
            alone = type(x.shape[0]) is int and x.shape[0] == 1  # in a graph the batch size is symbolic
            return x.unsqueeze(1).expand(-1, shared, *x.shape[1:]) if alone else x.unflatten(0, (-1, shared))

        positions = neighbours(self.positions).flatten(1)
        lengths = None if self.lengths is None else neighbours(self.lengths)[:, 0]
        inputs = None if self.inputs is None else neighbours(self.inputs).flatten(1, 2)
        return replace(self, positions=positions, lengths=lengths, inputs=inputs)

    def narrow(self, start: int, stop: int) -> TokenInfo:
        """Columns [start, stop)."""
        columns = slice(start, stop)
        keep, inputs = (None if x is None else x[:, columns] for x in (self.keep, self.inputs))
        return replace(self, positions=self.positions[:, columns], keep=keep, inputs=inputs)


def checked_keep(keep: Tensor | None, shape: Sequence[int | None], name: str = "keep") -> None:
    """Raise LeapformerError unless `keep` is None or a mask (B, T) of this shape, in which None is any number."""
    if keep is None or torch.compiler.is_compiling():  # a graph would take the sizes for constants
        return
    fits = isinstance(keep, Tensor) and keep.dtype == torch.bool and keep.dim() == 2
    if not fits or any(wanted not in (None, size) for wanted, size in zip(shape, keep.shape, strict=True)):
        given = f"{keep.dtype} {tuple(keep.shape)}" if isinstance(keep, Tensor) else f"a {type(keep).__name__}"
        sizes = ", ".join("batch" if size is None else str(size) for size in shape)
        raise LeapformerError(f"{name} is {given}; give torch.bool ({sizes}), True at real tokens")
