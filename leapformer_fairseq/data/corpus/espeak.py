"""Text to speech with espeak-ng, from the library in the `espeakng-loader` wheel, without a system package.

espeak-ng keeps state between calls: the same text twice gives slightly different samples, and only the same sequence of
calls in a fresh process is reproducible bit by bit. `synthesize` therefore runs in a separate process. Variants with
breath are not reproducible at all (see `plan.VOICES`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...runtime import espeak
from ...runtime.audio import INT16_SCALE
from ...runtime.espeak import require_loader, symbol_of
from ...runtime.spoken import PAUSE
from ...support.errors import LeapformerError
from ..alignments import Interval, with_single_pauses
from ..recordings import resample

__all__ = ["Espeak", "Speech", "require_loader"]

RATE, PITCH = 1, 3  # from espeak-ng's speak_lib.h
MARK_S = 0.001  # events are at whole milliseconds, so at most this before what they mark


@dataclass(frozen=True)
class Speech:
    """Speech: `samples` in [-1, 1] at 16 kHz, (T,) float32, and its phonemes with their times, without gaps."""

    samples: np.ndarray
    phonemes: list[Interval]


class Espeak(espeak.Espeak):
    """An espeak-ng that speaks. There is one engine per process: use one object, from one thread."""

    def say(self, text: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        """Speak `text`: (T,) float32 in [-1, 1] at 16 kHz.

        `voice` is a language with an optional variant (`en-us+f2`), `rate` is in words per minute, `pitch` from 0 to
        99. Raises LeapformerError for an unknown language (espeak-ng ignores an unknown variant), and if nothing is
        spoken.
        """
        return self._resampled(self._synthesize(text, voice, rate, pitch))

    def say_with_phonemes(self, text: str, voice: str, rate: int, pitch: int) -> Speech:
        """Speak as `say` does, and return the phonemes, too; silence is the phoneme PAUSE, also at both ends.

        The silence before a consonant, such as the closure of a stop, is part of the consonant. After some vowels,
        espeak-ng merges an l with the vowel and reports no boundary: each gets half of the time. Raises LeapformerError
        as `say` does, and if espeak-ng does not report the first phoneme.
        """
        samples = self._synthesize(text, voice, rate, pitch)
        marks = [(milliseconds * self._rate // 1000, symbol_of(name)) for milliseconds, name in self._marks]
        onsets = _onsets(samples, [(0, ""), *marks, (len(samples), "")], round(MARK_S * self._rate))
        if onsets[0][0]:
            raise LeapformerError(f"espeak-ng did not report the first phoneme of {text!r}; say it in a new process")
        ends = [onset for onset, _ in onsets[1:]] + [len(samples)]
        phonemes = [
            Interval(onset / self._rate, end / self._rate, symbol)
            for (onset, symbol), end in zip(onsets, ends, strict=True)
        ]
        return Speech(self._resampled(samples), with_single_pauses(_with_shared_time(phonemes)))

    def _synthesize(self, text: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        """16-bit samples at espeak-ng's rate; leaves the phonemes' names and times in `_marks`."""
        self._set_voice(voice)
        self._library.espeak_SetParameter(RATE, rate, 0)
        self._library.espeak_SetParameter(PITCH, pitch, 0)
        self._speak(text)
        if not self._pieces:
            raise LeapformerError(f"espeak-ng said nothing for {text!r}")
        return np.concatenate(self._pieces)

    def _resampled(self, samples: np.ndarray) -> np.ndarray:
        return resample(samples.astype(np.float32) / np.float32(INT16_SCALE), self._rate)


def _onsets(samples: np.ndarray, marks: list[tuple[int, str]], mark: int) -> list[tuple[int, str]]:
    """(first sample, symbol) of each phoneme, from the marks (sample, symbol), whose last one is the end of the speech.

    A phoneme begins with the silence before it. A mark without a name is a pause if the samples up to the next mark are
    silent, except for the first `mark` of them; otherwise it is a glide that belongs to the phoneme before.
    """
    onsets: list[tuple[int, str]] = []
    earliest = 0
    for (position, symbol), (following, _) in pairwise(marks):
        if symbol:
            sounding = np.flatnonzero(samples[earliest:position])
            onsets.append((earliest + int(sounding[-1]) + 1 if len(sounding) else earliest, symbol))
            earliest = position
        elif not samples[position + mark : following].any():
            onsets.append((position, PAUSE))
            earliest = following
        else:
            earliest = position
    return onsets


def _with_shared_time(phonemes: list[Interval]) -> list[Interval]:
    """Give a phoneme that has no time half of the time of the phoneme before it."""
    shared: list[Interval] = []
    for phoneme in phonemes:
        if phoneme.text != PAUSE and phoneme.end - phoneme.start < 2 * MARK_S and shared:
            middle = (shared[-1].start + phoneme.end) / 2
            shared[-1] = shared[-1]._replace(end=middle)
            phoneme = phoneme._replace(start=middle)
        shared.append(phoneme)
    return shared
