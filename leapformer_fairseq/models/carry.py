"""Passes the carry, which layers hand on in addition to their output, from the encoder to the decoder."""

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
    """Mixin for fairseq encoders that adds the carry of the last layer to the encoder's output."""

    context: PassContext

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOut:
        self.context.carry = None  # of the last batch, which the first layer must not receive
        return self.with_carry(super().forward(*args, **kwargs))

    def with_carry(self, encoder_out: EncoderOut) -> EncoderOut:
        """Add the carry, if any layer has one."""
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
def receiving_carry(context: PassContext, encoder_out: EncoderOut | None) -> Iterator[None]:
    """Pass the encoder's carry, if any, to the decoder's layers that run within this context."""
    carry = (encoder_out or {}).get(CARRY)
    context.carry = Carry(*carry) if carry else None
    try:
        yield
    finally:
        context.carry = None
