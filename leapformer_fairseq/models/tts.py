"""Text to speech: fairseq's TransformerTTS with any attention plan in its three blocks.

It writes several log-mel frames per decoder step (Li et al., 2019, arXiv:1809.08895), as in the Modular Linearized
Attention experiments.

Shapes: B sentences, S phonemes, T decoder steps, F values per step (mel channels times frames).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, cast

import torch
from fairseq.data.data_utils import lengths_to_padding_mask
from fairseq.models import register_model
from fairseq.models.text_to_speech.tts_transformer import (
    TTSTransformerDecoder,
    TTSTransformerEncoder,
    TTSTransformerModel,
    base_architecture,
)
from torch import Tensor, nn

from ..modules import (
    IncrementalState,
    OfAnyOrigin,
    add_attention_args,
    attentions,
    check_vocabulary,
    fill_attention_args,
    fill_options,
    remember_vocabulary,
    swap_attention,
)
from ..support.errors import LeapformerError
from .encoder_out import (
    EncoderOut,
    PassingEncoder,
    add_length_args,
    build_length_predictor,
    fill_length_args,
    predicted_length,
    receiving,
)
from .presets import Preset, on_both_sides, register_presets
from .task import adapt


class TTSEncoder(PassingEncoder, TTSTransformerEncoder):
    """fairseq's phoneme encoder with swapped attention, and with padding zeroed between its convolutions.

    A sentence is therefore encoded the same alone and in a batch, except that batch normalisation in training depends
    on the batch.
    """

    def __init__(self, args: Namespace, dictionary: Any, embed_speaker: nn.Embedding | None) -> None:
        super().__init__(args, dictionary, embed_speaker)
        remember_vocabulary(self, dictionary)
        self.context = swap_attention(self, "encoder", args)
        self.length_predictor = build_length_predictor(
            args, args.encoder_embed_dim, dictionary, args.n_frames_per_step, timed=True
        )

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, speaker: Tensor | None = None, **unused: Any
    ) -> EncoderOut:
        """Encode phonemes (B, S), padded on the right: states (S, B, C)."""
        padding = src_tokens.eq(self.padding_idx)
        x = convolved(self.prenet, self.embed_tokens(src_tokens), ~padding)
        # Position embeddings count the tokens that are not padding (index 1), so the mask serves as tokens.
        x = self.prenet_proj(x) + self.pos_emb_alpha * self.embed_positions(padding)
        x = self.dropout_module(x).transpose(0, 1)
        self.context.carry = None
        for i in range(len(self.transformer_layers)):
            x = self.transformer_layers[i](x, padding)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.embed_speaker is not None:
            voice = self.embed_speaker(speaker).transpose(0, 1).expand(len(x), -1, -1)
            x = self.spk_emb_proj(torch.cat([x, voice], 2))
        encoder_out: EncoderOut = {
            "encoder_out": [x],
            "encoder_padding_mask": [padding] if padding.any() else [],
            "encoder_embedding": [],
            "encoder_states": [],
            "src_tokens": [],
            "src_lengths": [],
        }
        return self.with_carry(encoder_out)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> dict[str, Tensor]:
        check_vocabulary(self, state_dict, name)
        return super().upgrade_state_dict_named(state_dict, name)


class TTSDecoder(TTSTransformerDecoder):
    """fairseq's decoder of mel frames with swapped attention, and with padding zeroed between post-net convolutions.

    The end of an utterance is therefore the same alone and in a batch.
    """

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        self.context = swap_attention(self, "decoder", args, length_known=args.length_predictor is not None)
        self.guided = False
        if getattr(args, "use_guided_attention_loss", False):
            self.guide()

    def guide(self) -> None:
        """Return the last layer's alignment in training, for a loss that guides attention."""
        # Weights take quadratic memory, so only the layer that the loss reads composes them.
        self.guided = self.transformer_layers[-1].encoder_attn.weights_in_training = True

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """Return no mask: self-attention is causal by construction, and a (T, T) mask would be quadratic."""
        return tensor.new_empty(0)

    def extract_features(
        self,
        prev_outputs: Tensor,
        encoder_out: EncoderOut | None = None,
        incremental_state: IncrementalState | None = None,
        target_lengths: Tensor | None = None,
        speaker: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        true_lengths = target_lengths if incremental_state is None else None
        with receiving(self.context, encoder_out, true_lengths):
            x, extra = super().extract_features(prev_outputs, encoder_out, incremental_state, target_lengths, speaker)
        alignment = extra["attn"] if self.guided and incremental_state is None else None
        if alignment is not None and encoder_out is not None:  # only for the loss: generation shows the weights
            extra["attn"] = spread(alignment, *encoder_out["encoder_padding_mask"])
        return x, extra

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None = None,
        incremental_state: IncrementalState | None = None,
        target_lengths: Tensor | None = None,
        speaker: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return frames (B, T, F) after the post-net, logits of the end of speech (B, T, 1), and extra results.

        In generation, frames are those before the post-net, which needs neighbouring frames: call `refine` for the
        whole utterance at the end.
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, target_lengths, speaker)
        frames = self.feat_proj(x)
        refined = frames if incremental_state is not None else self.refine(frames, cast(Tensor, target_lengths))
        return refined, self.eos_proj(x), {**extra, "feature_out": frames}

    def refine(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Apply the post-net to frames (B, T, F) with `lengths` (B,)."""
        return frames + convolved(self.postnet.convolutions, frames, ~lengths_to_padding_mask(lengths))


def spread(alignment: Tensor, padding: Tensor | None = None) -> Tensor:
    """Turn attention weights (B, S, T) into shares that are not negative and sum to 1 over the source.

    Weights of linear attention sum to less than 1 if a query matches no key, and those of the delta rule may be
    negative: a loss that guides them would be lowest without any attention, or unbounded below. Therefore absolute
    values are taken, and what is missing from 1 is spread evenly over all tokens. `padding` (B, S) is True at padding.
    """
    sizes = alignment.abs()
    total = sizes.sum(1, keepdim=True)
    keep = alignment.new_ones(alignment.shape[:2]) if padding is None else (~padding).to(alignment)
    rest = (1 - total).clamp_min(0) * (keep / keep.sum(1, keepdim=True)).unsqueeze(2)
    return sizes / total.clamp_min(1) + rest


def convolved(layers: nn.ModuleList, x: Tensor, keep: Tensor) -> Tensor:
    """Apply convolutions to x (B, T, C), each with zeros for input where `keep` (B, T) is False, as beyond the end."""
    mask = keep.unsqueeze(1).to(x.dtype)
    x = x.transpose(1, 2)
    for layer in layers:
        x = layer(x * mask)
    return x.transpose(1, 2)


@register_model("leapformer_tts")
class LeapformerTTSModel(OfAnyOrigin, TTSTransformerModel):
    """Text to speech with a mechanism per block and layer, and a length predictor if a mechanism needs one."""

    tasks = ("text_to_speech",)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        TTSTransformerModel.add_args(parser)
        add_attention_args(parser)
        add_length_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LeapformerTTSModel:
        # Fills what a preset or an older checkpoint left open.
        leapformer_tts(args)
        adapt(task, args, *cls.tasks)
        for name in ("encoder_conv_kernel_size", "postnet_conv_kernel_size"):
            if getattr(args, name) % 2 == 0:
                flag = "--" + name.replace("_", "-")
                raise LeapformerError(
                    f"{flag} {getattr(args, name)} is even; give an odd number, so that frames stay in place"
                )
        embed_speaker = task.get_speaker_embeddings(args)
        return cls(TTSEncoder(args, task.src_dict, embed_speaker), TTSDecoder(args, task.src_dict))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        target_lengths: Tensor,
        speaker: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        encoder_out = self.encoder(src_tokens, src_lengths, speaker=speaker)
        encoder_out = self.encoder.learn_length(encoder_out, src_tokens, target_lengths)
        frames, ended, extra = self.decoder(
            prev_output_tokens, encoder_out=encoder_out, target_lengths=target_lengths, speaker=speaker
        )
        return frames, ended, {**extra, "encoder_out": encoder_out}

    def forward_encoder(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        speaker: Tensor | None = None,
        target_lengths: Tensor | None = None,
        **unused: Any,
    ) -> EncoderOut:
        """Encode for a generator, with the predicted length if there is a predictor; `target_lengths` (B,): oracle."""
        encoder_out = self.encoder(src_tokens, src_lengths, speaker=speaker)
        return self.encoder.with_length(encoder_out, src_tokens, target_lengths)

    def predicted_length(self, encoder_out: EncoderOut) -> Tensor | None:
        """Decoder steps (B,) that attention assumes; None without a predictor."""
        return predicted_length(encoder_out)

    def compose_attention(self, wanted: bool) -> None:
        """Switch attention weights in generation on or off; they cost time at every step."""
        for attention in attentions(self.decoder):
            attention.compose_weights = wanted


def leapformer_tts(args: Namespace) -> None:
    """The MLA paper's size: 6 + 6 layers, 256 wide, feed-forward 1,024, 8 heads, 4 convolutions before and after.

    The convolutions after the decoder are 512 wide, as in fairseq and Li et al.
    """
    fill_options(args, _sizes(6, 256, 1024, 8, convolutions=4, postnet=512))
    fill_attention_args(args)
    fill_length_args(args)
    base_architecture(args)


def _sizes(layers: int, width: int, ffn: int, heads: int, convolutions: int, postnet: int) -> Preset:
    sizes = {"transformer_layers": layers, "embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads}
    around = {"encoder_conv_layers": convolutions, "postnet_layers": convolutions, "postnet_conv_dim": postnet}
    return {**on_both_sides(**sizes, normalize_before=True), **around, "prenet_dim": width}


# tiny: for two CPU cores, the espeak recipe and the tests.
register_presets(
    "leapformer_tts", leapformer_tts, {"": {}, "tiny": _sizes(2, 128, 256, 2, convolutions=2, postnet=128)}
)
