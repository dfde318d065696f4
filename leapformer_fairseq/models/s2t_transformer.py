"""fairseq's `s2t_transformer` with any attention plan: gated convolutions over time, then a transformer.

Wang et al., 2020, arXiv:2010.05171. The weights have fairseq's names, so its checkpoints load.

Shapes: B utterances, T frames, S = ceil(T / 2^convolutions) states, C width.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model
from fairseq.models.speech_to_text import s2t_transformer
from fairseq.models.speech_to_text.modules.convolution import Conv1dSubsampler
from torch import Tensor

from ..modules import add_attention_args, add_options, fill_attention_args, fill_options, swap_attention
from .encoder_out import add_length_args, build_length_predictor, fill_length_args
from .presets import register_presets
from .s2t import AUGMENTATION, STRIDED, LeapformerS2TModel, SpeechEncoder, through_convolutions

SIZES = ("", "xs", "s", "sp", "m", "mp", "l", "lp")  # fairseq's


class S2TTransformerEncoder(SpeechEncoder, s2t_transformer.S2TTransformerEncoder):
    """fairseq's encoder with swapped attention. It sees whole utterances."""

    def __init__(self, args: Namespace, vocabulary: int) -> None:
        args.tgt_dict_size = vocabulary
        super().__init__(args)
        self.dropout = args.dropout
        self.context = swap_attention(self, "encoder", args)
        self.length_predictor = build_length_predictor(args, args.encoder_embed_dim)

    def pooling_ratio(self) -> int:
        """The number of frames of a state."""
        over_time = isinstance(self.subsample, Conv1dSubsampler)
        return 2 ** (len(self.subsample.conv_layers) if over_time else STRIDED)

    def convolve(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(self.subsample, Conv1dSubsampler):
            return through_convolutions(self.subsample.conv, self.subsample.out, frames, lengths)
        x = frames.transpose(1, 2)
        for convolution in self.subsample.conv_layers:
            count, lengths = (x.shape[2] + 1) // 2, (lengths + 1) // 2
            x = F.glu(convolution(x), 1)[..., :count]  # an even kernel makes one more
            real = torch.arange(count, device=x.device) < lengths.unsqueeze(1)
            x = x * real.unsqueeze(1).to(x.dtype)
        return x.permute(2, 0, 1), lengths


@register_model("leapformer_s2t_transformer")
class LeapformerS2TTransformerModel(LeapformerS2TModel):
    """Speech recognition and offline speech translation as fairseq's, with a mechanism per block and layer."""

    encoder_class = S2TTransformerEncoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        s2t_transformer.S2TTransformerModel.add_args(parser)
        add_options(parser, AUGMENTATION)
        add_attention_args(parser)
        add_length_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerS2TModel:
        # Before the defaults of the other convolutions.
        _fill(s2t_transformer.base_architecture, args)
        return super().build_model(args, task)


def _fill(size: Callable[[Namespace], None], args: Namespace) -> None:
    fill_options(args, {option.name: option.default for option in AUGMENTATION})
    fill_attention_args(args)
    fill_length_args(args)
    size(args)


for _size in SIZES:
    _stock = ARCH_CONFIG_REGISTRY[f"s2t_transformer_{_size}".rstrip("_")]
    register_presets("leapformer_s2t_transformer", partial(_fill, _stock), {_size: {}})
