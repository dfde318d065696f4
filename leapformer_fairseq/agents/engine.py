"""A fairseq speech translation model as a streaming engine: feed frames, step, commit.

Shapes: T fbank frames (10 ms) of one utterance, V symbols.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fairseq  # noqa: F401  first of all: it registers our models, and they need `modules` complete
import torch
from torch import Tensor

from ..modules import forget_source, fork_state


@dataclass
class ComputeTimes:
    """Seconds of computation spent on one utterance, by part, and how often encoder and decoder ran."""

    features_s: float = 0.0
    encoder_s: float = 0.0
    decoder_s: float = 0.0
    encoder_passes: int = 0
    decoder_steps: int = 0

    @contextmanager
    def measure(self, part: str, device: torch.device | None = None) -> Iterator[None]:
        """Add the wall time of the block to `part`; kernels still running on a CUDA `device` are waited for."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if device is not None and device.type == "cuda":
                torch.cuda.synchronize(device)
            setattr(self, part, getattr(self, part) + time.perf_counter() - start)


@dataclass(frozen=True)
class Snapshot:
    """The decoder's side of an engine at one moment; independent of what the engine does afterwards."""

    tokens: tuple[int, ...]
    n_consumed: int
    encoder_passes: int
    state: dict[str, Any] = field(repr=False)


class RecomputeEngine:
    """Streaming inference with an encoder that looks both ways: new frames change all of its states.

    So the encoder is run anew over all frames fed so far, but lazily, when a token is asked for, and never twice on the
    same frames; the cross-attention states are then rebuilt once and kept while writing. The decoder's own (linear)
    states survive every READ: each token is consumed once. Usage: `feed(frames)` any number of times, `step()` for the
    logits of the next token, then either `commit(token)` or `restore(snapshot)`.
    """

    def __init__(self, model: Any, first_token: int, times: ComputeTimes | None = None) -> None:
        """`model`: fairseq encoder-decoder in eval mode. `first_token`: what training put before the target (EOS)."""
        self.model = model
        self.times = times if times is not None else ComputeTimes()
        self.n_frames = 0
        self._tokens = [first_token]
        self._n_consumed = 0  # tokens that are part of the decoder's state
        self._chunks: list[Tensor] = []
        self._n_encoded = 0  # frames the encoder states were computed from
        self._encoder_out: Any = None
        self._state: dict[str, Any] = {}

    @property
    def n_tokens(self) -> int:
        """Target tokens committed."""
        return len(self._tokens) - 1

    def feed(self, frames: Tensor) -> None:
        """Append fbank frames, (n, n_bins); nothing is computed yet."""
        self._chunks.append(frames)
        self.n_frames += len(frames)

    @torch.no_grad()
    def step(self) -> Tensor:
        """Consume the last token and return the logits of the next one, (V,) float32, given all frames fed."""
        if not self.n_frames:
            raise RuntimeError("step() before any frame was fed")
        if self._n_consumed == len(self._tokens):
            raise RuntimeError("step() twice on one token; commit() or restore() in between")
        self._encode()
        device = _parameter(self.model).device
        with self.times.measure("decoder_s", device):
            tokens = torch.tensor([self._tokens], device=device)
            logits, _ = self.model.decoder(tokens, encoder_out=self._encoder_out, incremental_state=self._state)
        self._n_consumed = len(self._tokens)
        self.times.decoder_steps += 1
        return logits[0, -1].float()

    def commit(self, token: int) -> None:
        """Append the chosen token; the next step consumes it."""
        self._tokens.append(token)

    def snapshot(self) -> Snapshot:
        """Remember the decoder, to try a step and take it back. Costs a copy of its states."""
        state = fork_state(self.model.decoder, self._state)
        return Snapshot(tuple(self._tokens), self._n_consumed, self.times.encoder_passes, state)

    def restore(self, snapshot: Snapshot) -> None:
        """Take the decoder back to `snapshot`, any number of times; frames fed since then stay fed."""
        self._tokens, self._n_consumed = list(snapshot.tokens), snapshot.n_consumed
        self._state = fork_state(self.model.decoder, snapshot.state)
        if snapshot.encoder_passes != self.times.encoder_passes:
            forget_source(self.model.decoder, self._state)  # its cross-attention saw an older encoder output

    def _encode(self) -> None:
        """Bring the encoder output up to date with the frames."""
        if self._n_encoded == self.n_frames:
            return
        weight = _parameter(self.model)
        with self.times.measure("encoder_s", weight.device):
            frames = torch.cat([chunk.to(weight.device, weight.dtype) for chunk in self._chunks])
            lengths = torch.tensor([len(frames)], device=weight.device)
            self._encoder_out = self.model.encoder(src_tokens=frames[None], src_lengths=lengths)
        self._chunks = [frames]  # keep the joined copy, so that the next pass only appends
        self._n_encoded = self.n_frames
        self.times.encoder_passes += 1
        forget_source(self.model.decoder, self._state)


def _parameter(model: Any) -> Tensor:
    """Any parameter: it tells device and floating point type of the model, also after `to()` or `half()`."""
    return next(iter(model.parameters()))
