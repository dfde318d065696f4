"""CTranslate2, an engine in C++ for stock transformers, with the weights of a fairseq model; if it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import nn

from ...export.ctranslate2 import spec_of


def is_installed() -> bool:
    return find_spec("ctranslate2") is not None


def translator(decoder: Any, layers: int = 1) -> tuple[Any, Any]:
    """Convert a stock decoder and a new stock encoder of `layers` layers; return the translator and the encoder.

    The translator has one thread and computes in float32.
    """
    import ctranslate2

    config, words = TransformerConfig.from_namespace(decoder.cfg), decoder.dictionary
    config.encoder.layers, config.encoder.normalize_before = layers, True
    embedding = nn.Embedding(len(words), config.encoder.embed_dim, words.pad())
    encoder = TransformerEncoderBase(config, words, embedding).eval()
    for part in encoder, decoder:
        part.requires_grad_(False)
    spec = spec_of(encoder, decoder)
    with TemporaryDirectory() as folder:
        spec.save(folder)
        model = ctranslate2.Translator(folder, inter_threads=1, intra_threads=1, compute_type="float32")
    return model, encoder


def translate(model: Any, sources: list[list[str]], beam: int, length: int) -> list[list[str]]:
    """The best translations of exactly `length` tokens, without the end."""
    results = model.translate_batch(
        sources, beam_size=beam, min_decoding_length=length, max_decoding_length=length, max_batch_size=0
    )
    return [result.hypotheses[0] for result in results]


def texts(words: Any, sentences: int, length: int) -> list[list[str]]:
    """Random sentences of words in the dictionary."""
    numbers = torch.randint(words.nspecial, len(words), (sentences, length)).tolist()
    return [[words.symbols[number] for number in line] for line in numbers]
