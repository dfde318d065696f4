"""Speech recognition and offline speech translation: a ConvTransformer with any attention plan.

Two strided convolutions, then a transformer (ESPnet-ST, Inaguma et al., 2020, arXiv:2004.10234), as in the LeaPformer
and MLA experiments.

Shapes: B utterances, T frames, C width.
"""

from __future__ import annotations

from abc import abstractmethod
from argparse import ArgumentParser, Namespace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from fairseq.data.data_utils import lengths_to_padding_mask
from fairseq.models import register_model
from fairseq.models.speech_to_text.convtransformer import (
    ConvTransformerEncoder,
    ConvTransformerModel,
    base_architecture,
)
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from ..attention import ChunkMask, Option, sinusoids
from ..modules import (
    OfAnyOrigin,
    add_attention_args,
    add_options,
    fill_attention_args,
    fill_options,
    load_component,
    swap_attention,
)
from ..support.errors import LeapformerError
from .encoder_out import EncoderOut, PassingEncoder, add_length_args, build_length_predictor, fill_length_args
from .presets import Preset, on_both_sides, register_presets
from .streaming_encoder import (
    ArrivingSource,
    add_chunk_args,
    chunks_of,
    drop_look_ahead,
    fill_chunk_args,
    lay_out_chunks,
)
from .task import adapt
from .transformer import Decoder

STRIDED = 2  # convolutions with stride 2: an encoder state stands for four frames
DEFAULT_KERNELS = (3, 3)
OPTIONS = (
    Option(
        "conv_kernel_sizes",
        "3,3",
        "kernels of the convolutions before the encoder; the first two halve the length",
    ),
    Option(
        "encoder_freezing_updates",
        0,
        "do not train the encoder in the first X updates, which then take 0.6 of the time; for an encoder of "
        "--load-pretrained-encoder-from",
    ),
)
AUGMENTATION = (
    Option(
        "join_sentences",
        1,
        "train on up to X recordings joined to one, with and without pauses, so that the model learns to go on after "
        "the end of a sentence; a batch then has (X + 1) / 2 times as many frames on average",
    ),
    Option(
        "speed_perturbation",
        0.0,
        "train on recordings played at rates drawn from 1 - X to 1 + X, with durations and frequencies changed; 0.1 is "
        "usual",
    ),
)


