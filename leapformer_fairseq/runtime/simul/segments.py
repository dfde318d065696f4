"""Segmentation of continuous speech: at pauses, at the ends of sentences, or after a number of seconds or tokens.

Decisions are made for every unit of 40 ms, however the audio arrived.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...support.errors import LeapformerError
from ..audio import SAMPLE_RATE, UNIT_MS, UNIT_SAMPLES
from ..sentences import SentenceEnds, SentenceModel
from .silence import (
    MIDDLE_MS,
    ONSET_DB,
    QUIET_ONSET_MS,
    SILENCE_DB,
    Beginning,
    check_silence,
    level_of,
    quiet_samples,
)

RECENT = 10_000 // UNIT_MS  # units; pauses are quiet relative to the loudest of them
SEGMENTS = ("pause", "sentence", "tokens", "seconds")
AT_PAUSES = ("pause", "sentence")  # kinds whose segments end at pauses
HISTORIES = ("segment", "window")


@dataclass(frozen=True)
class SegmentOptions:
    """What ends a segment, and what is kept of it; no segment is shorter than `min_seconds`.

    `kind`: with "pause", a segment ends at `pause_ms` of audio that are `pause_db` quieter than the loudest 40 ms of
    the last 10 s of speech; with "sentence", also where `sentences` finds the end of a sentence; with "tokens", after
    `tokens` target tokens; with "seconds", only after `max_seconds`, which is always the most that is kept. `history`:
    a "segment" is kept completely; a "window" forgets text older than the last `history_words` words (or pieces, if the
    unit is "char") with its source, so that a segment may last for hours. `silence_db`: the first segment begins with
    the first sound above this level, in decibels relative to full scale (see `silence.Beginning`), and where pauses end
    segments, audio below it is never speech; where none does, silence of more than a second is cut to a second. With
    None, audio begins with its first sample, and silence is only relative to earlier audio. `lead_ms`: silence before a
    sound that its segment begins with.
    """

    kind: str = "pause"
    pause_ms: int = 400
    pause_db: float = 20.0
    tokens: int = 60
    min_seconds: float = 2.0
    max_seconds: float = 30.0
    history: str = "segment"
    history_words: int = 10
    silence_db: float | None = SILENCE_DB
    lead_ms: int = 0
    sentences: SentenceModel | None = None

    def __post_init__(self) -> None:
        if self.kind not in SEGMENTS:
            raise LeapformerError(f"--segment {self.kind!r}: choose from {', '.join(SEGMENTS)}")
        if self.pause_ms < UNIT_MS:
            raise LeapformerError(f"--pause-ms {self.pause_ms}: give at least {UNIT_MS}; silence is measured in such")
        if not self.pause_db > 0:
            raise LeapformerError(f"--pause-db {self.pause_db}: give decibels above 0")
        if self.tokens < 1:
            raise LeapformerError(f"--segment-tokens {self.tokens}: give at least 1")
        if not 0 < self.min_seconds <= self.max_seconds < math.inf:
            raise LeapformerError(
                f"--min-seconds {self.min_seconds} and --max-seconds {self.max_seconds}: give lengths above 0, the "
                "first not above the second"
            )
        if self.history not in HISTORIES:
            raise LeapformerError(f"--history {self.history!r}: choose from {', '.join(HISTORIES)}")
        if self.history_words < 1:
            raise LeapformerError(f"--history-words {self.history_words}: give the words to keep in mind, at least 1")
        if self.lead_ms < 0:
            raise LeapformerError(f"--lead-ms {self.lead_ms}: give at least 0")
        if self.kind == "sentence" and self.sentences is None:
            raise LeapformerError("--segment sentence needs --sentence-ends FILE; `leapformer sentence-ends` makes one")
        check_silence(self.silence_db)

    @property
    def forgets(self) -> bool:
        """Whether old parts of a segment are forgotten, instead of ending the segment."""
        return self.history == "window"


class Place(enum.Enum):
    """The assignment of a unit of audio to a segment."""

    SPEECH = enum.auto()  # belongs to the segment
    END = enum.auto()  # the last unit of the segment
    BETWEEN = enum.auto()  # belongs to no segment: silence after a pause


class Segmenter:
    """Assigns units of audio, (T,) samples in [-1, 1], to segments, one after the other, in constant memory.

    The first segment begins with the first sound (without `silence_db`, with the first unit); silence before it has no
    place, nor has long silence where no pause ends a segment. After a pause, the next segment begins with the next
    sound: silence is not translated. The threshold for silence is then low enough that a much quieter speaker is
    detected.
    """

    def __init__(self, options: SegmentOptions, grid: int = SAMPLE_RATE // 1000) -> None:
        """`grid`: segments begin and end at multiples of this many samples after the audio already placed."""
        self.options, self._grid = options, grid
        self.n_ended = 0
        self._levels: deque[float] = deque(maxlen=RECENT)  # of the last units of segments
        self._n_samples = 0  # of the segment
        self._n_quiet = 0  # quiet units at the end of the segment so far
        self._floor = math.inf  # level of the quietest of these units and of those between segments
        self._silence = -math.inf if options.silence_db is None else options.silence_db
        self._beginning = Beginning(options.silence_db, QUIET_ONSET_MS, options.lead_ms, grid)
        self._n_silent = 0  # samples of silence at the end of the audio so far
        self._n_cut = 0  # samples of silence that were dropped
        self._open = True
        self._ends_of = SentenceEnds(options.sentences) if options.kind == "sentence" and options.sentences else None
        self._waiting = np.zeros(0, np.float32)  # samples without a place so far
        self._n_placed = 0  # samples before them

    def push(self, unit: np.ndarray, n_tokens: int, n_forgotten: int = 0) -> Iterator[tuple[Place, np.ndarray]]:
        """Add a unit, and return those whose places are known now, with their places.

        Without `sentences`, that is the unit itself. `n_tokens` and `n_forgotten` are the tokens written and the units
        forgotten in the current segment.
        """
        heard = self._beginning.push(unit)
        for start in range(0, len(heard), UNIT_SAMPLES):
            part = heard[start : start + UNIT_SAMPLES]
            if self.options.kind in AT_PAUSES or not self._is_long_silence(part):
                yield from self._hear(part, n_tokens, n_forgotten)
            else:
                self._n_cut += len(part)

    @property
    def n_left_out(self) -> int:
        """Samples dropped so far."""
        return self._beginning.n_left_out + self._n_cut

    def _is_long_silence(self, unit: np.ndarray) -> bool:
        self._n_silent = self._n_silent + len(unit) if level_of(unit) < self._silence else 0
        return self._n_silent > MIDDLE_MS * SAMPLE_RATE // 1000

    def _hear(self, unit: np.ndarray, n_tokens: int, n_forgotten: int) -> Iterator[tuple[Place, np.ndarray]]:
        if self._ends_of is None:
            yield from self._placed(unit, n_tokens, n_forgotten)
            return
        end = self._ends_of.push(unit)
        self._waiting = np.concatenate([self._waiting, unit])
        if end is not None and self._n_samples + end - self._n_placed >= self.options.min_seconds * SAMPLE_RATE:
            yield from self._taken(end - self._n_placed, n_tokens, n_forgotten)
        while len(self._waiting) > self._ends_of.model.delay * UNIT_SAMPLES:
            yield from self._next(UNIT_SAMPLES, n_tokens, n_forgotten)

    def finish(self, n_tokens: int = 0, n_forgotten: int = 0) -> Iterator[tuple[Place, np.ndarray]]:
        """The remaining units, at the end of the audio."""
        if len(rest := self._beginning.finish()):
            yield from self._hear(rest, n_tokens, n_forgotten)
        while len(self._waiting):
            yield from self._next(UNIT_SAMPLES, n_tokens, n_forgotten)

    def _taken(self, samples: int, n_tokens: int, n_forgotten: int) -> Iterator[tuple[Place, np.ndarray]]:
        """The units up to the end of a sentence `samples` ahead; a remainder belongs to the last one."""
        samples = min(max(round(samples / self._grid), 1) * self._grid, len(self._waiting))
        while samples >= 2 * UNIT_SAMPLES:
            yield from self._next(UNIT_SAMPLES, n_tokens, n_forgotten)
            samples -= UNIT_SAMPLES
        yield from self._next(samples, n_tokens, n_forgotten, ended=True)
        quiet_ms = 1000 * quiet_samples(self._waiting, self._quiet_level()) // SAMPLE_RATE
        self._open = self._open or quiet_ms <= QUIET_ONSET_MS

    def _next(
        self, samples: int, n_tokens: int, n_forgotten: int, ended: bool = False
    ) -> Iterator[tuple[Place, np.ndarray]]:
        unit, self._waiting = self._waiting[:samples], self._waiting[samples:]
        self._n_placed += len(unit)
        yield from self._placed(unit, n_tokens, n_forgotten, ended)

    def _placed(
        self, unit: np.ndarray, n_tokens: int, n_forgotten: int, ended: bool = False
    ) -> Iterator[tuple[Place, np.ndarray]]:
        """A unit with its place; between segments, its silence and its sound separately."""
        if not self._open:
            silence = self._silence_before(unit)
            if silence:
                yield Place.BETWEEN, unit[:silence]
            unit = unit[silence:]
        if len(unit):
            yield self._place(unit, n_tokens, n_forgotten, ended), unit

    def _silence_before(self, unit: np.ndarray) -> int:
        """The number of samples before the sound in a unit that begins the next segment; all if there is none."""
        level = level_of(unit)
        self._floor = min(self._floor, level)
        sound = max(self._silence, min(self._quiet_level(), self._floor + ONSET_DB))
        self._open = level >= sound
        if not self._open:
            return len(unit)
        return quiet_samples(unit, sound) // self._grid * self._grid

    def _place(self, unit: np.ndarray, n_tokens: int, n_forgotten: int, ended: bool) -> Place:
        level = level_of(unit)
        self._n_samples += len(unit)
        self._levels.append(level)
        if self.options.kind in AT_PAUSES and level < self._quiet_level():
            self._n_quiet, self._floor = self._n_quiet + 1, min(self._floor, level)
        else:
            self._n_quiet, self._floor = 0, math.inf
        if not self._ends(n_tokens, n_forgotten, ended):
            return Place.SPEECH
        self._open = not (self._n_quiet or ended)
        self._n_samples = self._n_quiet = 0
        self.n_ended += 1
        return Place.END

    def _ends(self, n_tokens: int, n_forgotten: int, ended: bool) -> bool:
        options = self.options
        seconds = self._n_samples / SAMPLE_RATE
        kept = (self._n_samples - n_forgotten * UNIT_SAMPLES) / SAMPLE_RATE
        if seconds < options.min_seconds:
            return False
        paused = self._n_quiet * UNIT_MS >= options.pause_ms
        reached = {
            "pause": paused,
            "sentence": paused or ended,
            "tokens": n_tokens >= options.tokens,
            "seconds": False,
        }
        return reached[options.kind] or kept >= options.max_seconds

    def _quiet_level(self) -> float:
        """The level below which a unit counts as part of a pause."""
        return max(self._silence, max(self._levels, default=-math.inf) - self.options.pause_db)
