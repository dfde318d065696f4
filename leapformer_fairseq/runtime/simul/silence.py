"""Silence before speech, such as a microphone records until somebody speaks.

A model writes words for silence, too, because none of its training recordings was silent. Audio is therefore held back
until the first sound, which is found by the level of each unit of 40 ms.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from ...support.errors import LeapformerError
from ..audio import FRAME_MS, SAMPLE_RATE, UNIT_SAMPLES

FRAME = SAMPLE_RATE * FRAME_MS // 1000
SILENCE_DB = -55.0  # of full scale: quieter audio is silence
LOUD_DB = -40.0  # louder audio is a sound, even above loud noise
ONSET_DB = 10.0  # this much above the quietest unit so far is a sound, however quiet
QUIET_ONSET_MS = 100  # speech may begin with a quiet consonant, which is not longer than this
UTTERANCE_MS = 1000  # of silence at the beginning of a data set's recordings that is kept
MIDDLE_MS = 1000  # of silence within a segment that is kept where pauses do not end segments


def level_of(samples: np.ndarray) -> float:
    """Root mean square of samples in [-1, 1], in decibels; -100 is silence."""
    return 10 * math.log10(float(np.mean(np.square(samples, dtype=np.float64))) + 1e-10)


def quiet_samples(samples: np.ndarray, sound: float) -> int:
    """The number of samples before the first 10 ms that are at least as loud as `sound`, in decibels."""
    starts = range(0, len(samples), FRAME)
    return next((at for at in starts if level_of(samples[at : at + FRAME]) >= sound), len(samples))


def check_silence(silence_db: float | None) -> None:
    """Raise LeapformerError for a level that is not below full scale."""
    if silence_db is not None and not silence_db < 0:
        raise LeapformerError(
            f"--silence-db {silence_db}: give decibels of full scale, below 0, as in {SILENCE_DB:g}, or off"
        )


class Beginning:
    """Holds audio back until the first sound and drops long silence before it, in constant memory.

    A sound is at least as loud as `silence_db`, and as LOUD_DB or ONSET_DB above the quietest unit so far, so that
    steady noise is not a sound. With `silence_db` None, all audio is passed on. Silence of at most `kept_ms` is passed
    on with the sound; of longer silence, the last `lead_ms` are. `grid`: as in `segments.Segmenter`.
    """

    def __init__(
        self, silence_db: float | None, kept_ms: int, lead_ms: int = 0, grid: int = SAMPLE_RATE // 1000
    ) -> None:
        check_silence(silence_db)
        self.begun = silence_db is None
        self.n_left_out = 0  # samples of silence that are not passed on
        self._silence = -math.inf if silence_db is None else silence_db
        self._kept, self._lead = (SAMPLE_RATE * length // 1000 for length in (kept_ms, lead_ms))
        self._grid = grid
        self._floor = math.inf  # level of the quietest unit so far
        self._n_silent = 0  # samples before the first sound so far
        self._held = np.zeros(0, np.float32)  # the last of these samples
        self._rest = np.zeros(0, np.float32)  # an incomplete unit

    @classmethod
    def of_utterance(cls, silence_db: float | None, lead_ms: int | None) -> Self:
        """For a recording of a data set, which begins as in training: silence up to UTTERANCE_MS is kept.

        With `lead_ms`, silence is dropped as in a live session.
        """
        return cls(silence_db, UTTERANCE_MS) if lead_ms is None else cls(silence_db, QUIET_ONSET_MS, lead_ms)

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Add samples (T,), and return those that are passed on now: none, or all that are not dropped."""
        if self.begun:
            return samples
        known = np.concatenate([self._rest, samples])
        for start in range(0, len(known) - UNIT_SAMPLES + 1, UNIT_SAMPLES):
            self._judge(known[start : start + UNIT_SAMPLES])
            if self.begun:
                held, self._held = self._held, self._held[:0]
                return np.concatenate([held, known[start + UNIT_SAMPLES :]])
        self._rest = known[len(known) - len(known) % UNIT_SAMPLES :]
        return known[:0]

    def finish(self) -> np.ndarray:
        """The samples that are passed on at the end of the audio, where a sound may be shorter than a unit."""
        rest, self._rest = self._rest, self._rest[:0]
        if len(rest) and not self.begun:
            self._judge(rest)
        held, self._held = self._held if self.begun else self._held[:0], self._held[:0]
        return held

    def _judge(self, unit: np.ndarray) -> None:
        """Hold a unit back, or begin with the sound in it and with the part of the silence before it that is kept."""
        level = level_of(unit)
        self._floor = min(self._floor, level)
        sound = max(self._silence, min(LOUD_DB, self._floor + ONSET_DB))
        self.begun = level >= sound
        quiet = quiet_samples(unit, sound) // self._grid * self._grid if self.begun else len(unit)
        self._n_silent += quiet
        kept = self._n_silent if self._n_silent <= self._kept else min(self._lead, self._n_silent)
        self.n_left_out = self._n_silent - kept if self.begun else self._n_silent
        needed = len(unit) - quiet + kept if self.begun else max(self._kept, self._lead)
        self._held = np.concatenate([self._held, unit])[-needed:]
