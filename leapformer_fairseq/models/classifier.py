"""Classifiers of one or two sequences with any attention plan in the encoder, as in Long Range Arena.

Presets: the sizes of Tay et al., 2021 (arXiv:2011.04006), which Luna uses (Ma et al., 2021, arXiv:2106.01540, section
4.1), and of LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046, appendix A.10), which are those of Skyformer (Chen
et al., 2021, arXiv:2111.00035).
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from fairseq.utils import get_available_activation_fns
from torch import Tensor, nn

from ..attention import Option, sinusoids
from ..modules import (
    OfAnyOrigin,
    PassContext,
    add_attention_args,
    add_options,
    fill_attention_args,
    fill_options,
    swap_attention,
)
from ..support.errors import LeapformerError
from .presets import Preset, register_presets
from .task import adapt

STD = 0.02  # initial standard deviation of position embeddings, and the default for tokens
PAD = 0
OPTIONS = (
    Option("encoder_layers", 2, "layers", least=1),
    Option("encoder_embed_dim", 64, "width of the encoder", least=1),
    Option("encoder_attention_heads", 2, "attention heads", least=1),
    Option("encoder_ffn_embed_dim", 128, "width of the feed-forward layers", least=1),
    Option("encoder_normalize_before", True, "pre-norm layers"),
    Option("classifier_width", 128, "width of the classifier's hidden layer", least=1),
    Option(
        "pairs",
        "products",
        "input of the classifier for two sequences: a, b, their product and difference (products), or a and b, with "
        "one more hidden layer, half as wide (concatenated)",
        ("products", "concatenated"),
    ),
    Option("embedding_std", STD, "initial standard deviation of token embeddings", above=0),
    Option("activation_fn", "gelu", "of feed-forward layers: gelu, relu, ..."),
    Option("dropout", 0.1, "dropout"),
    Option("attention_dropout", 0.1, "dropout of attention weights"),
    Option("activation_dropout", 0.0, "dropout after the activation"),
    Option(
        "max_positions",
        4096,
        "length of the longest sequence, plus one with --pooling cls, for the mark before it; the task cuts sequences "
        "at --longest",
        least=1,
    ),
    Option("positions", "learned", "position embeddings, or none", ("learned", "sinusoidal", "none")),
    Option(
        "pooling",
        "cls",
        "input of the classifier: the state of a mark before the sequence (cls), or the mean over its tokens (mean), "
        "over the carry of the last layer that has one (packed; Luna), or over tokens and padding, which counts as "
        "zeros (padded-mean)",
        ("cls", "mean", "packed", "padded-mean"),
    ),
    Option("checkpoint_activations", False, "recompute layers in the backward pass: less memory"),
)


class Encoder(nn.Module):
    """Embeddings, transformer layers, and a final norm if layers are pre-norm: tokens (B, T) to states (B, T, C)."""

    context: PassContext

    def __init__(self, args: Namespace, vocabulary: int) -> None:
        super().__init__()
        width = args.encoder_embed_dim
        self.embed_tokens = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embed_tokens.weight, std=args.embedding_std)
        self.embed_positions = nn.Embedding(args.max_positions, width) if args.positions == "learned" else None
        if self.embed_positions is not None:
            nn.init.normal_(self.embed_positions.weight, std=STD)
        self.sinusoidal = args.positions == "sinusoidal"
        self.dropout_module = FairseqDropout(args.dropout, module_name=type(self).__name__)
        config = TransformerConfig.from_namespace(args)
        self.layers = nn.ModuleList(TransformerEncoderLayerBase(config) for _ in range(args.encoder_layers))
        self.layer_norm = nn.LayerNorm(width) if args.encoder_normalize_before else None
        self.context = swap_attention(self, "encoder", args)
        if args.checkpoint_activations:
            self.layers = nn.ModuleList(checkpoint_wrapper(layer) for layer in self.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens.eq(PAD)
        x = self.embed_tokens(tokens)
        if self.embed_positions is not None:
            x = x + self.embed_positions.weight[: tokens.shape[1]]
        if self.sinusoidal:
            x = x + sinusoids(torch.arange(1, tokens.shape[1] + 1, device=x.device), x.shape[2]).to(x.dtype)
        x = self.dropout_module(x).transpose(0, 1)
        mask = padding if padding.any() else None
        for layer in self.layers:
            x = layer(x, mask)
        x = x.transpose(0, 1)
        return x if self.layer_norm is None else self.layer_norm(x)


@register_model("leapformer_classifier")
class LeapformerClassifier(OfAnyOrigin, BaseFairseqModel):
    """Class scores, for `--task leapformer_classification` and the criterion of the same name."""

    tasks = ("leapformer_classification",)

    def __init__(self, args: Namespace, encoder: Encoder, classes: int, inputs: int, mark: int) -> None:
        super().__init__()
        self.args, self.encoder, self.inputs, self.mark = args, encoder, inputs, mark
        products = args.pairs == "products"
        features = 1 if inputs == 1 else 4 if products else 2
        widths = [features * args.encoder_embed_dim, args.classifier_width]
        if inputs == 2 and not products:
            widths.append(max(1, args.classifier_width // 2))
        hidden = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
        self.classifier = nn.Sequential(*hidden, nn.Linear(widths[-1], classes))

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        add_options(parser, OPTIONS)
        parser.add_argument(
            "--freeze", metavar="REGEX", help="do not train parameters whose names contain a match (default: none)"
        )
        add_attention_args(parser, ("encoder",))

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerClassifier:
        leapformer_classifier(args)
        about = getattr(task, "about", None)
        if about is None:
            raise LeapformerError("--arch leapformer_classifier needs --task leapformer_classification")
        _check_data(args, about)
        _check_sizes(args)
        adapt(task, args, *cls.tasks)
        encoder = Encoder(args, about.vocabulary)
        if args.pooling == "packed" and encoder.context.facts.carrier is None:
            raise LeapformerError(
                f"--pooling packed: no layer of {args.encoder_self_attention!r} has a carry; give luna, or --pooling "
                "cls or mean"
            )
        # The last number of a vocabulary is the mark, see `data.arrays`.
        model = cls(args, encoder, about.classes, about.inputs, about.vocabulary - 1)
        if args.freeze:
            _freeze(model, args.freeze)
        return model

    def forward(self, tokens: list[Tensor]) -> Tensor:
        """Classify one or two batches of sequences (B, T): logits (B, classes)."""
        if len(tokens) != self.inputs:
            raise LeapformerError(f"{len(tokens)} sequences per example, but the model was built for {self.inputs}")
        pooled = [self.pooled(sequences) for sequences in tokens]
        if self.inputs == 2:
            a, b = pooled
            pooled = [a, b, a * b, a - b] if self.args.pairs == "products" else [a, b]
        return self.classifier(torch.cat(pooled, -1))

    def pooled(self, tokens: Tensor) -> Tensor:
        """Encode and pool sequences (B, T): one vector each, (B, C)."""
        if self.args.pooling == "cls":
            tokens = torch.cat([tokens.new_full((len(tokens), 1), self.mark), tokens], 1)
        # With the mark, images of LRA presets are one token too long, see LRA_POSITIONS.
        tokens = tokens[:, : self.args.max_positions]
        self.encoder.context.carry = None  # of the last batch, which the first layer must not receive
        x = self.encoder(tokens)
        if self.args.pooling == "cls":
            return x[:, 0]
        keep = tokens.ne(PAD)
        if self.args.pooling == "padded-mean":
            return x.masked_fill(~keep.unsqueeze(-1), 0).mean(1)
        if self.args.pooling == "packed":
            values, kept = self.encoder.context.hand_over(len(tokens))
            # Layers that read a carry normalise it, too.
            x = nn.functional.layer_norm(values, values.shape[-1:]).to(x.dtype)
            keep = x.new_ones(x.shape[:2], dtype=torch.bool) if kept is None else kept
        keep = keep.unsqueeze(-1)
        return x.masked_fill(~keep, 0).sum(1) / keep.sum(1).clamp(min=1)

    def max_positions(self) -> int:
        """The maximum length of a sequence, without the mark of --pooling cls."""
        return self.args.max_positions - (self.args.pooling == "cls")


def _check_data(args: Namespace, about: Any) -> None:
    """Record the properties of the data in the model's options, so that checkpoints keep them.

    Raises LeapformerError if a checkpoint was trained on data with other properties.
    """
    for name, value in asdict(about).items():
        trained = getattr(args, f"data_{name}", None)
        if trained is not None and trained != value:
            raise LeapformerError(
                f"the data has {name} {value}, the checkpoint was trained with {trained}; give data like that of its "
                "training"
            )
        setattr(args, f"data_{name}", value)


def _check_sizes(args: Namespace) -> None:
    """Raise LeapformerError for sizes with which no model can be built."""
    for option in OPTIONS:
        option.check(getattr(args, option.name))
    if args.encoder_embed_dim % args.encoder_attention_heads:
        raise LeapformerError(
            f"--encoder-attention-heads {args.encoder_attention_heads}: heads share --encoder-embed-dim "
            f"{args.encoder_embed_dim} evenly; give a divisor of it"
        )
    if args.activation_fn not in (functions := get_available_activation_fns()):
        raise LeapformerError(f"--activation-fn {args.activation_fn}: choose from {', '.join(functions)}")


def _freeze(model: nn.Module, pattern: str) -> None:
    try:
        frozen = [p for name, p in model.named_parameters() if re.search(pattern, name)]
    except re.error as error:
        raise LeapformerError(f"--freeze {pattern}: not a regular expression ({error})") from error
    if not frozen:
        raise LeapformerError(f"--freeze {pattern}: no parameter of the model has such a name")
    for parameter in frozen:
        parameter.requires_grad_(False)


def leapformer_classifier(args: Namespace) -> None:
    """The sizes of `leapformer_classifier_lra_text`, for sequences of up to 4,095 tokens."""
    fill_options(args, {"freeze": None, **{option.name: option.default for option in OPTIONS}})
    fill_attention_args(args)


def _sizes(layers: int, width: int, heads: int, ffn: int, longest: int, **more: Any) -> Preset:
    return {
        "encoder_layers": layers,
        "encoder_embed_dim": width,
        "encoder_attention_heads": heads,
        "encoder_ffn_embed_dim": ffn,
        "classifier_width": ffn,
        "max_positions": longest,
        **more,
    }


# LeaPformer, appendix A.10: 2 layers, 64 wide, 2 heads, feed-forward 128. Position tables are as long as in its code:
# for images, without a place for the mark, so the last pixel is cut off.
LRA_POSITIONS = {"listops": 2048, "text": 4096, "retrieval": 4096, "pathfinder": 1024, "image": 1024}
PRESETS: dict[str, Preset] = {"": {}} | {
    f"lra_{task}": _sizes(2, 64, 2, 128, longest) for task, longest in LRA_POSITIONS.items()
}


def _tay(*sizes: int, dropout: float = 0.1, **more: Any) -> Preset:
    """Sizes, with dropout after the activation and embeddings of variance 1, as in all models of Tay et al.'s code."""
    more = {"positions": "sinusoidal", "embedding_std": 1.0, **more}
    return _sizes(*sizes, dropout=dropout, activation_dropout=dropout, **more)


# Tay et al.'s sizes, which Luna uses (section 4.1). Our encoder cannot have embeddings wider than attention. Image:
# 64 (theirs: embeddings 128, attention 64), as in Luna's repository. Pathfinder: 32 (theirs: 32 and 16).
PRESETS |= {
    "luna_listops": _tay(4, 512, 8, 1024, 2001),
    "luna_text": _tay(4, 256, 4, 1024, 4001),
    "luna_retrieval": _tay(4, 128, 4, 512, 4001, pairs="concatenated"),
    "luna_image": _tay(1, 64, 8, 128, 1025, positions="learned", dropout=0.3, attention_dropout=0.2),
    "luna_pathfinder": _tay(4, 32, 4, 32, 1025, pooling="mean", dropout=0.2),
}
register_presets("leapformer_classifier", leapformer_classifier, PRESETS)
