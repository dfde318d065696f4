"""Translation of unbounded speech, segment by segment, in constant memory.

Each segment is a separate utterance with its own `TranslationStream`. The encoder starts again with each segment, or
continues from the first sample to the last (`carry`). Old parts of a long segment may be forgotten: another stream
takes over, which receives only the last part of its audio and text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...support.errors import LeapformerError
from ..audio import SAMPLE_RATE, UNIT_MS, UNIT_SAMPLES
from .segments import Place, Segmenter, SegmentOptions
from .stream import DecodingOptions, System, TranslationStream
from .times import ComputeTimes
from .window import forgettable


@dataclass(frozen=True)
class Event:
    """Text of a segment (counted from 1) that was produced when `audio_s` seconds had been heard.

    `final`: the text will not change; otherwise it is a draft of what follows the final text and replaces the previous
    draft. `ends`: it is the last text of its segment.
    """

    text: str
    final: bool
    ends: bool
    segment: int
    audio_s: float


class Samples:
    """The input of a session's streams as samples; every segment is encoded separately.

    A unit is 40 ms of audio; here it is samples (T,), which are fewer at the edges of segments. `goes_on`: units are
    encoder states instead, of an encoder that keeps its own state from segment to segment.
    """

    goes_on: ClassVar[bool] = False

    def __init__(self, system: System, options: DecodingOptions, times: ComputeTimes, aligns: bool = False) -> None:
        """`aligns`: as for `TranslationStream`."""
        self.system, self.options, self.times, self.aligns = system, options, times, aligns

    def push(self, audio: np.ndarray, place: Place | None) -> list[tuple[Place, Any]]:
        """Add the samples of one more unit, and return the units that are ready now, each with its place.

        Without a place, the audio has ended.
        """
        return [] if place is None else [(place, audio)]

    def stream(self) -> TranslationStream:
        """A new stream without any input."""
        return TranslationStream(self.system, self.options, self.times, aligns=self.aligns)

    def give(self, stream: TranslationStream, unit: Any) -> None:
        """Pass a unit to a stream."""
        stream.push(unit)

    def length(self, unit: Any) -> int:
        """The number of samples that a unit stands for."""
        return len(unit)

    def last(self, units: Iterable[Any], milliseconds: int) -> list[Any]:
        """The last `milliseconds` of these units."""
        samples = np.concatenate([np.zeros(0, np.float32), *units])
        return _units_of(samples[max(0, len(samples) - milliseconds * SAMPLE_RATE // 1000) :])

    def after(self, units: Sequence[Any], states: int) -> list[Any]:
        """These units without the audio of their first `states` encoder states."""
        return _units_of(np.concatenate(units)[states * UNIT_SAMPLES :])


def _units_of(samples: np.ndarray) -> list[np.ndarray]:
    """Samples as units; copies, so that the whole array need not stay in memory."""
    return [samples[at : at + UNIT_SAMPLES].copy() for at in range(0, len(samples), UNIT_SAMPLES)]


class Session:
    """`push` audio of any length and read the events, then `finish`; events do not depend on how the audio is cut.

    Sessions of one model may run at once, in threads or in turns, because each owns everything that it changes. The
    calls of one session must follow each other, in any thread. After a call that failed, or whose events were not all
    read, audio is lost, and the next call raises RuntimeError.
    """

    def __init__(
        self,
        system: System,
        options: DecodingOptions,
        segments: SegmentOptions | None = None,
        source: type[Samples] = Samples,
        drafts: bool = False,
    ) -> None:
        """`source`: the kind of input that streams get. `drafts`: also report words that may change.

        Raises LeapformerError for an encoder that cannot be carried over, and for a policy that cannot forget.
        """
        self.times = ComputeTimes()
        self.n_samples = 0
        self.n_segments = 0  # that have ended
        self.n_tokens = 0  # written in them
        self.drafts = drafts
        self.segments = SegmentOptions() if segments is None else segments
        if self.segments.forgets and not system.policy.policy.early:
            raise LeapformerError(
                f"--history window: --policy {system.policy.name} writes nothing before the end, so nothing could be "
                "forgotten; take another policy"
            )
        options = replace(options, silence_db=None)  # the segmenter finds the first sound
        self._input = source(system, options, self.times, self.segments.forgets)
        # Segments of a carried encoder begin and end with its states; others begin at any millisecond.
        if source.goes_on and self.segments.lead_ms % UNIT_MS:
            raise LeapformerError(
                f"--lead-ms {self.segments.lead_ms} with --carry encoder: give a multiple of {UNIT_MS}"
            )
        self._segmenter = Segmenter(self.segments, *([UNIT_SAMPLES] if source.goes_on else []))
        self._stream: TranslationStream | None = None
        self._window: list[Any] = []  # with --history window, the units that the stream was given
        self._forgotten = (0, 0)  # tokens and units of the segment that the stream no longer has
        self._lead: deque[Any] = deque(maxlen=self.segments.lead_ms // UNIT_MS + 2)  # units at its ends may be shorter
        self._rest = np.zeros(0, np.float32)
        self._drafted = 0  # steps of source at the last draft
        self.settled = 0  # samples that are not needed again: of ended segments and of forgotten units
        self.settled_letters = 0  # letters of the segment's text that translate forgotten audio, without spaces
        self._n_given = 0  # samples whose place is known
        self._left_out = [(0, 0)]  # (samples given, samples dropped until then)
        self._hears = False  # a call is running, or was abandoned

    @property
    def audio_s(self) -> float:
        """Seconds of audio received."""
        return self.n_samples / SAMPLE_RATE

    def use_lagging(self, k: int) -> None:
        """Change k of wait-k, from the next segment on, or as soon as a unit is forgotten.

        Raises LeapformerError for another policy.
        """
        system = self._input.system
        if "k" not in system.policy.values:
            raise LeapformerError(f"the policy is {system.policy.name}, which has no k; start with --policy wait-k")
        self._input.system = system.waiting(k)

    def push(self, samples: np.ndarray) -> Iterator[Event]:
        """Add samples (T,) in [-1, 1] at 16 kHz; a remainder shorter than a unit is kept for the next call."""
        with self._whole_call():
            known = np.concatenate([self._rest, samples])
            whole = len(known) - len(known) % UNIT_SAMPLES
            self._rest = known[whole:].copy()
            for start in range(0, whole, UNIT_SAMPLES):
                yield from self._hear(known[start : start + UNIT_SAMPLES].copy())  # a view would keep all of it

    def finish(self) -> Iterator[Event]:
        """End the audio and return all remaining events."""
        with self._whole_call():
            rest, self._rest = self._rest, self._rest[:0]
            if len(rest):
                yield from self._hear(rest)
            yield from self._placed(self._segmenter.finish(*self._held()))
            for place, unit in self._input.push(rest[:0], None):
                yield from self._translate(place, unit)
            if self._stream is not None:
                yield from self._advance(self._stream, ends=True)

    @contextmanager
    def _whole_call(self) -> Iterator[None]:
        """Raise RuntimeError unless every call runs to its end before the next one."""
        if self._hears:
            raise RuntimeError("push() or finish() while another call runs, or after one that was left midway")
        self._hears = True
        yield
        self._hears = False  # not after an error, nor if the events were not all read

    def _hear(self, unit: np.ndarray) -> Iterator[Event]:
        self.n_samples += len(unit)
        yield from self._placed(self._segmenter.push(unit, *self._held()))

    def _held(self) -> tuple[int, int]:
        """The tokens written and the units forgotten in the current segment."""
        # A segment whose end is known may still wait for states; the stream then belongs to the segment before.
        if self._stream is None or self._segmenter.n_ended != self.n_segments:
            return 0, 0
        return self._forgotten[0] + self._stream.n_tokens, self._forgotten[1]

    def _placed(self, units: Iterator[tuple[Place, np.ndarray]]) -> Iterator[Event]:
        for place, audio in units:
            for place_of_unit, unit in self._input.push(audio, place):
                yield from self._translate(place_of_unit, unit)

    def _translate(self, place: Place, unit: Any) -> Iterator[Event]:
        """Pass on one more unit, in the order of the audio."""
        if (left_out := self._segmenter.n_left_out) != self._left_out[-1][1]:
            self._left_out.append((self._n_given, left_out))
        self._n_given += self._input.length(unit)
        if place is Place.BETWEEN:
            self._lead.append(unit)
            return
        if self._stream is None:
            self._stream, self._drafted = self._input.stream(), 0
            for before in self._input.last(self._lead, self.segments.lead_ms):
                self._give(self._stream, before)
            self._lead.clear()
        elif self.segments.forgets:
            self._forget(self._stream, self._n_given - self._input.length(unit))
        self._give(self._stream, unit)
        yield from self._advance(self._stream, place is Place.END)

    def _give(self, stream: TranslationStream, unit: Any) -> None:
        self._input.give(stream, unit)
        if self.segments.forgets:
            self._window.append(unit)

    def _forget(self, stream: TranslationStream, n_given: int) -> None:
        """Replace the stream, which was given audio up to sample `n_given`, by one that saw only the retained history.

        Nothing happens unless enough can be forgotten.
        """
        n_tokens, n_units = forgettable(stream, self.segments.history_words)
        if not n_units:
            return
        kept, self._window = self._input.after(self._window, n_units), []
        self._settle(
            n_given - sum(map(self._input.length, kept)), self.settled_letters + stream.emitter.letters(n_tokens)
        )
        self._stream, self._drafted = self._input.stream(), 0
        for unit in kept:
            self._give(self._stream, unit)
        self._stream.follow(stream, n_tokens, n_units)
        self._forgotten = self._forgotten[0] + n_tokens, self._forgotten[1] + n_units

    def _settle(self, n_given: int, letters: int) -> None:
        """Note that the first `n_given` samples given to streams, and this many letters, are not needed again."""
        while len(self._left_out) > 1 and self._left_out[1][0] < n_given:  # silence right after it may be needed again
            del self._left_out[0]
        self.settled, self.settled_letters = n_given + self._left_out[0][1], letters

    def _advance(self, stream: TranslationStream, ends: bool) -> Iterator[Event]:
        stream.advance(source_finished=ends)
        text, segment = stream.flush(final=ends), self.n_segments + 1
        if ends:
            self._settle(self._n_given, 0)
            self.n_segments, self.n_tokens = segment, self.n_tokens + self._forgotten[0] + stream.n_tokens
            self._stream, self._window, self._forgotten = None, [], (0, 0)
        if text or ends:
            yield Event(text, True, ends, segment, self.audio_s)
        if self.drafts and not ends and stream.n_steps > self._drafted:
            self._drafted = stream.n_steps
            yield Event(stream.draft(), False, False, segment, self.audio_s)
