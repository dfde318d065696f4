"""Simultaneous translation of one utterance: audio in, text out, with the whole state in one object."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from ...support.errors import LeapformerError
from ..audio import SAMPLE_RATE
from ..beam import largest, repeating
from ..cmvn import Cmvn
from .features import FeatureStream
from .own import decide
from .policy import PolicyOptions, Token
from .silence import SILENCE_DB, Beginning, check_silence
from .text import EMITTERS, Detokenizer
from .times import ComputeTimes

EARLY_EOS = ("mask", "wait")


class Engine(Protocol):
    """Runs the model for one utterance: feed frames, choose a token, commit it (see `simul.engine.Engine`).

    log_probabilities: computes those of the last choice, (V,), among the tokens that were allowed.
    attention:         the weights of the last token over the encoder states, (S,), if a layer was given.
    """

    n_frames: int
    finished: bool

    @property
    def n_tokens(self) -> int: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def ready(self) -> int: ...

    @property
    def log_probabilities(self) -> Callable[[], np.ndarray]: ...

    @property
    def attention(self) -> np.ndarray: ...

    @property
    def times(self) -> ComputeTimes: ...

    def feed(self, frames: np.ndarray) -> None: ...

    def finish(self) -> None: ...

    def best(self, visible: int, forbidden: Sequence[int], layer: int | None = None) -> int: ...

    def consume(self, visible: int | None = None, layer: int | None = None) -> None: ...

    def commit(self, token: int) -> None: ...

    def snapshot(self) -> Any: ...

    def restore(self, snapshot: Any) -> None: ...

    def fork(self) -> Self: ...


class System(Protocol):
    """What all utterances share: a model with the feature and text processing of its training data.

    eos:          the end of a sentence.
    forbidden:    ids that are never written.
    step_frames:  fbank frames (10 ms) of one pre-decision step, of which an encoder state takes `state_frames`.
    chunk_states: encoder states that become final together; 1 if all of them change with every frame.
    positions:    the longest target that the decoder has positions for.
    """

    @property
    def eos(self) -> int: ...

    @property
    def forbidden(self) -> tuple[int, ...]: ...

    @property
    def detokenizer(self) -> Detokenizer: ...

    @property
    def cmvn(self) -> Cmvn | None: ...

    @property
    def policy(self) -> PolicyOptions: ...

    @property
    def step_frames(self) -> int: ...

    @property
    def state_frames(self) -> int: ...

    @property
    def chunk_states(self) -> int: ...

    @property
    def positions(self) -> int: ...

    def begin(self, times: ComputeTimes) -> Engine:
        """An engine for one more utterance."""

    def waiting(self, k: int) -> Self:
        """The same system with another k of wait-k."""

    def to(self, device: Any, dtype: Any = ...) -> None:
        """Move the model to a device of torch."""

    def carried(self) -> type[Any]:
        """The kind of `session.Samples` for sessions that carry their encoder over.

        Raises LeapformerError if the encoder cannot be carried.
        """


@dataclass(frozen=True)
class DecodingOptions:
    """How to write. The limit is `max_len_a` * frames (10 ms each, as in fairseq-generate) + `max_len_b` tokens.

    `max_after_read`: the maximum number of tokens after the whole source was read; None: no limit. `early_eos` is the
    treatment of an end of sentence before the end of the source: "mask" forbids it, "wait" takes the token back and
    reads on. `unit` is "word" or "char", see `text`. `max_draft`: the number of tokens beyond those written that a
    policy may look at after a step of source. `no_repeat_ngram_size`: no n-gram of this size occurs twice in an
    utterance; 0: no restriction. `silence_db`, `lead_ms`: silence that is dropped before the first sound, see
    `silence.Beginning.of_utterance`; sessions find the first sound themselves. `beam`: the hypotheses of the search for
    these tokens, and for the rest after the end of the source; 1: greedy.
    """

    max_len_a: float = 0.0
    max_len_b: int = 200
    max_draft: int = 40
    early_eos: str = "mask"
    unit: str = "word"
    max_after_read: int | None = None
    no_repeat_ngram_size: int = 0
    silence_db: float | None = SILENCE_DB
    lead_ms: int | None = None
    beam: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.max_len_a < math.inf or self.max_len_b < 0 or self.max_len_a + self.max_len_b == 0:
            raise LeapformerError(
                f"--max-len-a {self.max_len_a} and --max-len-b {self.max_len_b} allow no output; give positive values"
            )
        if self.max_draft < 1:
            raise LeapformerError(f"--max-draft {self.max_draft}: give the tokens to look ahead, at least 1")
        if self.beam < 1:
            raise LeapformerError(f"--beam {self.beam}: give the hypotheses of the search, at least 1")
        if self.max_after_read is not None and self.max_after_read < 0:
            raise LeapformerError(f"--max-after-read {self.max_after_read}: give a number of tokens, at least 0")
        if self.no_repeat_ngram_size < 0:
            raise LeapformerError(f"--no-repeat-ngram-size {self.no_repeat_ngram_size}: give tokens, or 0 for no limit")
        check_silence(self.silence_db)
        if self.lead_ms is not None and self.lead_ms < 0:
            raise LeapformerError(f"--lead-ms {self.lead_ms}: give at least 0")
        for value, option, choices in (self.early_eos, "--early-eos", EARLY_EOS), (self.unit, "--unit", EMITTERS):
            if value not in choices:
                raise LeapformerError(f"{option} is {value!r}; choose from {', '.join(choices)}")


def _truth(verdict: object) -> bool:
    """The decision of a policy. Raises LeapformerError for what is none, such as NaN, which counts as true."""
    if str(getattr(verdict, "dtype", type(verdict).__name__)) not in ("bool", "torch.bool"):
        raise LeapformerError(
            f"accepts returned {verdict!r}, which is neither true nor false; compare it, as in token.probability > 0.5"
        )
    return bool(verdict)


class Hypothesis(NamedTuple):
    """Tokens, the sum of their log-probabilities, and the state of the engine that consumed all but the last."""

    tokens: list[Token]
    total: float
    state: Any


class TranslationStream:
    """One utterance: `push` audio, `advance`, `flush` the text.

    The tokens do not depend on how the audio is cut: the policy is called after every pre-decision step, and an end of
    sentence is possible only after the last one. With large segments it is known sooner than with small ones whether
    the source ends here, so this must not affect the output.
    """

    def __init__(
        self,
        system: System,
        options: DecodingOptions,
        times: ComputeTimes | None = None,
        engine: Engine | None = None,
        aligns: bool = False,
    ) -> None:
        """`times`: where computation is added. `engine`: an engine that is fed from elsewhere instead of by `push`.

        `aligns`: record in `aligned` which encoder state each token translates: under wait-k the first of the k steps
        that it was written behind, otherwise the one that it attends to most in the policy's layer.
        """
        self.system, self.options = system, options
        self.policy = system.policy.make()
        self.times = ComputeTimes() if times is None else times
        self.beginning = Beginning.of_utterance(options.silence_db, options.lead_ms)
        self.features = FeatureStream(system.step_frames, system.cmvn)
        self.engine = system.begin(self.times) if engine is None else engine
        self.emitter = EMITTERS[options.unit](system.detokenizer)
        self._positions = system.positions  # needed for every token, and slow to compute
        self.n_samples = 0
        self.n_steps = 0  # pre-decision steps read
        self.aligned: list[int] = []  # with `aligns`, the encoder state of each token, from 0
        self._aligns = aligns
        layer = system.policy.align_layer - 1
        self._look_layer = layer if self.policy.attends else None  # of tokens that a policy looks at
        self._align_layer = layer if aligns and self.policy.lag is None else None  # of tokens that are written
        self._expected: tuple[int, list[int]] = (0, [])  # number of states and all tokens of the last continuation

    def push(self, samples: np.ndarray) -> None:
        """Add samples in [-1, 1] at 16 kHz, shape (T,), of any length."""
        self.n_samples += len(samples)
        self._hear(self.beginning.push(samples))

    def _hear(self, samples: np.ndarray) -> None:
        with self.times.measure("features_s"):
            self.features.push(samples)

    def advance(self, source_finished: bool) -> bool:
        """Read and write as far as the audio allows; False: more audio is needed, True: the translation is complete."""
        if source_finished and len(last := self.beginning.finish()):
            self._hear(last)
        while self._read(source_finished):
            decide(self.policy, self)
        if source_finished and self.engine.n_frames:  # at least one window of audio was heard
            self._write_rest()
        return source_finished

    def _write_rest(self) -> None:
        """Write what is left after the end of the source."""
        if self.options.beam > 1:
            self.commit(self._search(self._room())[0][: self.options.max_after_read])
            return
        rest = itertools.count() if self.options.max_after_read is None else range(self.options.max_after_read)
        for _ in rest:
            if not self._write(eos_open=True, takes_back=False):
                break

    def follow(self, before: TranslationStream, n_tokens: int, n_states: int) -> None:
        """Take over from a finished stream that had `n_states` more states at the beginning.

        Its first `n_tokens` tokens are forgotten with these states; the others count as written, even if this stream
        would have chosen others. The policy is called once, after all steps of source.
        """
        while self._read(source_finished=False):
            pass
        for token in before.engine.tokens[n_tokens:]:
            self.engine.consume(self.n_states)
            self.engine.commit(token)
        self.aligned = [max(0, state - n_states) for state in before.aligned[n_tokens:]]
        self.emitter = before.emitter
        self.emitter.forget(n_tokens)
        decide(self.policy, self)

    def fork(self) -> TranslationStream:
        """An independent copy of the current state, to try the effect of other audio."""
        other = copy.copy(self)
        other.policy, other.features = copy.copy(self.policy), self.features.fork()
        other.beginning = copy.copy(self.beginning)  # it replaces arrays and never changes them
        other.engine, other.emitter = self.engine.fork(), self.emitter.fork()
        other.aligned = list(self.aligned)
        other.times = other.engine.times
        return other

    def flush(self, final: bool) -> str:
        """Text that became final since the last call; with `final`, all remaining text."""
        return self.emitter.flush(final)

    def draft(self) -> str:
        """The text that would follow the flushed text if the source ended here; nothing is written."""
        if not self.n_states:
            return ""
        written, (n_states, expected) = self.engine.tokens, self._expected
        if n_states != self.n_states or expected[: len(written)] != written:  # the policy did not compute it
            expected = written + [token.id for token in self.continuation()]
        whole = EMITTERS[self.options.unit](self.system.detokenizer)
        whole.push(written)
        whole.flush(final=False)  # what was flushed
        whole.push(expected[len(written) :])
        return whole.flush(final=True)

    def report(self) -> dict[str, float]:
        """Seconds of computation by part, seconds of audio and the number of tokens so far, as JSON values."""
        return {**asdict(self.times), "audio_s": self.n_samples / SAMPLE_RATE, "tokens": self.engine.n_tokens}

    # ------------------------------------------------------------------------------------------ what a policy can do
    @property
    def n_tokens(self) -> int:
        return self.engine.n_tokens

    @property
    def tokens(self) -> list[int]:
        return self.engine.tokens

    @property
    def n_states(self) -> int:
        return min(self.engine.ready, self.n_steps * self.step_states)

    def write_next(self) -> bool:
        waits = self.options.early_eos == "wait"
        return self._write(eos_open=waits, takes_back=waits)

    def write_while(self, accepts: Callable[[Token], bool]) -> None:
        layer = self._align_layer if self._look_layer is None else self._look_layer
        while not self._is_full():
            snapshot = self.engine.snapshot()
            token = self._best_token(eos_open=True, layer=layer)
            if token == self.system.eos or not _truth(accepts(self._looked_at(token))):
                self.engine.restore(snapshot)  # with more source the token may be another
                return
            self._commit(token)

    def continuation(self) -> list[Token]:
        return self.hypotheses()[0]

    def hypotheses(self) -> list[list[Token]]:
        room = min(self.options.max_draft, self._room())
        found = self._search(room) if self.options.beam > 1 else [self._greedy(room)]
        self._expected = self.n_states, self.engine.tokens + [token.id for token in found[0]]
        return found

    def commit(self, tokens: Sequence[Token | int]) -> None:
        for token in tokens:
            number = self._writable(token.id if isinstance(token, Token) else token)
            if self._is_full():
                raise LeapformerError(
                    f"commit of token {self.n_tokens + 1}, where --max-len-a, --max-len-b and the model allow no more "
                    f"than {self.n_tokens}; commit what continuation() gives, which keeps to them"
                )
            self.engine.consume(self.n_states, self._align_layer)
            self._commit(number)

    # --------------------------------------------------------------------------------------------------------------
    def _writable(self, token: object) -> int:
        """The id of a token that may be written. Raises LeapformerError for anything else."""
        count, never = len(self.system.detokenizer), (self.system.eos, *self.system.forbidden)
        if not isinstance(token, (int, np.integer)) or not 0 <= token < count or token in never:
            raise LeapformerError(
                f"commit of {token!r}, which is no token of a text; give ids from 0 to {count - 1}, but not "
                f"{', '.join(map(str, sorted(never)[:9]))}"
            )
        return int(token)

    @property
    def step_states(self) -> int:
        """Encoder states per pre-decision step."""
        return self.system.step_frames // self.system.state_frames

    def _room(self) -> int:
        """How many more tokens the limits allow."""
        allowed = self.options.max_len_a * self.engine.n_frames + self.options.max_len_b
        return max(0, min(math.floor(allowed), self._positions - 1) - self.engine.n_tokens)

    def _is_full(self) -> bool:
        return not self._room()

    def _greedy(self, room: int) -> list[Token]:
        """The tokens that would be written if the source ended now, at most `room`."""
        snapshot, tokens = self.engine.snapshot(), list[Token]()
        while len(tokens) < room:
            token = self._best_token(eos_open=True, layer=self._look_layer)
            if token == self.system.eos:
                break
            tokens.append(self._looked_at(token))
            self.engine.commit(token)
        self.engine.restore(snapshot)
        return tokens

    def _search(self, room: int) -> list[list[Token]]:
        """The hypotheses of a beam search if the source ended now, of at most `room` tokens each, best first.

        As in fairseq, a hypothesis is scored by the mean log-probability of its tokens, here from the first that is not
        committed, with the end of the sentence; those that reach the limit count without it.
        """
        beam, snapshot = self.options.beam, self.engine.snapshot()
        going, ended = [Hypothesis([], 0.0, snapshot)], list[tuple[float, list[Token]]]()
        for length in range(1, room + 1):
            found = list[tuple[float, Hypothesis, Token]]()
            for one in going:
                found += self._extended(one, 2 * beam)
            going, ranked = [], sorted(found, key=lambda candidate: -candidate[0])[: 2 * beam]
            for rank, (total, one, token) in enumerate(ranked):
                if token.id != self.system.eos:
                    going.append(Hypothesis([*one.tokens, token], total, one.state))
                elif rank < beam and len(ended) < beam:
                    ended.append((total / length, one.tokens))
            going = going[:beam]
            if len(ended) == beam or not going:
                break
        else:
            ended += [(one.total / max(1, room), one.tokens) for one in going]
        self.engine.restore(snapshot)
        return [tokens for _, tokens in sorted(ended, key=lambda one: -one[0])[:beam]]

    def _extended(self, one: Hypothesis, count: int) -> list[tuple[float, Hypothesis, Token]]:
        """The `count` best next tokens of a hypothesis, each with the sum of log-probabilities up to it."""
        self.engine.restore(one.state)
        if one.tokens:
            self.engine.commit(one.tokens[-1].id)
        seen = self._looked_at(self._best_token(eos_open=True, layer=self._look_layer))
        scores, piece = seen.log_probabilities, self.system.detokenizer.piece
        after = Hypothesis(one.tokens, one.total, self.engine.snapshot())
        best = [int(token) for token in largest(scores, min(count, len(scores))) if scores[token] > -math.inf]
        return [
            (one.total + float(scores[token]), after, Token(token, piece(token), lambda: scores, seen.weights))
            for token in best
        ]

    def _read(self, source_finished: bool) -> bool:
        """Read one pre-decision step: as many frames as its states need to be ready; False when there is none."""
        wanted = (self.n_steps + 1) * self.step_states
        while self.engine.ready < wanted and not self.engine.finished:
            frames = self.features.next_step(final=source_finished)
            if frames is not None:
                self.engine.feed(frames)
            elif source_finished:
                self.engine.finish()
            else:
                return False
        if self.engine.ready <= wanted - self.step_states:
            return False
        self.n_steps += 1
        return True

    def _write(self, eos_open: bool, takes_back: bool) -> bool:
        """Write the best next token; False when there is none, because it would end the sentence or that is full.

        An end of sentence is taken back, to be tried again with more source, or is the end.
        """
        if self._is_full():
            return False
        snapshot = self.engine.snapshot() if takes_back else None
        token = self._best_token(eos_open, self._align_layer)
        if token != self.system.eos:
            self._commit(token)
        elif snapshot is not None:
            self.engine.restore(snapshot)
        return token != self.system.eos

    def _commit(self, token: int) -> None:
        self.engine.commit(token)
        self.emitter.push([token])
        if self._aligns:
            lag = self.policy.lag
            self.aligned.append(
                int(self.engine.attention.argmax()) if lag is None else max(0, self.n_states - lag * self.step_states)
            )

    def _looked_at(self, token: int) -> Token:
        """The token that the engine has just chosen, as a policy sees it."""
        weights = None if self._look_layer is None else self.engine.attention
        return Token(token, self.system.detokenizer.piece(token), self.engine.log_probabilities, weights)

    def _best_token(self, eos_open: bool, layer: int | None = None) -> int:
        repeated = repeating(self.engine.tokens, self.options.no_repeat_ngram_size)
        forbidden = (*self.system.forbidden, *repeated, *(() if eos_open else (self.system.eos,)))
        return self.engine.best(self.n_states, forbidden, layer)
