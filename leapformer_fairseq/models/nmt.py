"""Text translation: fairseq's transformer with any attention plan in its three blocks."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import Tensor, nn

from ..modules import OfAnyOrigin, add_attention_args, fill_attention_args
from ..support.errors import LeapformerError
from .encoder_out import add_length_args, fill_length_args
from .presets import Preset, on_both_sides, register_presets
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


def leapformer_nmt(args: Namespace) -> None:
    """6 + 6 layers, 512 wide, 8 heads, as fairseq's `transformer`."""
    fill_attention_args(args)
    fill_length_args(args)
    base_architecture(args)


def _sizes(layers: int, width: int, ffn: int, heads: int, **more: Any) -> Preset:
    return {**on_both_sides(layers=layers, embed_dim=width, ffn_embed_dim=ffn, attention_heads=heads), **more}


_IWSLT = _sizes(6, 512, 1024, 4)  # IWSLT14 German-English, with separate embeddings
register_presets(
    "leapformer_nmt",
    leapformer_nmt,
    {
        "": {},
        "iwslt": _IWSLT,
        "iwslt_tied": {**_IWSLT, "share_decoder_input_output_embed": True},
        "wmt14": {},  # English-German: the base size, separate embeddings
        "wmt14_tied": {"share_all_embeddings": True},  # needs a joined dictionary
        "iwslt17": _sizes(6, 1024, 4096, 16, share_all_embeddings=True, dropout=0.3),  # of the Sparsefinder paper
        "multi30k": _sizes(3, 256, 512, 4, share_all_embeddings=True, dropout=0.3),
        "tiny": _sizes(2, 64, 128, 2),  # for tests
    },
)
