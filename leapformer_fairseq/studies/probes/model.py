"""The small models of the probes: two layers, 64 wide, two heads, with the mechanism in one block."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention import CAUSAL, Attention, Mask, sinusoids
from ...attention.capabilities import DECODER_CROSS, DECODER_SELF, ENCODER_SELF
from .tasks import NOTHING, PADDING, Batch, Probe

WIDTH, HEADS, LAYERS, LONGEST = 64, 2, 2, 1024


def attention(name: str, block: str, **options: Any) -> Attention:
    return Attention(name, WIDTH, HEADS, block=block, **options)


class Layer(nn.Module):
    """A pre-norm layer: self-attention, cross-attention if there is a source, and a feed-forward network."""

    def __init__(self, self_attention: Attention, cross: Attention | None = None) -> None:
        super().__init__()
        self.self_attention, self.cross = self_attention, cross
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(
        self, x: Tensor, self_mask: Mask, keep: Tensor | None = None, source: Tensor | None = None, seen: Mask = None
    ) -> Tensor:
        x = x + self.self_attention(self.norms[0](x), mask=self_mask, keep=keep)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), source, mask=seen)
        return x + self.feed_forward(self.norms[2](x))


class ProbeModel(nn.Module):
    """A model for a probe; returns logits (B, T, vocabulary), or (B, vocabulary) for one answer per sequence.

    For cross-attention, a softmax layer encodes the source, and one decoder layer with softmax self-attention has the
    mechanism as its cross-attention. For other blocks there are two layers of the mechanism.
    """

    positions: Tensor

    def __init__(self, probe: Probe, name: str, **options: Any) -> None:
        super().__init__()
        self.probe = probe
        self.embedding = nn.Embedding(probe.vocabulary, WIDTH)
        nn.init.normal_(self.embedding.weight)
        self.register_buffer("positions", sinusoids(torch.arange(LONGEST), WIDTH))
        self.encoder: Layer | None = None
        if probe.block == DECODER_CROSS:
            self.encoder = Layer(attention("softmax", ENCODER_SELF))
            layers = [Layer(attention("softmax", DECODER_SELF), attention(name, DECODER_CROSS, **options))]
        else:
            layers = [Layer(attention(name, probe.block, **options)) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, probe.vocabulary)

    @property
    def asked(self) -> Attention:
        """The attention under test, in the first layer."""
        layer: Any = self.layers[0]
        attention: Attention = layer.self_attention if layer.cross is None else layer.cross
        return attention

    def forward(self, batch: Batch) -> Tensor:
        x, source, keep = self._embedded(batch.tokens), None, None
        if self.encoder is not None and batch.source is not None:
            source = self.encoder(self._embedded(batch.source), None)
        if batch.whole:
            keep = batch.tokens != PADDING
        self_mask = None if self.probe.block == ENCODER_SELF else CAUSAL
        for layer in self.layers:
            x = layer(x, self_mask, keep, source, self.probe.mask)
        if keep is not None:
            x = (x * keep.unsqueeze(2)).sum(1) / keep.sum(1, keepdim=True)
        return self.head(x)

    def loss(self, batch: Batch) -> Tensor:
        logits = self(batch)
        return F.cross_entropy(logits.flatten(0, -2), batch.answers.flatten(), ignore_index=NOTHING)

    @torch.no_grad()
    def right(self, batch: Batch) -> float:
        """Return the share of right answers."""
        asked = batch.answers >= 0
        return float((self(batch).argmax(-1)[asked] == batch.answers[asked]).double().mean())

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) + self.positions[: tokens.shape[1]]
