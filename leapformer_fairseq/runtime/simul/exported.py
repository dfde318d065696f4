"""Simultaneous translation of speech with an exported model: implements `stream.System` and `stream.Engine`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ...support.errors import LeapformerError
from ..cmvn import Cmvn
from ..engine import Graphs, Values
from ..folder import (
    BEFORE,
    COUNT,
    CROSS,
    FRAMES,
    HEARD,
    LISTEN,
    REAL,
    ROWS,
    SELF,
    START,
    SUBWORDS,
    WRITE,
    Folder,
    Speech,
)  # fmt: skip
from .policy import PolicyOptions
from .text import Detokenizer
from .times import ComputeTimes


@dataclass(frozen=True)
class ExportedSystem:
    """The `stream.System` of an exported folder."""

    graphs: Graphs
    about: Speech
    eos: int
    detokenizer: Detokenizer
    cmvn: Cmvn | None
    policy: PolicyOptions
    step_frames: int

    @classmethod
    def load(
        cls, path: Path, policy: PolicyOptions | None = None, pre_decision_ratio: int | None = None, threads: int = 1
    ) -> Self:
        """Raises LeapformerError for a folder of another task, and for a policy that the model does not support."""
        folder = Folder.read(path)
        if folder.recordings is not None:
            raise LeapformerError(
                f"{path} reads whole recordings, and not what is still being said; "
                f"run `python -m leapformer_fairseq.runtime {path} FILE`"
            )
        if folder.speech is None:
            raise LeapformerError(f"{path} holds a model of task {folder.task!r}; give one that translates speech")
        about = folder.speech
        policy = (policy or PolicyOptions()).with_lagging(about.lagging).of_layers(folder.layers)
        if policy.policy.attends:
            folder.align_layer(policy.align_layer)
        if policy.lacks_lagging:
            raise LeapformerError("this model was not trained with wait-k; give --waitk-lagging")
        if pre_decision_ratio is not None and pre_decision_ratio < 1:
            raise LeapformerError(f"--pre-decision-ratio is {pre_decision_ratio}; it must be at least 1")
        target = folder.vocabularies["target"]
        return cls(
            Graphs(folder, threads),
            about,
            target.eos,
            Detokenizer(target.symbols, folder.file(SUBWORDS)),
            Cmvn.of(about.mean, about.std),
            policy,
            about.step_frames if pre_decision_ratio is None else about.state_frames * pre_decision_ratio,
        )

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Ids that are never written."""
        return tuple(self.about.forbidden)

    @property
    def state_frames(self) -> int:
        """Fbank frames of an encoder state."""
        return self.about.state_frames

    @property
    def chunk_states(self) -> int:
        """Encoder states that become final together."""
        return self.about.chunk_states

    @property
    def positions(self) -> int:
        """The longest target that the decoder has positions for."""
        return self.graphs.folder.max_target

    def begin(self, times: ComputeTimes) -> ExportedEngine:
        """An engine for one more utterance."""
        return ExportedEngine(self.graphs, self.about, self.eos, times)

    def carried(self) -> type[Any]:
        """Raises LeapformerError: the graphs start anew with each segment."""
        raise LeapformerError(
            "--carry encoder: exported models begin anew with each segment; load the checkpoint instead"
        )

    def to(self, device: Any, dtype: Any = None) -> None:
        """Raises LeapformerError for another device of torch than the CPU, or another type than float32."""
        if device.type != "cpu" or str(dtype or "torch.float32") != "torch.float32":
            raise LeapformerError("exported models run on the CPU, in float32; leave --device and --fp16 out")

    def waiting(self, k: int) -> Self:
        """The same system with another k of wait-k."""
        return replace(self, policy=self.policy.but(k=k))


class Moment(NamedTuple):
    """The decoder of an engine at one moment. States are never changed in place: each step returns new ones."""

    tokens: tuple[int, ...]
    n_consumed: int
    states: Values
    source: Values
    n_read: int  # encoder states that cross-attention has read


