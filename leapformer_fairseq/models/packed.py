"""The packed sequence of Luna, from layer to layer and from the encoder to the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..attention import Packed
from ..modules import CurrentPass
from .lengths import EncoderOut

PACKED = "packed"  # key of the encoder's output: [rows (B, l, C)], or [rows, keep (B, l)]


class PackingEncoder(nn.Module):
    """Mixin for fairseq encoders: what the last layer hands on goes to the decoder with the encoder's output."""

    current: CurrentPass

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOut:
        self.current.packed = None
        return self.with_packed(super().forward(*args, **kwargs))

    def with_packed(self, encoder_out: EncoderOut) -> EncoderOut:
        """The encoder's output and the packed sequence, if there is one."""
        if self.current.packing is None:
            return encoder_out
        packed = self.current.hand_over(encoder_out["encoder_out"][0].shape[1])
        return {**encoder_out, PACKED: [x for x in packed if x is not None]}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        if PACKED in encoder_out:
            reordered[PACKED] = [x.index_select(0, new_order) for x in encoder_out[PACKED]]
        return reordered


@contextmanager
def taken_packed(current: CurrentPass, encoder_out: EncoderOut | None) -> Iterator[None]:
    """While this holds, a decoder's layers find what the encoder handed on, if anything."""
    found = (encoder_out or {}).get(PACKED)
    current.packed = Packed(*found) if found else None
    try:
        yield
    finally:
        current.packed = None
