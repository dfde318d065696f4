"""Simultaneous speech translation: the speech-to-text model with wait-k cross-attention.

Target token t attends to the encoder frames before g(t) = min(S, ratio * (t + k)) in training and in generation (Ma et
al., 2019, arXiv:1810.08398; fixed pre-decision: Ma et al., 2020, arXiv:2011.02048). With linear attention, training is
linear in the source; nothing of size T x S x D or T x D x D is allocated. Generation from whole utterances, in batches,
follows the complete schedule: the sentence cannot end before the source has been read (`WaitKDecoder`).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.tasks.speech_to_text import SpeechToTextTask
from torch import Tensor

from ..attention import Context, PrefixMask
from ..modules import IncrementalState, PassOptions, attentions, check_decoder
from ..support.errors import LeapformerError
from .lengths import EncoderOut
from .s2t import LeapformerS2TModel, leapformer_s2t, leapformer_s2t_mla, leapformer_s2t_tiny
from .speech_task import load_dataset_for_wait_k
from .task import override
from .transformer import Decoder

OFFLINE = "offline"
END_CLOSED = "end_closed"  # in what the decoder returns beside logits: (B,), whether the sentence may not end here
UNLIKELY = 100.0  # so much below the log probability of all else that sampling does not draw it either


def parse_lagging(text: str | int) -> list[int | None]:
    """Parse the values of k for training, each once; None is no limit.

    Examples: "5", "1-9", "offline", or several of them as in "1-9,offline". Raises LeapformerError for k < 1.
    """
    found: list[int | None] = []
    for part in str(text).split(","):
        if part == OFFLINE:
            found.append(None)
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
        found += range(bounds[0], bounds[1] + 1)
    return list(dict.fromkeys(found))


class WaitKDecoder(Decoder):
    """A decoder that follows the wait-k schedule of its cross-attention, also while generating.

    Token t cannot be the end of the sentence while the token before it did not see the whole source: an agent that
    writes while it listens does not know yet that the source ends, and must write something else. So generation from
    whole utterances equals the output of the agent (greedy search, the end masked), if the encoder is a streaming
    encoder.
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
        decided = self.context.options
        mask = self.mask if decided is None else decided.schedule
        if mask is not None and incremental_state is not None and encoder_out is not None:
            before = mask.ratio * (prev_output_tokens.shape[1] - 2 + mask.lagging)
            extra[END_CLOSED] = (~encoder_out["encoder_padding_mask"][0]).sum(1) > before
        return x, extra

    def get_normalized_probs(
        self, net_output: tuple[Tensor, dict[str, Any] | None], log_probs: bool, sample: dict[str, Tensor] | None = None
    ) -> Tensor:
        """As in fairseq, for its generator: where the end is not allowed, it is less likely than everything else.

        It is not impossible, because at the maximum length the generator needs an end.
        """
        scores = super().get_normalized_probs(net_output, log_probs, sample)
        closed = (net_output[1] or {}).get(END_CLOSED)
        if closed is not None:
            lowest = scores.amin(-1) - UNLIKELY if log_probs else scores.new_zeros(())
            end = scores[..., self.dictionary.eos()]
            end.copy_(torch.where(closed.unsqueeze(1), lowest, end))
        return scores


@register_model("leapformer_simulst")
class LeapformerSimulSTModel(LeapformerS2TModel):
    """Wait-k translation of speech, with one k or with k drawn for each batch.

    A range of k (multi-path wait-k, Elbayad et al., 2020, arXiv:2005.08595) supports every k in it at test time; if it
    includes "offline", also whole sources.

    laggings: those of training, of which each batch draws one; None: it sees the whole source
    lagging:  of evaluation and generation unless `set_lagging` changes it, the largest k; None if there is none
    """

    decoder_class = WaitKDecoder
    laggings: list[int | None]
    lagging: int | None
    pre_decision_ratio: int

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        LeapformerS2TModel.add_args(parser)
        parser.add_argument(
            "--waitk-lagging",
            metavar="K",
            help="k of wait-k; 1-9 draws k for every batch; offline sets no limit; 1-9,offline draws uniformly among "
            "these ten, so every tenth batch on average trains translation of whole recordings (default: 5)",
        )
        parser.add_argument(
            "--fixed-pre-decision-ratio",
            type=int,
            metavar="N",
            help="encoder frames (40 ms each) between two decisions (default: 9)",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerSimulSTModel:
        leapformer_simulst(args)
        if args.length_predictor not in (None, "oracle"):
            raise LeapformerError(
                f"--length-predictor {args.length_predictor}: it needs the whole source, which arrives while "
                "translating; leave it out, or take leapformer_s2t, or oracle for training and validation alone"
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
        """Make the decoder follow wait-k with this k from now on, in every thread; None: it sees the whole source.

        A setting of the model, for training, scoring and generation; streaming sessions use their own options. `ratio`
        is the number of encoder states between two decisions, by default that of training.
        """
        mask = None if k is None else PrefixMask(k, self.pre_decision_ratio if ratio is None else ratio)
        self.decoder.mask = mask
        for attention in attentions(self.decoder):
            if attention.encoder_decoder_attention:
                attention.mask = mask

    @contextmanager
    def following(self, k: int, ratio: int) -> Iterator[None]:
        """Within this context, passes of this thread follow wait-k as set by `set_lagging`; other threads do not."""
        with self.decoder.context.own(PassOptions(PrefixMask(k, ratio))):
            yield

    def train(self, mode: bool = True) -> LeapformerSimulSTModel:
        # Training draws k for each batch; whoever evaluates next must find a fixed one.
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


def _wait_k(args: Namespace) -> None:
    args.waitk_lagging = getattr(args, "waitk_lagging", "5")
    args.fixed_pre_decision_ratio = getattr(args, "fixed_pre_decision_ratio", 9)


@register_model_architecture("leapformer_simulst", "leapformer_simulst")
def leapformer_simulst(args: Namespace) -> None:
    """The LeaPformer paper's size: 12 + 6 layers, k = 5, 360 ms per decision."""
    _wait_k(args)
    leapformer_s2t(args)


@register_model_architecture("leapformer_simulst", "leapformer_simulst_mla")
def leapformer_simulst_mla(args: Namespace) -> None:
    """The Modular Linearized Attention paper's size: 6 + 6 layers."""
    _wait_k(args)
    leapformer_s2t_mla(args)


@register_model_architecture("leapformer_simulst", "leapformer_simulst_tiny")
def leapformer_simulst_tiny(args: Namespace) -> None:
    """For two CPU cores: the quickstart and the tests."""
    _wait_k(args)
    leapformer_s2t_tiny(args)
