"""What a decoder gets beside the encoder's states: the target length, with its flags, and the carry."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairseq.models import FairseqEncoder
from torch import Tensor

from ..attention import Carry
from ..modules import PassContext, add_options, fill_options
from ..support.errors import LeapformerError
from .length_predictors import LENGTH_PREDICTORS, LengthPredictor, Setting, Source, length_options

EncoderOut = dict[str, list[Any]]
# Keys of the encoder's output: predicted decoder steps [(B,)], the input of the predictor's loss [Learning], and what
# the last layer hands on in addition to its states [values (B, l, C)], or [values, keep (B, l)].
PREDICTED, LEARNING, CARRY = "target_length", "length_learning", "carry"


@dataclass(frozen=True)
class Learning:
    """The inputs of a length predictor in a forward pass, and log(1 + frames) at every position if it has a loss."""

    source: Source
    log_durations: Tensor | None


def add_length_args(parser: ArgumentParser) -> None:
    """Declare `--length-predictor` and the options of all predictors, without defaults."""
    parser.add_argument(
        "--length-predictor",
        choices=sorted(LENGTH_PREDICTORS),
        help="predicts the target length for mechanisms that need it in the decoder (default: none)",
    )
    add_options(parser, length_options())


def fill_length_args(args: Namespace) -> None:
    """Fill unset options of length prediction with their defaults; no predictor by default."""
    fill_options(args, {"length_predictor": None, **{option.name: option.default for option in length_options()}})


def build_length_predictor(
    args: Any, width: int, dictionary: Any = None, frames_per_step: int = 1, timed: bool = False
) -> LengthPredictor | None:
    """Build the predictor that `--length-predictor` selects; None if there is none."""
    if getattr(args, "length_predictor", None) is None:
        return None
    return LengthPredictor(Setting(args, width, dictionary, frames_per_step, timed))


class PassingEncoder(FairseqEncoder):
    """Mixin for fairseq encoders: adds the carry of the last layer that has one, and the predicted target length."""

    context: PassContext
    length_predictor: LengthPredictor | None

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOut:
        self.context.carry = None  # of the last batch, which the first layer must not receive
        return self.with_carry(super().forward(*args, **kwargs))

    def with_carry(self, encoder_out: EncoderOut) -> EncoderOut:
        """Add the carry, if any layer has one."""
        if self.context.facts.carrier is None:
            return encoder_out
        carry = self.context.hand_over(encoder_out["encoder_out"][0].shape[1])
        return {**encoder_out, CARRY: [x for x in carry if x is not None]}

    def forward_torchscript(self, net_input: dict[str, Tensor]) -> EncoderOut:
        """Called by generators instead of `forward`; `prev_output_tokens`, if given, are the targets for an oracle."""
        encoder_out = super().forward_torchscript(net_input)
        targets = net_input.get("prev_output_tokens")  # in text to speech these are frames, (B, T, F)
        target = None if targets is None or targets.dim() != 2 else targets.ne(self.padding_idx).sum(1)
        return self.with_length(encoder_out, net_input["src_tokens"], target)

    def with_length(self, encoder_out: EncoderOut, src_tokens: Tensor, target: Tensor | None = None) -> EncoderOut:
        """Add the predicted length to the encoder's output, if there is a predictor."""
        if self.length_predictor is None:
            return encoder_out
        return {**encoder_out, PREDICTED: [self.length_predictor(self.source(encoder_out, src_tokens, target))]}

    def learn_length(self, encoder_out: EncoderOut, src_tokens: Tensor, target: Tensor) -> EncoderOut:
        """For training and scoring: show the true lengths `target` (B,) to the predictor.

        Adds the input of the predictor's loss to the encoder's output, and the predicted length if
        `--length-in-training` requests it; in training, only once the predictor has learned something.
        """
        if self.length_predictor is None:
            return encoder_out
        source = self.source(encoder_out, src_tokens, target)
        if self.training:
            self.length_predictor.observe(source)
        # Computed here and not in the criterion: DistributedDataParallel only reduces gradients of the forward pass.
        learning = Learning(source, self.length_predictor.log_durations(source))
        if self.length_predictor.in_training and (self.length_predictor.ready or not self.training):
            encoder_out = self.with_length(encoder_out, src_tokens, target)
        return {**encoder_out, LEARNING: [learning]}

    def source(self, encoder_out: EncoderOut, src_tokens: Tensor, target: Tensor | None) -> Source:
        """The predictor's input, from the encoder's output."""
        states = encoder_out["encoder_out"][0].transpose(0, 1)
        padding = (encoder_out["encoder_padding_mask"] or [None])[0]
        keep = states.new_ones(states.shape[:2]).bool() if padding is None else ~padding
        return Source(src_tokens if src_tokens.dim() == 2 else None, states, keep, target)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        for key in (PREDICTED, CARRY):
            if key in encoder_out:
                reordered[key] = [x.index_select(0, new_order) for x in encoder_out[key]]
        return reordered


def predicted_length(encoder_out: EncoderOut) -> Tensor | None:
    """Decoder steps (B,) predicted by the encoder; None without a predictor."""
    return encoder_out[PREDICTED][0] if PREDICTED in encoder_out else None


@contextmanager
def receiving(
    context: PassContext, encoder_out: EncoderOut | None, true_lengths: Tensor | None = None
) -> Iterator[None]:
    """Pass the target length (B,), predicted or else true, and the carry to the decoder's layers that run within this.

    `true_lengths` is None during generation. Raises LeapformerError if no length is available and the attention cannot
    guess one.
    """
    encoder_out = encoder_out or {}
    if context.facts.knows_lengths:
        predicted = predicted_length(encoder_out)
        if predicted is None and true_lengths is None and not context.facts.guesses_lengths:
            raise LeapformerError(
                "the decoder received no target length; generate from what encoder.forward_torchscript returns"
            )
        context.lengths = true_lengths if predicted is None else predicted
    carry = encoder_out.get(CARRY)
    context.carry = Carry(*carry) if carry else None
    try:
        yield
    finally:
        context.carry = None
