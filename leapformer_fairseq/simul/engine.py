"""A fairseq speech translation model as a streaming engine: feed frames, step, commit.

Shapes: T fbank frames (10 ms) of one utterance, V symbols.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..models.streaming_encoder import ArrivingSource
from ..modules import PassOptions, forget_source, fork_state
from ..runtime.simul.times import ComputeTimes
from ..support.errors import LeapformerError


@dataclass(frozen=True)
class Snapshot:
    """The decoder state of an engine at one moment; independent of later changes in the engine."""

    tokens: tuple[int, ...]
    n_consumed: int
    n_encoded: int
    state: dict[str, Any] = field(repr=False)


class Engine(ABC):
    """Streaming inference for one utterance: feed frames, step, commit.

    Call `feed(frames)` any number of times, `finish()` when there are no more, `step()` for the logits of the next
    token, then either `commit(token)` or `restore(snapshot)`. The decoder's own states survive every READ: each token
    is consumed once. Encoding is lazy: it happens when a token is requested.
    """

    def __init__(self, model: Any, first_token: int, times: ComputeTimes | None = None) -> None:
        """`model`: fairseq encoder-decoder in eval mode. `first_token`: what training put before the target (EOS)."""
        self.model = model
        self.times = times if times is not None else ComputeTimes()
        self.n_frames = 0
        self.finished = False
        self._weights: Tensor | None = None  # (S,), of the last step over the encoder states, if requested
        self._logits: Tensor | None = None  # (V,), of the last choice
        self._tokens = [first_token]
        self._n_consumed = 0  # tokens that are part of the decoder's state
        self._fed: list[Any] = []
        self._n_bins = 0
        self._n_encoded = 0  # passes of the encoder; not in `times`, which may be shared or reset
        self._state: dict[str, Any] = {}

    @property
    def n_tokens(self) -> int:
        """Number of committed target tokens."""
        return len(self._tokens) - 1

    @property
    def tokens(self) -> list[int]:
        """The committed target tokens."""
        return self._tokens[1:]

    def feed(self, frames: np.ndarray) -> None:
        """Append fbank frames, (n, n_bins), without computing anything yet."""
        self._fed.append(frames)
        self.n_frames, self._n_bins = self.n_frames + len(frames), frames.shape[1]

    def finish(self) -> None:
        """Mark the end of the frames."""
        self.finished = True

    @property
    @abstractmethod
    def ready(self) -> int:
        """Number of encoder states that a token may see, given the frames fed."""

    @abstractmethod
    def _encoded(self, visible: int) -> Any:
        """The encoder's output for all frames fed, cut to the first `visible` states."""

    @torch.no_grad()
    def step(self, visible: int | None = None, layer: int | None = None) -> Tensor:
        """Consume the last token and return the logits of the next one, (V,) float32.

        It sees the first `visible` encoder states, at most those that are ready. With `layer`, a decoder layer,
        `attention` then holds the weights of its cross-attention; this costs time linear in the number of states.
        """
        if not self.n_frames:
            raise RuntimeError("step() before any frame was fed")
        if self._n_consumed == len(self._tokens):
            raise RuntimeError("step() twice on one token; commit() or restore() in between")
        encoder_out = self._encoded(self.ready if visible is None else min(visible, self.ready))
        device = _parameter(self.model).device
        with self.times.measure("decoder_s", kernels_of(device)):
            tokens = torch.tensor([self._tokens], device=device)
            wanted = {} if layer is None else {"alignment_layer": layer}
            state, decoder = self._state, self.model.decoder
            # The decoder may see all states that it is given; settings of the model belong to other users of it.
            with decoder.context.own(PassOptions(schedule=None, weights=layer is not None)):
                logits, extra = decoder(tokens, encoder_out=encoder_out, incremental_state=state, **wanted)
            self._weights = None if layer is None else extra["attn"][0][0, -1].float()
        self._n_consumed = len(self._tokens)
        self.times.decoder_steps += 1
        return logits[0, -1].float()

    def best(self, visible: int, forbidden: Sequence[int], layer: int | None = None) -> int:
        """The most likely next token that is not `forbidden`, after consuming the last one; arguments as for `step`."""
        logits = self.step(visible, layer)
        with self.times.measure("decoder_s"):
            logits[torch.tensor(forbidden, device=logits.device)] = -math.inf
            self._logits = logits
            return int(logits.argmax())

    @property
    def log_probabilities(self) -> Callable[[], np.ndarray]:
        """Computes the log-probabilities of the last choice, (V,), among the tokens that were not forbidden."""
        logits = self._logits
        assert logits is not None
        return lambda: logits.log_softmax(0).cpu().numpy()

    @property
    def attention(self) -> np.ndarray:
        """The weights of the last token over the encoder states in the requested layer, (S,), the mean over heads."""
        assert self._weights is not None
        return self._weights.cpu().numpy()

    def consume(self, visible: int | None = None, layer: int | None = None) -> None:
        """Consume the last token unless this was done already; arguments as for `step`."""
        if self._n_consumed < len(self._tokens):
            self.step(visible, layer)

    def commit(self, token: int) -> None:
        """Append the chosen token; the next step consumes it."""
        self._tokens.append(token)

    def snapshot(self) -> Snapshot:
        """Save the decoder state, so that a step can be undone. Costs a copy of its states."""
        state = fork_state(self._state)
        return Snapshot(tuple(self._tokens), self._n_consumed, self._n_encoded, state)

    def restore(self, snapshot: Snapshot) -> None:
        """Reset the decoder to `snapshot`, any number of times; frames fed since then are kept."""
        self._tokens, self._n_consumed = list(snapshot.tokens), snapshot.n_consumed
        self._state = fork_state(snapshot.state)

    def fork(self) -> Self:
        """An independent copy of the whole engine, including the fed and encoded frames and the times."""
        other = copy.copy(self)
        other.times, other._tokens, other._fed = replace(self.times), list(self._tokens), list(self._fed)
        other._state = fork_state(self._state)
        return other

    def _take_fed(self) -> Tensor:
        """The frames fed since the last call, (n, n_bins), on the device of the model; n may be 0."""
        weight = _parameter(self.model)
        frames, self._fed = self._fed or [np.zeros((0, self._n_bins), np.float32)], []
        return torch.from_numpy(np.concatenate(frames)).to(weight.device, weight.dtype)


