"""The parts of a text to speech model as functions of tensors: encoder, decoder step, post-net.

Shapes: B sentences, S phonemes, T steps, F features per step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import sinusoids
from ..models.tts import convolved
from .graphs import Layers, Source


class Phonemes(Source):
    """An encoder that returns what decoder steps need from phonemes (B, S) and, if there are several, speakers (B,)."""

    def embedded(self, tokens: Tensor, keep: Tensor) -> tuple[Tensor, Any]:
        encoder = self.encoder
        x = encoder.prenet_proj(convolved(encoder.prenet, encoder.embed_tokens(tokens), keep))
        return x + encoder.pos_emb_alpha * _positional(keep.long().cumsum(1), encoder, x), encoder.transformer_layers

    def spoken(self, x: Tensor, speakers: Tensor | None) -> Tensor:
        if speakers is None:
            return x
        voices = self.encoder.embed_speaker(speakers).expand(*x.shape[:2], -1)
        return self.encoder.spk_emb_proj(torch.cat([x, voices], 2))


class SpeechStep(nn.Module):
    """One step of a decoder: frames (B, 1, F), the probability (B, 1) that they are the last, and the new states.

    frames:    (B, 1, F), the frames of the step before, zeros at first.
    positions: (B, 1), from 1.
    kept:      (layers, B, 1, units), factors of the pre-net's units, in place of dropout.
    """

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder, self.layers = decoder, Layers(decoder, decoder.transformer_layers)

    def forward(
        self, frames: Tensor, positions: Tensor, kept: Tensor, states: list[Tensor], source: list[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        decoder = self.decoder
        drops, projection = decoder.prenet
        x = projection(dropped(drops, frames, kept))
        x = x + decoder.pos_emb_alpha * _positional(positions, decoder, x)
        x, states, _ = self.layers(x, positions, states, source)
        return decoder.feat_proj(x), decoder.eos_proj(x)[:, :, 0].sigmoid(), states


class Refined(nn.Module):
    """The frames (1, T, F) of a whole utterance after the post-net."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, frames: Tensor) -> Tensor:
        return self.decoder.refine(frames, torch.full((1,), frames.shape[1]))


def dropped(prenet: Any, x: Tensor, kept: Tensor) -> Tensor:
    """The pre-net's layers with given factors `kept` of their units, where fairseq applies random dropout."""
    for number, layer in enumerate(prenet.layers):
        x = layer(x) * kept[number]
    return x


def _positional(positions: Tensor, stack: Any, like: Tensor) -> Tensor:
    """The embeddings (B, T, C) of positions (B, T), from 1; zeros for position 0."""
    table = sinusoids((positions + stack.padding_idx).flatten(), like.shape[-1]).view_as(like).to(like.dtype)
    return table.where(positions.gt(0).unsqueeze(2), 0)
