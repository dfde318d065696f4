"""RoBERTa-style masked language models with any attention plan in the encoder, and classification on top.

Liu et al., 2019, RoBERTa (arXiv:1907.11692). ABC (arXiv:2110.02488) and Luna (arXiv:2106.01540) pre-train such models
and compare them on GLUE.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import register_model
from fairseq.models.roberta import RobertaEncoder, RobertaHubInterface, RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from torch import Tensor, nn

from ..attention import MECHANISMS
from ..modules import (
    OfAnyOrigin,
    PassContext,
    add_attention_args,
    check_vocabulary,
    fill_attention_args,
    fill_options,
    remember_vocabulary,
    swap_attention,
)
from ..support.errors import LeapformerError
from .encoder_out import CARRY
from .presets import Preset, register_presets
from .task import adapt

POOLINGS = ("cls", "mean", "packed")


class Encoder(RobertaEncoder):
    """fairseq's RoBERTa encoder with its output layer over the vocabulary."""

    context: PassContext

    def extract_features(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq; the second result includes the carry of the last layer that has one."""
        self.context.carry = None  # of the last batch, which the first layer must not receive
        x, extra = super().extract_features(src_tokens, *args, **kwargs)
        return x, extra if self.context.facts.carrier is None else {
            **extra,
            CARRY: self.context.hand_over(len(src_tokens)),
        }

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, under their name in every other encoder."""
        return self.sentence_encoder.layers


class HubInterface(RobertaHubInterface):
    """fairseq's interface for single sentences; classification uses the model's `--pooling`."""

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """Classify tokens (B, T) or (T,): log probabilities (B, classes), or logits.

        Raises LeapformerError if there are too many tokens for the model.
        """
        if tokens.shape[-1] > self.model.max_positions():
            raise LeapformerError(
                f"{tokens.shape[-1]} tokens, but the model has {self.model.max_positions()} positions; shorten the text"
            )
        logits, _ = self.model(torch.atleast_2d(tokens).to(self.device), classification_head_name=head)
        return logits if return_logits else F.log_softmax(logits, dim=-1)


def _carriers() -> list[str]:
    return [name for name, mechanism in MECHANISMS.items() if mechanism.capabilities.carry_width is not None]


@register_model("leapformer_mlm")
class LeapformerMaskedLanguageModel(OfAnyOrigin, RobertaModel):
    """A masked language model with a mechanism per layer, for masked_lm, sentence_prediction and sentence_ranking.

    It has every flag of fairseq's `roberta` and loads roberta checkpoints, including the released ones
    (`--finetune-from-model`, `--restore-file`); only `*.mechanism.*` is new.
    """

    tasks = ("masked_lm", "sentence_prediction", "sentence_ranking")

    def __init__(self, args: Namespace, encoder: Encoder) -> None:
        super().__init__(args, encoder)
        # Last, since RoBERTa initialises every linear layer it finds, and would overwrite those of mechanisms.
        encoder.context = swap_attention(encoder, "encoder", args)
        remember_vocabulary(encoder.sentence_encoder, encoder.dictionary)
        if args.pooling == "packed" and encoder.context.facts.carrier is None:
            raise LeapformerError(
                f"--pooling packed: no layer of {args.encoder_self_attention!r} has a carry; give one of "
                f"{', '.join(_carriers())}, or --pooling cls or mean"
            )

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        RobertaModel.add_args(parser)
        add_attention_args(parser, ("encoder",))
        parser.add_argument(
            "--pooling",
            choices=POOLINGS,
            help="input of the classifier: the first token's state (cls), as in RoBERTa, the mean over all tokens, or "
            f"over the carry of the last layer that has one (packed; {', '.join(_carriers())}) (default: cls)",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerMaskedLanguageModel:
        # Fills what a preset or an older checkpoint left open.
        leapformer_mlm(args)
        adapt(task, args, *cls.tasks)
        if isinstance(task, SentencePredictionTask):
            _check_classes(task)
        if getattr(args, "mha_heads_to_keep", -1) != -1:
            raise LeapformerError("--mha-heads-to-keep: heads of a mechanism cannot be pruned; leave the flag out")
        if getattr(args, "spectral_norm_classification_head", False):
            raise LeapformerError(
                "--spectral-norm-classification-head: fairseq cannot load what was trained with it; leave the flag out"
            )
        return cls(args, Encoder(args, task.source_dictionary))

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> HubInterface:
        """Load a checkpoint for use from Python; arguments as in fairseq's RoBERTa."""
        hub = super().from_pretrained(*args, **kwargs)
        return HubInterface(hub.cfg, hub.task, hub.model)

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits over the vocabulary and extra results; other options return other logits.

        Logits are (B, T, V), or (M, V) at the M `masked_tokens`; with `features_only`, features (B, T, C); with a
        `classification_head_name`, (B, classes).
        """
        if classification_head_name is None or self.args.pooling == "cls":
            return super().forward(src_tokens, features_only, return_all_hiddens, classification_head_name, **options)
        features, extra = self.encoder(src_tokens, True, return_all_hiddens, **options)
        vectors, keep = features, src_tokens.ne(self.encoder.dictionary.pad())
        if self.args.pooling == "packed":
            vectors, keep = extra[CARRY]
            keep = vectors.new_ones(vectors.shape[:2], dtype=torch.bool) if keep is None else keep
            # Layers that read a carry normalise it, too.
            vectors = F.layer_norm(vectors, vectors.shape[-1:]).to(features.dtype)
        keep = keep.unsqueeze(-1)
        mean = vectors.masked_fill(~keep, 0).sum(1, keepdim=True) / keep.sum(1, keepdim=True)
        # (B, 1, C), since the head reads the first position.
        return self.classification_heads[classification_head_name](mean), extra

    def get_targets(self, sample: dict[str, Any], net_output: Any) -> Tensor:
        """The labels of a batch. Raises LeapformerError for a data set without labels."""
        if sample.get("target") is None:
            raise LeapformerError(
                f"the data set of sentence {int(sample['id'].min())} has no labels to compare with; prepare the folder "
                "label/ for this subset, or give a --valid-subset with labels"
            )
        return super().get_targets(sample, net_output)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        super().upgrade_state_dict_named(state_dict, name)
        ours = self.state_dict()
        wrong = [key for key in ours.keys() & state_dict.keys() if ours[key].shape != state_dict[key].shape]
        if wrong:
            key = min(wrong)
            raise LeapformerError(
                f"the checkpoint's {key} is {tuple(state_dict[key].shape)}, this model's {tuple(ours[key].shape)}; use "
                "the vocabulary (dict.txt), the --arch and the --max-positions (--tokens-per-sample) of its training"
            )
        encoder = "encoder.sentence_encoder"
        check_vocabulary(self.encoder.sentence_encoder, state_dict, f"{name}.{encoder}" if name else encoder)


def _check_classes(task: SentencePredictionTask) -> None:
    """Reject fewer classes than labels, whose loss would index beyond the logits."""
    words = task.label_dictionary
    labels = [word for word in words.symbols[words.nspecial :] if not re.fullmatch(r"<mask>|madeupword\d+", word)]
    if not task.cfg.regression_target and task.cfg.num_classes < len(labels):
        raise LeapformerError(
            f"--num-classes {task.cfg.num_classes}: the data has the {len(labels)} labels {', '.join(labels[:5])}"
            f"{', ...' if len(labels) > 5 else ''}; give --num-classes {len(labels)}"
        )


def leapformer_mlm(args: Namespace) -> None:
    """RoBERTa-base, as in the ABC and Luna papers: 12 layers, 768 wide, feed-forward 3,072, 12 heads."""
    fill_options(args, {"abc_slots": "64", "pooling": "cls"})  # ABC, table 12: 64 and 128 slots
    fill_attention_args(args)
    if getattr(args, "max_positions", None) is None:  # --task sentence_ranking needs a number, too
        args.max_positions = getattr(args, "tokens_per_sample", None) or 512
    base_architecture(args)


def _sizes(layers: int, width: int, heads: int, **more: Any) -> Preset:
    sizes = {"layers": layers, "embed_dim": width, "ffn_embed_dim": 4 * width, "attention_heads": heads}
    return {**{f"encoder_{name}": value for name, value in sizes.items()}, **more}


register_presets(
    "leapformer_mlm",
    leapformer_mlm,
    {
        "": {},
        # For two CPU cores. Positions are sinusoidal, and embeddings are scaled: with learned positions, a model needs
        # more text than a CPU reads in an hour before it can tell neighbouring tokens.
        "small": _sizes(4, 256, 4, encoder_learned_pos=False, no_scale_embedding=False),
        "tiny": _sizes(2, 64, 2),  # for tests
    },
)