class RecomputeEngine(Engine):
    """For an encoder that is not append-only: new frames change all of its states.

    The encoder is rerun on all frames fed so far, but never twice on the same ones; the cross-attention states are then
    rebuilt once and kept while writing.
    """

    def __init__(self, model: Any, first_token: int, times: ComputeTimes | None = None) -> None:
        super().__init__(model, first_token, times)
        self._frames: Tensor | None = None
        self._encoder_out: Any = None

    @property
    def ready(self) -> int:
        return -(-self.n_frames // self.model.encoder.pooling_ratio())

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        if snapshot.n_encoded != self._n_encoded:
            forget_source(self._state)  # its cross-attention saw an older encoder output

    def _encoded(self, visible: int) -> Any:
        if not self._fed:
            return self._encoder_out
        weight = _parameter(self.model)
        with self.times.measure("encoder_s", kernels_of(weight.device)):
            new = self._take_fed()
            frames = self._frames = new if self._frames is None else torch.cat([self._frames, new])
            lengths = torch.tensor([len(frames)], device=weight.device)
            with self.times.measure("prenet_s", kernels_of(weight.device)):
                convolved = self.model.encoder.convolve(frames[None], lengths)
            with self.model.encoder.context.own(PassOptions()):
                self._encoder_out = self.model.encoder.encode(*convolved)
        self._n_encoded += 1
        self.times.encoder_passes += 1
        forget_source(self._state)
        return self._encoder_out


class IncrementalEngine(Engine):
    """For a streaming encoder: each frame is encoded once, and cross-attention reads each state once."""

    def __init__(self, model: Any, first_token: int, times: ComputeTimes | None = None) -> None:
        super().__init__(model, first_token, times)
        self._source = ArrivingSource()
        self._states: Tensor | None = None
        self._closed = False

    def fork(self) -> Self:
        other = super().fork()
        other._source = self._source.fork()
        return other

    @property
    def ready(self) -> int:
        chunks, frames_of = self.model.encoder.chunks, self.model.encoder.pooling_ratio()
        if self.finished:
            return -(-self.n_frames // frames_of)
        return max(0, self.n_frames // frames_of - chunks.ahead) // chunks.size * chunks.size

    def _encoded(self, visible: int) -> Any:
        if self._fed or self.finished != self._closed:
            encoder, device = self.model.encoder, _parameter(self.model).device
            with self.times.measure("encoder_s", kernels_of(device)), encoder.context.own(PassOptions()):
                new = encoder.extend(self._source, self._take_fed(), final=self.finished)
                self._states = new if self._states is None else torch.cat([self._states, new])
            self._closed = self.finished
            self.times.encoder_passes += 1
        assert self._states is not None  # a step comes after frames
        return _first(self._states, visible)


class EncodedEngine(Engine):
    """For encoder states computed elsewhere, from speech that continues beyond the utterance.

    `feed` takes states, (n, 1, C), on the model's device; they count as the frames they were computed from.
    """

    def feed(self, frames: Any) -> None:
        self._fed.append(frames)
        self.n_frames += len(frames) * self.model.encoder.pooling_ratio()

    @property
    def ready(self) -> int:
        return self.n_frames // self.model.encoder.pooling_ratio()

    def _encoded(self, visible: int) -> Any:
        self._fed = [torch.cat(self._fed)]
        return _first(self._fed[0], visible)


ENGINES: dict[str, type[Engine]] = {"incremental": IncrementalEngine, "recompute": RecomputeEngine}


def engine_for(model: Any, name: str = "auto") -> type[Engine]:
    """The engine for a model: by default the incremental one if it has a streaming encoder.

    Raises LeapformerError for an engine that the model does not support.
    """
    arrives = getattr(model.encoder, "chunks", None) is not None
    if name == "incremental" and not arrives:
        raise LeapformerError(
            "--engine incremental: this encoder sees whole utterances; train with --encoder-causal or "
            "--encoder-chunk-ms, or take --engine recompute"
        )
    return ENGINES[("incremental" if arrives else "recompute") if name == "auto" else name]


def _first(states: Tensor, visible: int) -> dict[str, list[Tensor]]:
    """The first of the encoder states (S, 1, C) as the encoder's output."""
    padding = torch.zeros(1, visible, dtype=torch.bool, device=states.device)
    return {"encoder_out": [states[:visible]], "encoder_padding_mask": [padding]}


def kernels_of(device: torch.device) -> Callable[[], None] | None:
    """What waits for the kernels that are still running on a device; None where none run in the background."""
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else None


def _parameter(model: Any) -> Tensor:
    """A parameter, whose device and type are those of the model, also after `to()` or `half()`."""
    return next(iter(model.parameters()))
