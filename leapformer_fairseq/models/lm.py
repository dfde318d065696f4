"""Language models with any attention plan, trained in linear time and generating with a state of constant size.

The sizes and adaptive embeddings are those of Baevski & Auli, 2019 (arXiv:1809.10853), as in the LeaPformer experiments
on WikiText-103 (arXiv:2405.13046, section 4.2).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from fairseq import options
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
    base_lm_architecture,
    transformer_lm_baevski_wiki103,
)
from fairseq.modules import AdaptiveInput
from torch import nn

from ..modules import OfAnyOrigin, add_attention_args, fill_attention_args
from ..support.errors import LeapformerError
from .presets import Preset, register_presets
from .task import adapt
from .transformer import Decoder

# Stands for no limit: fairseq requires a number and does arithmetic with it, so sys.maxsize would overflow.
ANY_LENGTH = 10_000_000


@register_model("leapformer_lm")
class LeapformerLanguageModel(OfAnyOrigin, TransformerLanguageModel):
    """A decoder-only language model with a mechanism per layer."""

    tasks = ("language_modeling",)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)
        add_attention_args(parser, stacks=("decoder",))

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerLanguageModel:
        # Fills what a preset or an older checkpoint left open.
        leapformer_lm(args)
        adapt(task, args, *cls.tasks)
        _check(args, len(task.source_dictionary))
        if getattr(args, "max_target_positions", None) is None:
            args.max_target_positions = getattr(args, "tokens_per_sample", 1024)
        embed_tokens = _embedding(args, task.source_dictionary)
        config = TransformerConfig.from_namespace(args)
        longest = _longest_block(args, task)
        return cls(Decoder(config, task.target_dictionary, embed_tokens, no_encoder_attn=True, target_length=longest))

    def max_positions(self) -> int:
        """The longest text in one pass, in tokens; longer than in training with sinusoidal positions or none."""
        if isinstance(self.decoder.embed_positions, nn.Embedding):
            return self.decoder.max_positions()
        return min(ANY_LENGTH, self.decoder.mechanism_limit())

    max_decoder_positions = max_positions  # what fairseq's generator asks for


def _embedding(args: Namespace, dictionary: Any) -> nn.Module:
    if not args.adaptive_input:
        return LeapformerLanguageModel.build_embedding(args, dictionary, args.decoder_input_dim)
    return AdaptiveInput(
        len(dictionary),
        dictionary.pad(),
        args.decoder_input_dim,
        args.adaptive_input_factor,
        args.decoder_embed_dim,
        options.eval_str_list(args.adaptive_input_cutoff, type=int),
        args.quant_noise_pq,
        args.quant_noise_pq_block_size,
    )


def _check(args: Namespace, words: int) -> None:
    """Reject options that would fail deep inside fairseq or be ignored; `words` is the dictionary's size."""
    if args.character_embeddings:
        raise LeapformerError("--character-embeddings is not supported; use subwords or --adaptive-input")
    if args.adaptive_input and not args.adaptive_input_cutoff:
        raise LeapformerError("--adaptive-input needs --adaptive-input-cutoff, e.g. 20000,60000")
    if args.adaptive_input and args.share_decoder_input_output_embed and args.adaptive_softmax_cutoff is None:
        raise LeapformerError(
            "--share-decoder-input-output-embed: there is no single matrix to share with --adaptive-input; give "
            "--adaptive-softmax-cutoff and --tie-adaptive-weights instead"
        )
    for flag, used, cutoff in (
        ("input", args.adaptive_input, args.adaptive_input_cutoff),
        ("softmax", args.adaptive_softmax_cutoff is not None, args.adaptive_softmax_cutoff),
    ):
        if used and max(options.eval_str_list(cutoff, type=int)) >= words:
            raise LeapformerError(
                f"--adaptive-{flag}-cutoff {cutoff}: the dictionary has only {words} words; cut below that, or use an "
                "--arch without adaptive embeddings"
            )
    if args.tie_adaptive_weights:
        for flag, of_input, of_output in (
            ("factor", args.adaptive_input_factor, args.adaptive_softmax_factor),
            ("cutoff", args.adaptive_input_cutoff, args.adaptive_softmax_cutoff),
            ("dim", args.decoder_input_dim, args.decoder_output_dim),
        ):
            if of_input != of_output or not args.adaptive_input:
                raise LeapformerError(
                    f"--tie-adaptive-weights needs --adaptive-input and the same {flag} on both sides, "
                    f"not {of_input} and {of_output}; set both"
                )


def _longest_block(args: Namespace, task: Any) -> int | None:
    """Tokens per block of text, which every mechanism must support; None if blocks are sentences.

    fairseq silently leaves out blocks that are too long: all of them, or with --sample-break-mode eos a few sentences.
    """
    sentences = getattr(getattr(task, "args", None), "sample_break_mode", None) == "eos"
    return None if sentences else getattr(args, "tokens_per_sample", None)


def leapformer_lm(args: Namespace, preset: Callable[[Namespace], None] = base_lm_architecture) -> None:
    """Fill unset options with those of fairseq's preset, pre-norm by default."""
    normalize_before = getattr(args, "decoder_normalize_before", True)
    fill_attention_args(args, encoder=False)
    preset(args)
    args.decoder_normalize_before = normalize_before  # the preset sets it, whatever the user chose


def _small(layers: int, width: int, heads: int, **more: Any) -> Preset:
    sizes = {"layers": layers, "embed_dim": width, "ffn_embed_dim": 4 * width, "attention_heads": heads}
    return {**{f"decoder_{name}": value for name, value in sizes.items()}, **more}


_BIG = {"decoder_embed_dim": 1024, "decoder_ffn_embed_dim": 4096}
register_presets(
    "leapformer_lm",
    leapformer_lm,
    {
        "": {},  # 6 layers, 512 wide, 8 heads
        "wiki2": _small(4, 128, 4, share_decoder_input_output_embed=True),  # for WikiText-2 on two CPU cores
        "tiny": _small(2, 64, 2),  # for tests
    },
)
# 16 layers, 8 heads, adaptive embeddings cut at 20,000 and 60,000.
register_presets(
    "leapformer_lm",
    partial(leapformer_lm, preset=transformer_lm_baevski_wiki103),
    {
        "wiki103": {"decoder_embed_dim": 512, "decoder_ffn_embed_dim": 2048},  # the LeaPformer paper's size
        "wiki103_big": _BIG,  # the size in the paper's public scripts and of the ABC paper
        "wiki103_32": {**_BIG, "decoder_layers": 32},  # ABC, table 10; use it with `--decoder-layerdrop 0.2`
    },
)