class ExportedEngine:
    """A `stream.Engine`: each frame is encoded once, chunk by chunk, and cross-attention reads each state once."""

    def __init__(self, graphs: Graphs, about: Speech, first_token: int, times: ComputeTimes) -> None:
        self.graphs, self.about, self.times = graphs, about, times
        self.n_frames, self.finished = 0, False
        self._now = Moment((first_token,), 0, graphs.begin(SELF, 1), graphs.begin(CROSS, 1), 0)
        self._waiting = np.zeros((0, about.n_bins), np.float32)
        self._before = np.zeros((about.state_frames, about.n_bins), np.float32)
        self._heard = graphs.begin(HEARD, 1)
        self._scores = np.zeros(0, np.float32)  # of the last choice
        self._weights = np.zeros(0, np.float32)  # of the last step over the encoder states, (S,), if they were wanted
        self._states: list[np.ndarray] = []  # of the encoder, (1, C) each; "rows" in the graphs

    @property
    def n_tokens(self) -> int:
        return len(self._now.tokens) - 1

    @property
    def tokens(self) -> list[int]:
        return list(self._now.tokens[1:])

    @property
    def ready(self) -> int:
        """Number of encoder states that a token may see, given the frames fed."""
        frames, chunk, ahead = self.about.state_frames, self.about.chunk_states, self.about.ahead_states
        if self.finished:
            return -(-self.n_frames // frames)
        return max(0, self.n_frames // frames - ahead) // chunk * chunk

    @property
    def log_probabilities(self) -> Callable[[], np.ndarray]:
        """Computes the log-probabilities of the last choice, (V,), among the tokens that were not forbidden."""
        scores = self._scores
        return lambda: scores - np.logaddexp.reduce(scores)

    @property
    def attention(self) -> np.ndarray:
        """The weights of the last token over the encoder states in the requested layer, (S,), the mean over heads."""
        return self._weights

    def feed(self, frames: np.ndarray) -> None:
        """Append fbank frames, (n, n_bins), without computing anything yet."""
        self._waiting = np.concatenate([self._waiting, np.asarray(frames, np.float32)])
        self.n_frames += len(frames)

    def finish(self) -> None:
        """Mark the end of the frames."""
        self.finished = True

    def scores(self, visible: int | None = None, layer: int | None = None) -> np.ndarray:
        """Log-probabilities (V,) of the next token, after consuming the last one, which sees `visible` states.

        With `layer`, a decoder layer from 0, `attention` then holds its weights. Raises LeapformerError if the folder
        does not have these.
        """
        aligned = None if layer is None else self.graphs.folder.align_layer(layer + 1)
        if not self.n_frames:
            raise RuntimeError("a step before any frame was fed")
        with self.times.measure("encoder_s"):
            self._encode()
        now, seen = self._now, min(self.ready, self.ready if visible is None else visible)
        with self.times.measure("decoder_s"):
            source, read = now.source, now.n_read
            while read < seen:
                source, read = self._read(source, read, seen)
            last, place = np.array([[now.tokens[-1]]]), len(now.tokens)
            given = last, place, np.zeros((1, 1)), now.states, source
            if aligned is None:
                scores, states = self.graphs.step(*given)
            else:
                scores, weights, states = self.graphs.attending_step(*given)
                real = source[f"{CROSS}.{aligned - 1}.{REAL}"].numpy()[0] > 0.5  # `_read` pads
                self._weights = weights[0, 0, real]
        self.times.decoder_steps += 1
        self._now = Moment(now.tokens, place, states, source, read)
        return scores[0, 0].copy()

    def best(self, visible: int, forbidden: Sequence[int], layer: int | None = None) -> int:
        """The most likely next token that is not `forbidden`; `visible` as for `scores`."""
        scores = self.scores(visible, layer)
        scores[list(forbidden)] = -np.inf
        self._scores = scores
        return int(scores.argmax())

    def consume(self, visible: int | None = None, layer: int | None = None) -> None:
        """Consume the last token unless this was done already."""
        if self._now.n_consumed < len(self._now.tokens):
            self.scores(visible, layer)

    def commit(self, token: int) -> None:
        """Append the chosen token; the next step consumes it."""
        self._now = self._now._replace(tokens=(*self._now.tokens, token))

    def snapshot(self) -> Moment:
        """The current decoder, to undo steps."""
        return self._now

    def restore(self, snapshot: Moment) -> None:
        """Reset the decoder; frames fed since then are kept."""
        self._now = snapshot

    def fork(self) -> Self:
        """An independent copy."""
        other = copy.copy(self)
        other.times, other._states = replace(self.times), list(self._states)
        return other

    def _read(self, source: Values, read: int, seen: int) -> tuple[Values, int]:
        """Let cross-attention read up to a step more, and return its states and how many encoder states it has read."""
        size = self.about.step_frames // self.about.state_frames
        new = self._states[read : min(read + size, seen)]
        padded = np.zeros((size, *new[0].shape), np.float32)
        padded[: len(new)] = new
        given = {ROWS: padded, COUNT: np.array([len(new)]), START: np.array([read])}
        _, source = self.graphs.advance(WRITE, given, source)
        return source, read + len(new)

    def _encode(self) -> None:
        """Encode whole chunks and, at the end, what is left."""
        per_state = self.about.state_frames
        size = per_state * self.about.chunk_states
        whole = size + per_state * self.about.ahead_states
        while len(self._waiting) >= whole or (self.finished and len(self._waiting)):
            heard, chunk = self._waiting[:whole], self._waiting[:size]
            self._waiting = self._waiting[size:]
            frames = np.zeros((1, per_state + whole, self.about.n_bins), np.float32)
            frames[0, :per_state], frames[0, per_state : per_state + len(heard)] = self._before, heard
            given = {
                FRAMES: frames,
                BEFORE: np.array([per_state if self._states else 0]),
                COUNT: np.array([len(heard)]),
                START: np.array([len(self._states)]),
            }
            (states,), self._heard = self.graphs.advance(LISTEN, given, self._heard, ROWS)
            self._states += list(states.numpy()[: -(-len(chunk) // per_state)])
            self._before = chunk[-per_state:]
            self.times.encoder_passes += 1
