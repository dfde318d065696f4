"""fairseq's text encoder and decoder with swapped attention, from which the models are built."""

from __future__ import annotations

import sys
from typing import Any

from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase, TransformerEncoderBase
from torch import Tensor, nn

from ..modules import IncrementalState, attentions, check_vocabulary, remember_vocabulary, swap_attention
from ..support.errors import LeapformerError
from .encoder_out import EncoderOut, PassingEncoder, build_length_predictor, receiving
from .prompts import Prompted


class Encoder(PassingEncoder, TransformerEncoderBase):
    """A transformer encoder with the attention plan in `config` and, optionally, a length predictor."""

    def __init__(self, config: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(config, dictionary, embed_tokens)
        remember_vocabulary(self, dictionary)
        self.context = swap_attention(self, "encoder", config)
        self.length_predictor = build_length_predictor(config, config.encoder.embed_dim, dictionary)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> dict[str, Tensor]:
        check_vocabulary(self, state_dict, name)
        return super().upgrade_state_dict_named(state_dict, name)


class Decoder(Prompted, TransformerDecoderBase):
    """A transformer decoder with the attention plan in `config` that can read many tokens in one pass."""

    def __init__(
        self,
        config: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Module,
        no_encoder_attn: bool = False,
        target_length: int | None = None,
    ) -> None:
        if config.cross_self_attention:
            raise LeapformerError(
                "--cross-self-attention: one attention over source and target is not supported; leave the flag out"
            )
        super().__init__(config, dictionary, embed_tokens, no_encoder_attn)
        remember_vocabulary(self, dictionary)
        length_known = getattr(config, "length_predictor", None) is not None
        self.context = swap_attention(self, "decoder", config, length_known=length_known, target_length=target_length)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """Return no mask: self-attention is causal by construction, and a (T, T) mask would be quadratic."""
        return tensor.new_empty(0)

    def output_layer(self, features: Tensor) -> Tensor:
        # Features are a transposed view here. Without gradients, PyTorch multiplies such tensors sequence by sequence:
        # half as fast on a CPU, and a hundredth in bfloat16.
        return super().output_layer(features.contiguous())

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: Any = None,
        full_context_alignment: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        if full_context_alignment:
            raise LeapformerError(
                "full_context_alignment: decoder self-attention is causal by construction and cannot look at later "
                "tokens; leave it out"
            )
        if incremental_state is not None:
            features = self.prompt_output(prev_output_tokens, incremental_state)
            if features is not None:
                return features, {"attn": [None], "inner_states": []}
        true_lengths = None  # which only a whole target shows
        if incremental_state is None and self.context.facts.knows_lengths:
            true_lengths = prev_output_tokens.ne(self.padding_idx).sum(1)
        with receiving(self.context, encoder_out, true_lengths):
            return super().extract_features_scriptable(
                prev_output_tokens, encoder_out, incremental_state, False, *args, **kwargs
            )

    def read(
        self, tokens: Tensor, incremental_state: IncrementalState, encoder_out: EncoderOut | None = None
    ) -> Tensor:
        """Read tokens (B, T) in one pass and return their features (B, T, C).

        Continues from `incremental_state` and leaves it as after T single steps (fairseq's incremental decoding reads
        one token per call). Position embeddings start with the first of these tokens. Raises LeapformerError for
        padding.
        """
        if tokens.eq(self.padding_idx).any():
            raise LeapformerError("tokens to read in one pass contain padding; cut them to their common length")
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            x = x + self.embed_positions(tokens)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)
        source, padding = None, None
        if encoder_out is not None:
            source = encoder_out["encoder_out"][0]
            padding = (encoder_out["encoder_padding_mask"] or [None])[0]
        with receiving(self.context, encoder_out):
            for i in range(len(self.layers)):
                x, _, _ = self.layers[i](x, source, padding, incremental_state)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> dict[str, Tensor]:
        check_vocabulary(self, state_dict, name)
        return super().upgrade_state_dict_named(state_dict, name)

    def max_positions(self) -> int:
        """The longest target, in tokens, that --max-target-positions, position embeddings and mechanisms allow."""
        return min(super().max_positions(), self.mechanism_limit())

    def mechanism_limit(self) -> int:
        """The longest target, in tokens, that every mechanism supports."""
        limits = (attention.mechanism.capabilities.max_target for attention in attentions(self))
        return min((limit for limit in limits if limit is not None), default=sys.maxsize)