class SpeechEncoder(PassingEncoder):
    """Mixin for fairseq's speech encoders: a sentence is encoded the same alone and in a batch.

    Padding is zeroed between the convolutions, and lengths are updated exactly. `chunks`: the mask of a streaming
    encoder; None: a full-context encoder.
    """

    chunks: ChunkMask | None = None

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, **unused: Any) -> EncoderOut:
        """Encode filterbanks (B, T, n_bins): states (S, B, C) and a padding mask (B, S), S = ceil(T / 4)."""
        return self.encode(*self.convolve(src_tokens, src_lengths))

    @abstractmethod
    def convolve(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve frames (B, T, n_bins) to (S, B, C), and return these with the new lengths (B,)."""

    def encode(self, x: Tensor, lengths: Tensor) -> EncoderOut:
        """The part of `forward` after the convolutions, whose output is (T / 4, B, C), with lengths (B,)."""
        padding = lengths_to_padding_mask(lengths)
        # The mask is as long as the longest sentence, which in a part of a batch may be shorter than x.
        padding = F.pad(padding, (0, len(x) - padding.shape[1]), value=True)
        # Position embeddings count the tokens that are not padding (index 1), so the mask serves as tokens.
        x = self.embed_scale * x + self.embed_positions(padding).transpose(0, 1)
        x = F.dropout(x, p=self.dropout, training=self.training)
        self.context.carry = None  # of the last batch, which the first layer must not receive
        if self.chunks is None:
            x = self._through_layers(x, padding)
        else:
            count = len(x)
            x, self.context.tokens = lay_out_chunks(x, count, self.chunks, keep=~padding)
            x = drop_look_ahead(self._through_layers(x), count, self.chunks)
        encoder_out: EncoderOut = {
            "encoder_out": [x],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [],
            "encoder_states": [],
            "src_tokens": [],
            "src_lengths": [],
        }
        return self.with_carry(encoder_out)

    def _through_layers(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        for i in range(len(self.transformer_layers)):
            x = self.transformer_layers[i](x, padding)
        return x if self.layer_norm is None else self.layer_norm(x)


class S2TEncoder(SpeechEncoder, ConvTransformerEncoder):
    """fairseq's convolutional encoder with swapped attention and a recognition head if `--ctc-weight` asks for one.

    Unlike in fairseq's, the final layer norm of pre-norm models is applied.
    """

    def __init__(self, args: Namespace, vocabulary: int) -> None:
        super().__init__(args)
        kernels = kernel_sizes(args.conv_kernel_sizes)
        if kernels != DEFAULT_KERNELS:
            if chunks_of(args) is not None:
                raise LeapformerError(
                    f"--conv-kernel-sizes {args.conv_kernel_sizes}: a streaming encoder has "
                    f"{','.join(map(str, DEFAULT_KERNELS))}; leave one of the two out"
                )
            self.conv = convolutions(kernels, args.conv_out_channels)
        self.ctc_proj = nn.Linear(args.encoder_embed_dim, vocabulary) if getattr(args, "ctc_weight", 0) > 0 else None
        self.chunks = chunks_of(args)
        self.context = swap_attention(self, "encoder", args, chunks=self.chunks)
        self.length_predictor = build_length_predictor(args, args.encoder_embed_dim)

    def extend(self, source: ArrivingSource, frames: Tensor, final: bool = False) -> Tensor:
        """Read more frames (n, n_bins) of an utterance and return the states (m, 1, C) that became final; m may be 0.

        They equal those of `forward` on the whole utterance, however it is cut. `final` marks the last frames. Raises
        LeapformerError for a full-context encoder.
        """
        if self.chunks is None:
            raise LeapformerError(
                "this encoder sees whole utterances; train with --encoder-causal or --encoder-chunk-ms to extend them"
            )
        new = self._embedded(source, frames, final)
        states = new if source.waiting is None else torch.cat([source.waiting, new])
        # Only whole chunks whose look-ahead has arrived are final.
        complete = max(0, len(states) - self.chunks.ahead) // self.chunks.size * self.chunks.size
        count = len(states) if final else complete
        source.waiting = states[count:]
        if not count:
            return states[:0]
        visible = states[: count + self.chunks.ahead]
        x, self.context.tokens = lay_out_chunks(visible, count, self.chunks, source.n_states - len(states))
        # Attention layers then continue from the states of earlier chunks instead of empty ones.
        self.context.states = source.states
        try:
            return drop_look_ahead(self._through_layers(x), count, self.chunks)
        finally:
            self.context.states = None

    def _embedded(self, source: ArrivingSource, frames: Tensor, final: bool) -> Tensor:
        """Convolve more frames (n, n_bins): inputs (m, 1, C) of the first layer, with positions."""
        fresh = source.fresh + len(frames)
        buffered = frames if source.frames is None else torch.cat([source.frames, frames])
        usable = fresh if final else fresh - fresh % self.pooling_ratio()
        convolved = buffered[: len(buffered) - (fresh - usable)]
        # The last four frames are convolved again, as the left context of the new ones; their state is dropped.
        before = min(1, source.n_states)
        source.fresh = fresh - usable
        source.frames = buffered[max(0, len(convolved) - self.pooling_ratio()) :] if len(convolved) else buffered
        if not usable:
            return frames.new_zeros(0, 1, self.out.out_features)
        x, _ = self.convolve(convolved.unsqueeze(0), torch.tensor([len(convolved)], device=frames.device))
        x = x[before:]
        positions = self._positions(source.n_states, len(x))
        source.n_states += len(x)
        return self.embed_scale * x + positions.to(x).unsqueeze(1)

    def _positions(self, start: int, count: int) -> Tensor:
        """Position embeddings (count, C) of the states from `start`, counted from 0, also beyond the table's end."""
        table, first = self.embed_positions, self.padding_idx + 1 + start
        weights = table.weights  # read once: another thread may replace it by a larger one
        if first + count <= len(weights):
            return weights[first : first + count]
        return sinusoids(torch.arange(first, first + count, device=weights.device), table.embedding_dim)

    def convolve(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return through_convolutions(self.conv, self.out, frames, lengths)


def through_convolutions(
    layers: nn.Sequential, out: nn.Linear, frames: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Frames (B, T, n_bins) after convolutions over time and frequency and a projection: (S, B, C), lengths (B,)."""
    x = frames.unsqueeze(1)
    for layer in layers:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            lengths = (lengths + layer.stride[0] - 1) // layer.stride[0]
            real = torch.arange(x.shape[2], device=x.device) < lengths.unsqueeze(1)
            x = x * real[:, None, :, None].to(x.dtype)
    return out(x.permute(2, 0, 1, 3).flatten(2)), lengths


def kernel_sizes(text: str) -> tuple[int, ...]:
    """Parse kernel sizes such as "3,3". Raises LeapformerError unless they are at least two positive numbers."""
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) < STRIDED or min(sizes) < 1:
        raise LeapformerError(f"--conv-kernel-sizes {text}: give at least {STRIDED} positive numbers, as in 3,3")
    return sizes


def convolutions(kernels: tuple[int, ...], channels: int) -> nn.Sequential:
    """Convolutions over time and frequency with ReLUs; the first two halve both sizes, rounded up."""
    layers: list[nn.Module] = []
    for i, kernel in enumerate(kernels):
        before, after = (kernel - 1) // 2, kernel // 2  # an even kernel has one more column of padding after
        stride = 2 if i < STRIDED else 1
        layers += [
            nn.ZeroPad2d((before, after, before, after)),
            nn.Conv2d(channels if i else 1, channels, kernel, stride=stride),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


@register_model("leapformer_s2t")
class LeapformerS2TModel(OfAnyOrigin, ConvTransformerModel):
    """Speech recognition and offline speech translation with a mechanism per block and layer."""

    tasks = ("speech_to_text",)

    encoder_class: ClassVar[type[SpeechEncoder]] = S2TEncoder
    decoder_class: ClassVar[type[Decoder]] = Decoder
    encoder_freezing_updates: int  # the encoder gets no gradients in the first updates
    num_updates = 0  # so far

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each update."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        ConvTransformerModel.add_args(parser)
        add_options(parser, (*OPTIONS, *AUGMENTATION))
        add_chunk_args(parser)
        add_attention_args(parser)
        add_length_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerS2TModel:
        # Fills what a preset or an older checkpoint left open.
        leapformer_s2t(args)
        adapt(task, args, *cls.tasks)
        args.vocabulary = len(task.target_dictionary)  # for the CTC head: fairseq's build_encoder gets no task
        model = super().build_model(args, task)
        model.encoder_freezing_updates = args.encoder_freezing_updates
        return model

    @classmethod
    def build_encoder(cls, args: Namespace) -> SpeechEncoder:
        encoder = cls.encoder_class(args, args.vocabulary)
        if getattr(args, "load_pretrained_encoder_from", None):
            load_component(encoder, "encoder", args.load_pretrained_encoder_from, args)
        return encoder

    @classmethod
    def build_decoder(cls, args: Namespace, task: Any, embed_tokens: nn.Embedding) -> Decoder:
        decoder = cls.decoder_class(TransformerConfig.from_namespace(args), task.target_dictionary, embed_tokens)
        if getattr(args, "load_pretrained_decoder_from", None):
            load_component(decoder, "decoder", args.load_pretrained_decoder_from, args)
        return decoder

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        # Not by requires_grad: fairseq's optimizer takes the parameters that require gradients at its creation.
        trained = self.num_updates >= self.encoder_freezing_updates
        with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
            encoder_out = self.encoder(src_tokens=src_tokens, src_lengths=src_lengths)
        targets = prev_output_tokens.ne(self.decoder.padding_idx).sum(1)
        encoder_out = self.encoder.learn_length(encoder_out, src_tokens, targets)
        logits, extra = self.decoder(prev_output_tokens=prev_output_tokens, encoder_out=encoder_out)
        extra["encoder_out"] = encoder_out  # for the losses of recognition and of a length predictor
        return logits, extra

    def set_beam_size(self, beam_size: int) -> None:
        self.decoder.set_beam_size(beam_size)

    # fairseq's criterion with CTC calls these two.
    def get_ctc_output(self, net_output: Any, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Log probabilities (S, B, V) of the recognition head, and lengths (B,) in encoder states."""
        encoder_out: EncoderOut = net_output[1]["encoder_out"]
        logits = self.encoder.ctc_proj(encoder_out["encoder_out"][0])
        return logits.float().log_softmax(-1), (~encoder_out["encoder_padding_mask"][0]).sum(1)

    def get_ctc_target(self, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return sample["target"], sample["target_lengths"]


def leapformer_s2t(args: Namespace) -> None:
    """The LeaPformer paper's size: 12 encoder and 6 decoder layers, 256 wide, 8 heads, pre-norm."""
    fill_options(args, _sizes(12, 6, 256, 1024, 8))
    fill_options(args, {option.name: option.default for option in (*OPTIONS, *AUGMENTATION)})
    fill_attention_args(args)
    fill_chunk_args(args)
    fill_length_args(args)
    base_architecture(args)


def _sizes(encoder_layers: int, decoder_layers: int, width: int, ffn: int, heads: int, **more: Any) -> Preset:
    layers = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    wide = {"encoder_embed_dim": width, "encoder_ffn_embed_dim": ffn}
    return {**layers, **wide, **on_both_sides(attention_heads=heads, normalize_before=True), **more}


PRESETS = {
    "": {},
    # The Modular Linearized Attention paper's size (section 7.2.2). It does not say which of the four convolutions
    # halve the length; here the first two do. `--conv-kernel-sizes 3,3` is ESPnet's.
    "mla": _sizes(6, 6, 256, 1024, 8, conv_kernel_sizes="4,4,4,4"),
    "mla_224": _sizes(6, 6, 224, 1024, 4, conv_kernel_sizes="4,4,4,4"),  # the same paper, table 9
    "tiny": _sizes(4, 2, 128, 256, 2, conv_out_channels=16),  # for two CPU cores: the quickstart and the tests
}
register_presets("leapformer_s2t", leapformer_s2t, PRESETS)
