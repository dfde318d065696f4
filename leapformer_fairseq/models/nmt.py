"""Text translation: fairseq's transformer with any attention plan in its three blocks."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture, transformer_iwslt_de_en
from torch import Tensor, nn

from ..modules import OfAnyOrigin, add_attention_args, fill_attention_args
from ..support.errors import LeapformerError
from .lengths import add_length_args, fill_length_args
from .task import adapt
from .transformer import Decoder, Encoder


@register_model("leapformer_nmt")
class LeapformerNMTModel(OfAnyOrigin, TransformerModel):
    """Translation with a mechanism per block and layer.

    It has every flag of fairseq's `transformer` and loads its checkpoints (`--finetune-from-model`); only
    `*.mechanism.*` is new.
    """

    tasks = ("translation",)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        add_attention_args(parser)
        add_length_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerNMTModel:
        # Fills what a preset or an older checkpoint left open.
        leapformer_nmt(args)
        adapt(task, args, *cls.tasks)
        if getattr(getattr(task, "cfg", None), "load_alignments", False):
            raise LeapformerError(
                "--load-alignments: attention is not trained on given alignments here; leave it and "
                "label_smoothed_cross_entropy_with_alignment out"
            )
        return super().build_model(args, task)

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: nn.Embedding) -> Encoder:
        return Encoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> Decoder:
        config = TransformerConfig.from_namespace(args)
        return Decoder(config, tgt_dict, embed_tokens, no_encoder_attn=config.no_cross_attention)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **options: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        targets = prev_output_tokens.ne(self.decoder.padding_idx).sum(1)
        encoder_out = self.encoder.learn_length(encoder_out, src_tokens, targets)
        logits, extra = self.decoder(prev_output_tokens, encoder_out=encoder_out, src_lengths=src_lengths, **options)
        extra["encoder_out"] = encoder_out  # for the loss of a length predictor
        return logits, extra

    def set_beam_size(self, beam_size: int) -> None:
        self.decoder.set_beam_size(beam_size)


@register_model_architecture("leapformer_nmt", "leapformer_nmt")
def leapformer_nmt(args: Namespace) -> None:
    """6 + 6 layers, 512 wide, 8 heads, as fairseq's `transformer`."""
    fill_attention_args(args)
    fill_length_args(args)
    base_architecture(args)


@register_model_architecture("leapformer_nmt", "leapformer_nmt_iwslt")
def leapformer_nmt_iwslt(args: Namespace) -> None:
    """IWSLT14 German-English: 6 + 6 layers, 512 wide, feed-forward 1,024, 4 heads, separate embeddings."""
    fill_attention_args(args)
    fill_length_args(args)
    transformer_iwslt_de_en(args)


@register_model_architecture("leapformer_nmt", "leapformer_nmt_iwslt_tied")
def leapformer_nmt_iwslt_tied(args: Namespace) -> None:
    """The same, with shared decoder input and output embeddings."""
    args.share_decoder_input_output_embed = getattr(args, "share_decoder_input_output_embed", True)
    leapformer_nmt_iwslt(args)


@register_model_architecture("leapformer_nmt", "leapformer_nmt_wmt14")
def leapformer_nmt_wmt14(args: Namespace) -> None:
    """WMT14 English-German: the base size, separate embeddings."""
    leapformer_nmt(args)


@register_model_architecture("leapformer_nmt", "leapformer_nmt_wmt14_tied")
def leapformer_nmt_wmt14_tied(args: Namespace) -> None:
    """The same, with all embeddings shared; needs a joined dictionary."""
    args.share_all_embeddings = getattr(args, "share_all_embeddings", True)
    leapformer_nmt_wmt14(args)


@register_model_architecture("leapformer_nmt", "leapformer_nmt_iwslt17")
def leapformer_nmt_iwslt17(args: Namespace) -> None:
    """IWSLT17 in the Sparsefinder paper: 6 + 6 layers, 1,024 wide, feed-forward 4,096, 16 heads, shared embeddings."""
    args.share_all_embeddings = getattr(args, "share_all_embeddings", True)
    args.dropout = getattr(args, "dropout", 0.3)
    _sizes(args, layers=6, width=1024, ffn=4096, heads=16)


@register_model_architecture("leapformer_nmt", "leapformer_nmt_multi30k")
def leapformer_nmt_multi30k(args: Namespace) -> None:
    """Multi30k: 3 + 3 layers, 256 wide, feed-forward 512, 4 heads, dropout 0.3, all embeddings shared."""
    args.share_all_embeddings = getattr(args, "share_all_embeddings", True)
    args.dropout = getattr(args, "dropout", 0.3)
    _sizes(args, layers=3, width=256, ffn=512, heads=4)


@register_model_architecture("leapformer_nmt", "leapformer_nmt_tiny")
def leapformer_nmt_tiny(args: Namespace) -> None:
    """For tests: 2 + 2 layers, 64 wide, 2 heads."""
    _sizes(args, layers=2, width=64, ffn=128, heads=2)


def _sizes(args: Namespace, layers: int, width: int, ffn: int, heads: int) -> None:
    for side in ("encoder", "decoder"):
        for name, value in (
            ("layers", layers),
            ("embed_dim", width),
            ("ffn_embed_dim", ffn),
            ("attention_heads", heads),
        ):
            setattr(args, f"{side}_{name}", getattr(args, f"{side}_{name}", value))
    leapformer_nmt(args)
