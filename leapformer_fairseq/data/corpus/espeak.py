"""Text to speech with espeak-ng, from the library inside the `espeakng-loader` wheel: nothing to install by apt.

espeak-ng carries state from call to call: the same text twice gives slightly different samples, and only the same
sequence of calls in a fresh process repeats bit by bit. `synthesize` therefore runs in a process of its own. Variants
with breath do not repeat at all (see `plan.VOICES`).
"""

from __future__ import annotations

import ctypes
import importlib
import math
from types import ModuleType

import numpy as np
from scipy.signal import resample_poly

from ...audio import INT16_SCALE, SAMPLE_RATE
from ...errors import LeapformerError

# From espeak-ng's speak_lib.h.
AUDIO_OUTPUT_SYNCHRONOUS = 2
POSITION_CHARACTER = 1
CHARS_UTF8 = 1
RATE, PITCH = 1, 3

SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def require_loader() -> ModuleType:
    """The `espeakng_loader` module, or a LeapformerError that says how to get it."""
    try:
        return importlib.import_module("espeakng_loader")
    except ImportError as error:
        raise LeapformerError(
            "building the corpus needs espeak-ng, which is not installed; pip install 'leapformer_fairseq[demo]'"
        ) from error


class Espeak:
    """A loaded espeak-ng. There is one engine in a process: use one object, from one thread."""

    def __init__(self) -> None:
        loader = require_loader()
        self._library = ctypes.CDLL(loader.get_library_path())
        data = str(loader.get_data_path()).encode()
        self._rate = self._library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, data, 0)
        if self._rate <= 0:
            raise LeapformerError(f"espeak-ng cannot read its data in {data.decode()}; reinstall espeakng-loader")
        self._pieces: list[np.ndarray] = []
        self._callback = SynthCallback(self._collect)  # kept here: ctypes does not keep it alive
        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: int) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0  # go on

    def say(self, text: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        """Speech in [-1, 1] at 16 kHz, float32, shape (T,).

        `voice` is a language with an optional variant (`en-us+f2`), `rate` is in words per minute, `pitch` 0 to 99.
        Raises LeapformerError for an unknown language (espeak-ng ignores an unknown variant) and when nothing is said.
        """
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise LeapformerError(f"espeak-ng has no voice {voice!r}; see lang/ in its data folder")
        self._library.espeak_SetParameter(RATE, rate, 0)
        self._library.espeak_SetParameter(PITCH, pitch, 0)
        self._pieces.clear()
        encoded = text.encode()
        pointer, size = ctypes.c_char_p(encoded), ctypes.c_size_t(len(encoded) + 1)
        self._library.espeak_Synth(pointer, size, 0, POSITION_CHARACTER, 0, CHARS_UTF8, None, None)
        self._library.espeak_Synchronize()
        if not self._pieces:
            raise LeapformerError(f"espeak-ng said nothing for {text!r}")
        samples = np.concatenate(self._pieces).astype(np.float32) / np.float32(INT16_SCALE)
        common = math.gcd(self._rate, SAMPLE_RATE)
        return resample_poly(samples, SAMPLE_RATE // common, self._rate // common).astype(np.float32)
