"""Text to speech with espeak-ng, from the library in the `espeakng-loader` wheel, without a system package.

espeak-ng keeps state between calls: the same text twice gives slightly different samples, and only the same sequence of
calls in a fresh process is reproducible bit by bit. `synthesize` therefore runs in a separate process. Variants with
breath are not reproducible at all (see `plan.VOICES`).

Phonemes are in IPA, without stress marks: espeak-ng's English then has 55 phonemes, 85 with the marks, and an
unstressed vowel is usually a different vowel anyway.
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
SEPARATOR, SEPARATOR_BIT = "\x1f", 8  # in no phoneme's name

STRESS = "ˈˌ"
MARK_S = 0.001  # events are at whole milliseconds, so at most this before what they mark


class Name(ctypes.Union):
    """`id` of an event; of a phoneme it is up to 8 bytes of UTF-8."""

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
    """`samples` in [-1, 1] at 16 kHz, float32, shape (T,), and the times of all phonemes, without gaps between them."""

    samples: np.ndarray
    phonemes: list[Interval]


class Espeak:
    """A loaded espeak-ng. There is one engine per process: use one object, from one thread."""

    def __init__(self) -> None:
        loader = require_loader()
        self._library = ctypes.CDLL(loader.get_library_path())
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        data = str(loader.get_data_path()).encode()
        options = INITIALIZE_PHONEME_EVENTS | INITIALIZE_PHONEME_IPA  # the samples are the same with and without
        self._rate = self._library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, data, options)
        if self._rate <= 0:
            raise LeapformerError(f"espeak-ng cannot read its data in {data.decode()}; reinstall espeakng-loader")
        self._pieces: list[np.ndarray] = []
        self._marks: list[tuple[int, bytes]] = []  # milliseconds and names of phonemes
        self._callback = SynthCallback(self._collect)  # kept here: ctypes does not keep it alive
        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[Event]) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        number = 0
        while (event := events[number]).type != EVENT_LIST_TERMINATED:
            if event.type == EVENT_PHONEME:
                self._marks.append((event.audio_position, event.id.string))
            number += 1
        return 0  # continue

    def say(self, text: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        """Speech in [-1, 1] at 16 kHz, float32, shape (T,).

        `voice` is a language with an optional variant (`en-us+f2`), `rate` is in words per minute, `pitch` from 0 to
        99. Raises LeapformerError for an unknown language (espeak-ng ignores an unknown variant) and if there is no
        speech.
        """
        return self._resampled(self._synthesize(text, voice, rate, pitch))

    def say_with_phonemes(self, text: str, voice: str, rate: int, pitch: int) -> Speech:
        """The same samples, and their phonemes; silence is the phoneme PAUSE, also at the beginning and the end.

        The silence before a consonant, such as the closure of a stop, is part of the consonant. After some vowels,
        espeak-ng speaks an l in one sound with the vowel and reports no boundary: each gets half of the time. Raises
        LeapformerError as `say` does, and if espeak-ng does not report the first phoneme.
        """
        samples = self._synthesize(text, voice, rate, pitch)
        marks = [(milliseconds * self._rate // 1000, _symbol(name)) for milliseconds, name in self._marks]
        onsets = _onsets(samples, [(0, ""), *marks, (len(samples), "")], round(MARK_S * self._rate))
        if onsets[0][0]:
            raise LeapformerError(f"espeak-ng did not tell the first phoneme of {text!r}; say it in a new process")
        ends = [onset for onset, _ in onsets[1:]] + [len(samples)]
        phonemes = [
            Interval(onset / self._rate, end / self._rate, symbol)
            for (onset, symbol), end in zip(onsets, ends, strict=True)
        ]
        return Speech(self._resampled(samples), with_single_pauses(_with_shared_time(phonemes)))

    def phonemes(self, text: str, voice: str) -> list[str]:
        """The phonemes of `text`, without synthesis; PAUSE where espeak-ng would be silent within it.

        Empty if there is nothing to say. Raises LeapformerError for an unknown language.
        """
        self._set_voice(voice)
        # An empty name in IPA is a pause or a glide; espeak-ng's own names tell which.
        clauses = zip(self._clauses(text, PHONEMES_IN_IPA), self._clauses(text, 0), strict=True)
        self._speak(" ")  # after some 30 clauses without speech, the next speech comes without its first phoneme
        found: list[str] = []
        for symbols, names in clauses:
            found.append(PAUSE)
            found += [
                PAUSE if name.startswith("_") else _symbol(symbol.encode())
                for symbol, name in zip(symbols, names, strict=True)
            ]
        found = [symbol for symbol in found if symbol and symbol[0] != "("]  # (hi): from here on another language
        single = [symbol for last, symbol in pairwise([PAUSE, *found]) if not last == symbol == PAUSE]
        return single[:-1] if single and single[-1] == PAUSE else single

    def _set_voice(self, voice: str) -> None:
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise LeapformerError(f"espeak-ng has no voice {voice!r}; see lang/ in its data folder")

    def _synthesize(self, text: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        """16-bit samples at espeak-ng's rate; the phonemes' names and times are in `_marks` then."""
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
        self._library.espeak_Synchronize()

    def _resampled(self, samples: np.ndarray) -> np.ndarray:
        return resample(samples.astype(np.float32) / np.float32(INT16_SCALE), self._rate)

    def _clauses(self, text: str, alphabet: int) -> list[list[str]]:
        """The phonemes of each clause in one of espeak-ng's alphabets."""
        rest = ctypes.c_char_p(text.encode())
        clauses = []
        while rest.value is not None:
            mode = alphabet | ord(SEPARATOR) << SEPARATOR_BIT
            spoken = self._library.espeak_TextToPhonemes(ctypes.byref(rest), CHARS_UTF8, mode).decode()
            clauses.append([name for word in spoken.split(" ") for name in word.split(SEPARATOR)])
        return clauses


def _symbol(name: bytes) -> str:
    """A phoneme's name as a symbol, empty for what has no name; a name that was cut off after 8 bytes is completed."""
    return name.decode("utf-8", "ignore").strip(STRESS)


def _onsets(samples: np.ndarray, marks: list[tuple[int, str]], mark: int) -> list[tuple[int, str]]:
    """Phonemes with the samples at which they begin, from their marks, which end with one for the end.

    A phoneme begins where the silence before it does. What has no name is a pause if it is silent (but for its first
    `mark` samples), otherwise a glide that belongs to the phoneme before.
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
    """Half of the time of the phoneme before for a phoneme that has none of its own."""
    shared: list[Interval] = []
    for phoneme in phonemes:
        if phoneme.text != PAUSE and phoneme.end - phoneme.start < 2 * MARK_S and shared:
            middle = (shared[-1].start + phoneme.end) / 2
            shared[-1] = shared[-1]._replace(end=middle)
            phoneme = phoneme._replace(start=middle)
        shared.append(phoneme)
    return shared
