"""Text to speech with espeak-ng, from the library in the `espeakng-loader` wheel, without a system package.

espeak-ng keeps state between calls: the same text spoken twice gives slightly different samples, and only the same
sequence of calls in a fresh process is reproducible bit by bit. `synthesize` therefore runs in separate processes.
Variants with breath are not reproducible at all (see `plan.VOICES`).

Phonemes are in IPA without stress marks: espeak-ng's English then has 55 phonemes instead of 85, and an unstressed
vowel is usually a different vowel anyway.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

import numpy as np

from ...runtime.audio import INT16_SCALE
from ...support.errors import LeapformerError
from ..alignments import PAUSE, Interval, with_single_pauses
from ..recordings import resample

# From espeak-ng's speak_lib.h.
AUDIO_OUTPUT_SYNCHRONOUS = 2
INITIALIZE_PHONEME_EVENTS, INITIALIZE_PHONEME_IPA = 1, 2
EVENT_LIST_TERMINATED, EVENT_PHONEME = 0, 7
POSITION_CHARACTER = 1
CHARS_UTF8 = 1
RATE, PITCH = 1, 3
PHONEMES_IN_IPA = 2
SEPARATOR, SEPARATOR_BIT = "\x1f", 8  # a character that no phoneme's name contains

STRESS = "ˈˌ"
MARK_S = 0.001  # events are rounded down to milliseconds, so they are early by at most this


class Name(ctypes.Union):
    """The `id` of an event; for a phoneme, `string` has up to 8 bytes of UTF-8."""

    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class Event(ctypes.Structure):
    """`espeak_EVENT`; `audio_position` is in milliseconds from the start of the text."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", Name),
    )


SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))


def require_loader() -> ModuleType:
    """The `espeakng_loader` module. Raises LeapformerError with installation instructions if it is missing."""
    try:
        return importlib.import_module("espeakng_loader")
    except ImportError as error:
        raise LeapformerError(
            "this needs espeak-ng, which is not installed; pip install 'leapformer_fairseq[demo]'"
        ) from error


@dataclass(frozen=True)
class Speech:
    """Speech: `samples` in [-1, 1] at 16 kHz, (T,) float32, and its phonemes with their times, without gaps."""

    samples: np.ndarray
    phonemes: list[Interval]


class Espeak:
    """The espeak-ng engine. A process has only one: create one object, and use it from one thread."""

    def __init__(self) -> None:
        loader = require_loader()
        self._library = ctypes.CDLL(loader.get_library_path())
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        data = str(loader.get_data_path()).encode()
        options = INITIALIZE_PHONEME_EVENTS | INITIALIZE_PHONEME_IPA  # these do not change the samples
        self._rate = self._library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, data, options)
        if self._rate <= 0:
            raise LeapformerError(f"espeak-ng cannot read its data in {data.decode()}; reinstall espeakng-loader")
        self._pieces: list[np.ndarray] = []
        self._marks: list[tuple[int, bytes]] = []  # milliseconds and names of phonemes
        self._callback = SynthCallback(self._collect)  # referenced here, since ctypes does not keep it alive
        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[Event]) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())  # espeak-ng reuses the buffer
        number = 0
        while (event := events[number]).type != EVENT_LIST_TERMINATED:
            if event.type == EVENT_PHONEME:
                self._marks.append((event.audio_position, event.id.string))
            number += 1
        return 0  # 1 would stop the synthesis

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
        marks = [(milliseconds * self._rate // 1000, _symbol(name)) for milliseconds, name in self._marks]
        onsets = _onsets(samples, [(0, ""), *marks, (len(samples), "")], round(MARK_S * self._rate))
        if onsets[0][0]:
            raise LeapformerError(f"espeak-ng did not report the first phoneme of {text!r}; say it in a new process")
        ends = [onset for onset, _ in onsets[1:]] + [len(samples)]
        phonemes = [
            Interval(onset / self._rate, end / self._rate, symbol)
            for (onset, symbol), end in zip(onsets, ends, strict=True)
        ]
        return Speech(self._resampled(samples), with_single_pauses(_with_shared_time(phonemes)))

    def phonemes(self, text: str, voice: str) -> list[str]:
        """The phonemes of `text`, without synthesis; PAUSE stands for silence between phonemes.

        Empty if there is nothing to say. Raises LeapformerError for an unknown language.
        """
        self._set_voice(voice)
        # An empty IPA name is a pause or a glide; espeak-ng's own names distinguish them.
        clauses = zip(self._clauses(text, PHONEMES_IN_IPA), self._clauses(text, 0), strict=True)
        # After some 30 clauses without synthesis, espeak-ng omits the first phoneme of the next speech.
        self._speak(" ")
        phonemes: list[str] = []
        for symbols, names in clauses:
            phonemes.append(PAUSE)
            phonemes += [
                PAUSE if name.startswith("_") else _symbol(symbol.encode())
                for symbol, name in zip(symbols, names, strict=True)
            ]
        phonemes = [symbol for symbol in phonemes if symbol and symbol[0] != "("]  # "(hi)" switches the language
        single = [symbol for last, symbol in pairwise([PAUSE, *phonemes]) if not last == symbol == PAUSE]
        return single[:-1] if single and single[-1] == PAUSE else single

    def _set_voice(self, voice: str) -> None:
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise LeapformerError(f"espeak-ng has no voice {voice!r}; see lang/ in its data folder")

    def _synthesize(self, text: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        """16-bit samples at espeak-ng's rate; leaves the phonemes' names and times in `_marks`."""
        self._set_voice(voice)
        self._library.espeak_SetParameter(RATE, rate, 0)
        self._library.espeak_SetParameter(PITCH, pitch, 0)
        self._speak(text)
        if not self._pieces:
            raise LeapformerError(f"espeak-ng said nothing for {text!r}")
        return np.concatenate(self._pieces)

    def _speak(self, text: str) -> None:
        self._pieces.clear()
        self._marks.clear()
        encoded = text.encode()
        pointer, size = ctypes.c_char_p(encoded), ctypes.c_size_t(len(encoded) + 1)
        self._library.espeak_Synth(pointer, size, 0, POSITION_CHARACTER, 0, CHARS_UTF8, None, None)
        self._library.espeak_Synchronize()  # returns after the last callback

    def _resampled(self, samples: np.ndarray) -> np.ndarray:
        return resample(samples.astype(np.float32) / np.float32(INT16_SCALE), self._rate)

    def _clauses(self, text: str, alphabet: int) -> list[list[str]]:
        """The phonemes of each clause in one of espeak-ng's alphabets."""
        rest = ctypes.c_char_p(text.encode())  # espeak-ng advances it by a clause, and sets it to NULL at the end
        clauses = []
        while rest.value is not None:
            mode = alphabet | ord(SEPARATOR) << SEPARATOR_BIT
            spoken = self._library.espeak_TextToPhonemes(ctypes.byref(rest), CHARS_UTF8, mode).decode()
            clauses.append([name for word in spoken.split(" ") for name in word.split(SEPARATOR)])
        return clauses


def _symbol(name: bytes) -> str:
    """A phoneme's name as a symbol, "" if it has none; a character cut in two by the limit of 8 bytes is dropped."""
    return name.decode("utf-8", "ignore").strip(STRESS)


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
