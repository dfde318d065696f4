"""Simultaneous speech translation: the speech-to-text model with wait-k cross-attention.

Target token t attends to the first g(t) = min(S, ratio * (t + k)) encoder states in training and in generation (Ma et
al., 2019, arXiv:1810.08398; fixed pre-decision: Ma et al., 2020, arXiv:2011.02048). With linear attention, training is
linear in the source; nothing of size T x S x D or T x D x D is allocated. Generation from whole utterances, in batches,
follows the same schedule, and the sentence cannot end before the source has been read (`WaitKDecoder`).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from fairseq.models import register_model
from fairseq.tasks.speech_to_text import SpeechToTextTask
from torch import Tensor

from ..attention import Context, Option, PrefixMask
from ..modules import IncrementalState, PassOptions, add_options, attentions, check_decoder, fill_options
from ..support.errors import LeapformerError
from .encoder_out import EncoderOut
from .presets import register_presets
from .s2t import PRESETS, LeapformerS2TModel, leapformer_s2t
from .speech_task import load_dataset_for_wait_k
from .task import override
from .transformer import Decoder

OFFLINE = "offline"
OPTIONS = (
    Option(
        "waitk_lagging",
        "5",
        "k of wait-k; 1-9 draws k for every batch; offline sets no limit; 1-9,offline draws uniformly from these ten, "
        "so every tenth batch on average trains translation of whole recordings",
    ),
    Option("fixed_pre_decision_ratio", 9, "encoder frames (40 ms each) between two decisions"),
)
END_CLOSED = "end_closed"  # key of the decoder's extra results: (B,), whether the sentence must not end here
UNLIKELY = 100.0  # nats below the least likely token, so that sampling does not draw the end either


def parse_lagging(text: str | int) -> list[int | None]:
    """Parse the values of k for training, without duplicates; None means no limit (offline).

    Examples: "5", "1-9", "offline", "1-9,offline". Raises LeapformerError for k < 1 and for anything else.
    """
    laggings: list[int | None] = []
    for part in str(text).split(","):
        if part == OFFLINE:
            laggings.append(None)
            continue
        low, dash, high = part.partition("-")
        try:
            bounds = int(low), int(high if dash else low)
        except ValueError:
            bounds = 0, 0
        if not 1 <= bounds[0] <= bounds[1]:
            raise LeapformerError(
                f"--waitk-lagging {text!r}: give k >= 1, a range such as 1-9, {OFFLINE!r}, or several, as 1-9,{OFFLINE}"
            )
        laggings += range(bounds[0], bounds[1] + 1)
    return list(dict.fromkeys(laggings))


class WaitKDecoder(Decoder):
    """A decoder that follows the wait-k schedule of its cross-attention, also when it generates from whole utterances.

    Token t cannot end the sentence if the token before it did not see the whole source: at that time, a simultaneous
    agent does not know that the source ends, and must write something else. With a streaming encoder, greedy generation
    therefore equals the agent's output.
    """

    mask: PrefixMask | None = None

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None = None,
        incremental_state: IncrementalState | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        x, extra = super().forward(prev_output_tokens, encoder_out, incremental_state, **options)
        options_of_pass = self.context.options
        mask = self.mask if options_of_pass is None else options_of_pass.schedule
        if mask is not None and incremental_state is not None and encoder_out is not None:
            # The tokens include the start symbol: token t = shape[1] - 1, counted from 0, follows token t - 1.
            seen = mask.ratio * (prev_output_tokens.shape[1] - 2 + mask.lagging)
            extra[END_CLOSED] = (~encoder_out["encoder_padding_mask"][0]).sum(1) > seen
        return x, extra

    def get_normalized_probs(
        self, net_output: tuple[Tensor, dict[str, Any] | None], log_probs: bool, sample: dict[str, Tensor] | None = None
    ) -> Tensor:
        """As in fairseq, but an end that is not allowed is less likely than everything else.

        It is not impossible, because the generator ends sentences of the maximum length.
        """
        scores = super().get_normalized_probs(net_output, log_probs, sample)
        closed = (net_output[1] or {}).get(END_CLOSED)
        if closed is not None:
            lowest = scores.amin(-1) - UNLIKELY if log_probs else scores.new_zeros(())
            end = scores[..., self.dictionary.eos()]  # a view of the scores
            end.copy_(torch.where(closed.unsqueeze(1), lowest, end))
        return scores


@register_model("leapformer_simulst")
class LeapformerSimulSTModel(LeapformerS2TModel):
    """Wait-k translation of speech, trained with one k or with a k drawn for each batch.

    A range of k (multi-path wait-k, Elbayad et al., 2020, arXiv:2005.08595) supports every k in it at test time, and
    whole sources if it includes "offline".
    """

    decoder_class = WaitKDecoder
    laggings: list[int | None]  # k in training, drawn for each batch; None: the whole source
    lagging: int | None  # k in evaluation and generation unless `set_lagging` changes it: the largest of `laggings`
    pre_decision_ratio: int  # encoder states between two decisions

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        LeapformerS2TModel.add_args(parser)
        add_options(parser, OPTIONS)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerSimulSTModel:
        leapformer_simulst(args)
        if args.length_predictor not in (None, "oracle"):
            raise LeapformerError(
                f"--length-predictor {args.length_predictor}: it needs the whole source, which arrives while "
                "translating; leave it out, or use leapformer_s2t, or oracle for training and validation only"
            )
        model = super().build_model(args, task)
        model.laggings = parse_lagging(args.waitk_lagging)
        finite = [k for k in model.laggings if k is not None]
        model.lagging = max(finite, default=None)
        if model.lagging is not None:
            mask = PrefixMask(model.lagging, args.fixed_pre_decision_ratio)
            check_decoder(model.decoder, mask, Context(True, args.encoder_embed_dim, source_streams=True))
            if isinstance(task, SpeechToTextTask):
                override(task, "load_dataset", partial(load_dataset_for_wait_k, finite, mask.ratio))
        model.pre_decision_ratio = args.fixed_pre_decision_ratio
        model.set_lagging(model.lagging)
        return model

    def set_lagging(self, k: int | None, ratio: int | None = None) -> None:
        """Set wait-k's k for training, scoring and generation, in every thread; None: the whole source is visible.

        `ratio` is the number of encoder states between two decisions, by default that of training. Streaming sessions
        have their own options, which take precedence.
        """
        mask = None if k is None else PrefixMask(k, self.pre_decision_ratio if ratio is None else ratio)
        self.decoder.mask = mask
        for attention in attentions(self.decoder):
            if attention.encoder_decoder_attention:
                attention.mask = mask

    @contextmanager
    def following(self, k: int, ratio: int) -> Iterator[None]:
        """Like `set_lagging`, but only within this context and in this thread."""
        with self.decoder.context.own(PassOptions(PrefixMask(k, ratio))):
            yield

    def train(self, mode: bool = True) -> LeapformerSimulSTModel:
        # Training draws a k for each batch, and validation must not depend on the last one.
        lagging = getattr(self, "lagging", None)
        if self.training and not mode and lagging is not None:
            self.set_lagging(lagging)
        return super().train(mode)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        if self.training and self.lagging is not None:
            self.set_lagging(self.laggings[int(torch.randint(len(self.laggings), ()))])
        return super().forward(src_tokens, src_lengths, prev_output_tokens)


def leapformer_simulst(args: Namespace) -> None:
    """The options of `leapformer_s2t`, k = 5, 360 ms per decision."""
    fill_options(args, {option.name: option.default for option in OPTIONS})
    leapformer_s2t(args)


register_presets("leapformer_simulst", leapformer_simulst, {name: PRESETS[name] for name in ("", "mla", "tiny")})
