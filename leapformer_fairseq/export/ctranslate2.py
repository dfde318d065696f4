"""A translation model whose attention is softmax, written for CTranslate2, an engine in C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..modules import attentions
from ..runtime.ctranslate2 import BLANK
from ..support.errors import LeapformerError

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_accurate": "GELUTanh", "gelu_fast": "GELUTanh", "swish": "SWISH"}


def write(model: Any, out: Path, eight_bits: bool = False) -> None:
    """Write the model to an existing folder. `eight_bits`: round its weights to 8 bits.

    Raises LeapformerError for a model that CTranslate2 does not have, or if it is not installed.
    """
    if reason := unfit(model):
        raise LeapformerError(f"--engine ctranslate2: it has no {reason}; export with --engine onnx")
    spec = spec_of(model.encoder, model.decoder)
    spec.config.add_source_eos = True
    spec.optimize(quantization="int8" if eight_bits else None)
    spec.save(str(out))


def spec_of(encoder: Any, decoder: Any) -> Any:
    """CTranslate2's specification of a transformer with these parts of fairseq's, without gradients.

    Raises LeapformerError if CTranslate2 is not installed.
    """
    try:
        from ctranslate2.converters import fairseq as convert
        from ctranslate2.specs import common_spec
        from ctranslate2.specs.transformer_spec import TransformerSpec
    except ImportError as error:
        raise LeapformerError(
            f"--engine ctranslate2: {error.name} is not installed; pip install 'leapformer-fairseq[ctranslate2]'"
        ) from error
    cfg = decoder.cfg
    spec = TransformerSpec.from_config(
        (len(encoder.layers), len(decoder.layers)),
        decoder.layers[0].self_attn.num_heads,
        pre_norm=cfg.decoder.normalize_before,
        no_final_norm=decoder.layer_norm is None,
        activation=common_spec.Activation[ACTIVATIONS[cfg.activation_fn]],
        layernorm_embedding=decoder.layernorm_embedding is not None,
    )
    convert.set_transformer_encoder(spec.encoder, encoder)
    convert.set_transformer_decoder(spec.decoder, decoder)
    spec.register_source_vocabulary(_words(encoder.dictionary))
    spec.register_target_vocabulary(_words(decoder.dictionary))
    spec.config.decoder_start_token = spec.config.eos_token
    spec.validate()
    return spec


def unfit(model: Any) -> str:
    """What the model has and CTranslate2 has not; "" if nothing."""
    encoder, decoder, cfg = model.encoder, model.decoder, model.decoder.cfg
    both = [encoder, decoder]
    blocks = [block for stack in both for block in attentions(stack)]
    other = next((block.mechanism.name for block in blocks if block.mechanism.name != "softmax"), "")
    conditions = {
        f"{other} attention": bool(other),
        "predicted lengths of targets": decoder.context.facts.knows_lengths,
        "adaptive softmax": decoder.adaptive_softmax is not None,
        "model without positions": any(stack.embed_positions is None for stack in both),
        "encoder that is normalised elsewhere than the decoder": cfg.encoder.normalize_before
        != cfg.decoder.normalize_before
        or (encoder.layer_norm is None) != (decoder.layer_norm is None),
        "encoder with other heads than the decoder": len({block.num_heads for block in blocks}) > 1,
        f"activation {cfg.activation_fn}": cfg.activation_fn not in ACTIVATIONS,
        "projection of the decoder's input": decoder.project_in_dim is not None,
        "model without an encoder or a decoder": not (len(encoder.layers) and len(decoder.layers)),
    }
    return next((reason for reason, holds in conditions.items() if holds), "")


def _words(dictionary: Any) -> list[str]:
    return [BLANK if number == dictionary.pad() else symbol for number, symbol in enumerate(dictionary.symbols)]
