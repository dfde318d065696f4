"""The carry: what layers pass on in addition to their output, and what the encoder passes to the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.models import FairseqEncoder
from torch import Tensor

from ..attention import Carry
from ..modules import PassContext
from .lengths import EncoderOut

CARRY = "carry"  # key of the encoder's output: [values (B, l, C)], or [values, keep (B, l)]


class CarryingEncoder(FairseqEncoder):
    """Mixin for fairseq encoders: the carry of the last layer is passed to the decoder with the encoder's output."""

    context: PassContext

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOut:
        self.context.carry = None
        return self.with_carry(super().forward(*args, **kwargs))

    def with_carry(self, encoder_out: EncoderOut) -> EncoderOut:
        """The encoder's output and the carry, if there is one."""
        if self.context.facts.carrier is None:
            return encoder_out
        carry = self.context.hand_over(encoder_out["encoder_out"][0].shape[1])
        return {**encoder_out, CARRY: [x for x in carry if x is not None]}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        if CARRY in encoder_out:
            reordered[CARRY] = [x.index_select(0, new_order) for x in encoder_out[CARRY]]
        return reordered


@contextmanager
def carried(context: PassContext, encoder_out: EncoderOut | None) -> Iterator[None]:
    """Within this context, a decoder's layers receive what the encoder passed on, if anything."""
    found = (encoder_out or {}).get(CARRY)
    context.carry = Carry(*found) if found else None
    try:
        yield
    finally:
        context.carry = None
