"""Phonemes of written text, by espeak-ng from the library in the `espeakng-loader` wheel, without a system package.

Phonemes are in IPA, without stress marks: espeak-ng's English then has 55 phonemes, 85 with the marks, and an
unstressed vowel is usually a different vowel anyway.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from ..support.errors import LeapformerError
from .spoken import PAUSE

CONFIG = "espeak"  # of a data configuration: the voice, and whether there is silence around the phonemes
# From espeak-ng's speak_lib.h.
AUDIO_OUTPUT_SYNCHRONOUS = 2
INITIALIZE_PHONEME_EVENTS, INITIALIZE_PHONEME_IPA = 1, 2
EVENT_LIST_TERMINATED, EVENT_PHONEME = 0, 7
POSITION_CHARACTER = 1
CHARS_UTF8 = 1
PHONEMES_IN_IPA = 2
SEPARATOR, SEPARATOR_BIT = "\x1f", 8  # in no phoneme's name

STRESS = "ˈˌ"


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
            "this needs espeak-ng, which is not installed; pip install 'leapformer-fairseq[demo]'"
        ) from error


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
        return 0  # continue

    def phonemes(self, text: str, voice: str) -> list[str]:
        """The phonemes of `text`, without synthesis; PAUSE where espeak-ng would be silent within it.

        Empty if there is nothing to say. Raises LeapformerError for an unknown language.
        """
        self._set_voice(voice)
        # An empty name in IPA is a pause or a glide; espeak-ng's own names tell which.
        clauses = zip(self._clauses(text, PHONEMES_IN_IPA), self._clauses(text, 0), strict=True)
        self._speak(" ")  # after some 30 clauses without speech, the next speech comes without its first phoneme
        phonemes: list[str] = []
        for symbols, names in clauses:
            phonemes.append(PAUSE)
            phonemes += [
                PAUSE if name.startswith("_") else symbol_of(symbol.encode())
                for symbol, name in zip(symbols, names, strict=True)
            ]
        phonemes = [symbol for symbol in phonemes if symbol and symbol[0] != "("]  # (hi): from here on another language
        single = [symbol for last, symbol in pairwise([PAUSE, *phonemes]) if not last == symbol == PAUSE]
        return single[:-1] if single and single[-1] == PAUSE else single

    def _set_voice(self, voice: str) -> None:
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise LeapformerError(f"espeak-ng has no voice {voice!r}; see lang/ in its data folder")

    def _speak(self, text: str) -> None:
        self._pieces.clear()
        self._marks.clear()
        encoded = text.encode()
        pointer, size = ctypes.c_char_p(encoded), ctypes.c_size_t(len(encoded) + 1)
        self._library.espeak_Synth(pointer, size, 0, POSITION_CHARACTER, 0, CHARS_UTF8, None, None)
        self._library.espeak_Synchronize()

    def _clauses(self, text: str, alphabet: int) -> list[list[str]]:
        """The phonemes of each clause in one of espeak-ng's alphabets."""
        rest = ctypes.c_char_p(text.encode())
        clauses = []
        while rest.value is not None:
            mode = alphabet | ord(SEPARATOR) << SEPARATOR_BIT
            spoken = self._library.espeak_TextToPhonemes(ctypes.byref(rest), CHARS_UTF8, mode).decode()
            clauses.append([name for word in spoken.split(" ") for name in word.split(SEPARATOR)])
        return clauses


def symbol_of(name: bytes) -> str:
    """A phoneme's name as a symbol, empty for what has no name; a name that was cut off after 8 bytes is completed."""
    return name.decode("utf-8", "ignore").strip(STRESS)


def phonemes_of(texts: Sequence[str], data: Mapping[str, Any]) -> list[str]:
    """Convert texts to phonemes separated by spaces, as in the data set with the configuration `data`.

    Raises LeapformerError if its phonemes are not espeak-ng's. A text without phonemes becomes "".
    """
    if CONFIG not in data:
        raise LeapformerError("the phonemes of this model's data are not those of espeak-ng; give --phonemes")
    espeak, around = Espeak(), [PAUSE] if data[CONFIG]["silence"] else []
    said = [espeak.phonemes(text, data[CONFIG]["voice"]) for text in texts]
    return [" ".join([*around, *phonemes, *around]) if phonemes else "" for phonemes in said]
