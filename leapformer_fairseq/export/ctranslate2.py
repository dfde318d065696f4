"""A model of text whose attention is softmax, written for CTranslate2, an engine in C++."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from ..modules import attentions
from ..runtime.ctranslate2 import BLANK
from ..support.errors import LeapformerError

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_accurate": "GELUTanh", "gelu_fast": "GELUTanh", "swish": "SWISH"}
# The parts of a layer that it has; with some options fairseq adds others, such as `--scale-attn`.
PARTS = {"self_attn", "self_attn_layer_norm", "encoder_attn", "encoder_attn_layer_norm", "fc1", "fc2"}
PARTS |= {"final_layer_norm"}


def write(model: Any, out: Path, eight_bits: bool = False) -> None:
    """Write a translation or language model to an existing folder. `eight_bits`: round its weights to 8 bits.

    Raises LeapformerError for a model that CTranslate2 does not have, or if it is not installed.
    """
    encoder = getattr(model, "encoder", None)
    if reason := unfit(encoder, model.decoder):
        raise LeapformerError(f"--engine ctranslate2: it has no {reason}; export with --engine onnx")
    # A copy, since it rounds the weights where they are.
    spec = spec_of(*(copy.deepcopy((encoder, model.decoder)) if eight_bits else (encoder, model.decoder)))
    spec.optimize(quantization="int8" if eight_bits else None)
    spec.save(str(out))


def positions(stack: Any) -> int:
    """The most tokens that an encoder or decoder reads in CTranslate2, which has a table of positions.

    fairseq makes a longer one where positions are sinusoidal.
    """
    table = stack.embed_positions
    weight = table.weight if isinstance(table, nn.Embedding) else table.weights
    return len(weight) - table.padding_idx - 1


def spec_of(encoder: Any, decoder: Any) -> Any:
    """CTranslate2's specification of a transformer with these parts of fairseq's, without gradients.

    `encoder` is None for a language model. Raises LeapformerError if CTranslate2 is not installed.
    """
    try:
        from ctranslate2.converters import fairseq as convert
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError as error:
        raise LeapformerError(
            f"--engine ctranslate2: {error.name} is not installed; pip install 'leapformer-fairseq[ctranslate2]'"
        ) from error
    cfg, heads = decoder.cfg, decoder.layers[0].self_attn.num_heads
    options: dict[str, Any] = {
        "pre_norm": cfg.decoder.normalize_before,
        "no_final_norm": decoder.layer_norm is None,
        "activation": common_spec.Activation[ACTIVATIONS[cfg.activation_fn]],
        "layernorm_embedding": decoder.layernorm_embedding is not None,
    }
    reads, projected = encoder is not None, decoder.project_in_dim is not None
    writing = transformer_spec.TransformerDecoderSpec(
        len(decoder.layers), heads, with_encoder_attention=reads, project_in_out=projected, **options
    )
    convert.set_transformer_decoder(writing, decoder, with_encoder_attention=reads)
    if reads:
        reading = transformer_spec.TransformerEncoderSpec(len(encoder.layers), heads, **options)
        convert.set_transformer_encoder(reading, encoder)
        spec = transformer_spec.TransformerSpec(reading, writing)
        spec.register_source_vocabulary(_words(encoder.dictionary))
        spec.register_target_vocabulary(_words(decoder.dictionary))
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
    else:
        spec = transformer_spec.TransformerDecoderModelSpec(writing)
        spec.register_vocabulary(_words(decoder.dictionary))
    spec.validate()
    return spec


def unfit(encoder: Any, decoder: Any) -> str:
    """What a model of these parts has and CTranslate2 has not; "" if nothing. `encoder`: None for a language model."""
    cfg, stacks = decoder.cfg, [decoder] if encoder is None else [encoder, decoder]
    blocks = [block for stack in stacks for block in attentions(stack)]
    other = next((block.mechanism.name for block in blocks if block.mechanism.name != "softmax"), "")
    names = [
        name.partition(".")[0] for stack in stacks for layer in stack.layers for name, _ in layer.named_parameters()
    ]
    part = next((name for name in names if name not in PARTS), "")
    conditions = {
        f"{other} attention": bool(other),
        "predicted lengths of targets": decoder.context.facts.knows_lengths,
        "adaptive softmax": decoder.adaptive_softmax is not None,
        "adaptive input": not isinstance(decoder.embed_tokens, nn.Embedding),
        "projection of embeddings (--quant-noise-pq)": any(stack.quant_noise is not None for stack in stacks),
        "model without positions": any(stack.embed_positions is None for stack in stacks),
        "encoder that is normalised elsewhere than the decoder": encoder is not None
        and (
            cfg.encoder.normalize_before != cfg.decoder.normalize_before
            or (encoder.layer_norm is None) != (decoder.layer_norm is None)
        ),
        "encoder with other heads than the decoder": len({block.num_heads for block in blocks}) > 1,
        f"activation {cfg.activation_fn}": cfg.activation_fn not in ACTIVATIONS,
        f"{part} in a layer": bool(part),
        "projection of only one of the decoder's input and output": (decoder.project_in_dim is None)
        != (decoder.project_out_dim is None),
        "model without an encoder or a decoder": not all(len(stack.layers) for stack in stacks),
        "decoder without cross-attention": encoder is not None and cfg.no_cross_attention,
    }
    return next((reason for reason, holds in conditions.items() if holds), "")


def _words(dictionary: Any) -> list[str]:
    return [BLANK if number == dictionary.pad() else symbol for number, symbol in enumerate(dictionary.symbols)]
