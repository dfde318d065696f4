"""The messages between a client and the server over a WebSocket.

The client sends JSON objects (text) and audio (bytes: mono 16-bit little-endian PCM). The server answers every piece of
audio that was translated with `{"new": .., "deleted": ..}`: delete so much from the end of the text shown so far, then
append. That is the protocol of simulstream 1.0 (`simulstream_wavs_client`), whose clients ignore further keys:

=============  ===================================================================================================
from clients
`sample_rate`  of the audio that follows, in Hz (16,000 unless told)
`end_of_stream`  true: no more audio; the connection may be used again
`drafts`       ours: also show words that may still change
`talk`         ours: go on with this talk, by its key, after a lost connection or a restart of the server
`begin`        ours, true: or begin it with this key, NAME.SECRET, random hexadecimal digits of which NAME has 32
`turn`         ours, with `talk`: numbers the connections of a speaker; one with a smaller number than another's is late
`from`         ours: the next audio begins with this sample of the talk; what was received is skipped
`lagging`      ours: another k of wait-k, from the next segment on
from the server
`events`       the same as objects: text, final, ends (its segment), segment, audio_s
`heard_s`      seconds of audio that are translated; `behind_s`: that are received and wait; `rtf`: real-time factor
`listen`       the talk's name, once, at its beginning: /listen/NAME shows the same text
`history`      its final events so far, for who comes later
`talk`         to a speaker: the key of the talk, which nobody else should know
`received`     samples that came so far
`begun`        to a speaker: the talk began just now, there was none of this key
`settled`      samples whose text is final whatever happens; a client keeps those after them, to send them again
`error`        one line
{}             to listeners, now and then: the connection is alive
`end_of_processing`  all is translated
=============  ===================================================================================================
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ...support.errors import LeapformerError
from ..audio import SAMPLE_RATE, TO_PCM, file_kind, pcm_samples

RATES = 8_000, 192_000
# the type of each key in a client's message; unknown keys belong to other programs and are ignored
KEYS: dict[str, type] = {
    "sample_rate": int,
    "end_of_stream": bool,
    "drafts": bool,
    "talk": str,
    "lagging": int,
    "from": int,
    "begin": bool,
    "turn": int,
}
LARGEST = 2**53 - 1  # the largest whole number that is exact in JSON for every program
HEAD_BYTES = 10_000  # more than a frame of MP3 or AAC
LONGEST_SHOWN = 80  # characters of a message that an error quotes


def parse(text: str) -> dict[str, Any]:
    """The known keys of a client's message. Raises LeapformerError for anything but an object with fitting values."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LeapformerError(f"{text[:LONGEST_SHOWN]!r} is not JSON; send an object, or audio as bytes") from error
    if not isinstance(message, dict):
        raise LeapformerError(f'{text[:LONGEST_SHOWN]!r} is not a JSON object; send e.g. {{"end_of_stream": true}}')
    known = {key: value for key, value in message.items() if key in KEYS}
    for key, value in known.items():
        if type(value) is not KEYS[key]:
            raise LeapformerError(f"{key} is {str(value)[:LONGEST_SHOWN]!r}; give a value of type {KEYS[key].__name__}")
        if isinstance(value, int) and value > LARGEST:
            raise LeapformerError(f"{key} is {str(value)[:LONGEST_SHOWN]}; give at most {LARGEST}")
    rate = known.get("sample_rate", SAMPLE_RATE)
    if not RATES[0] <= rate <= RATES[1]:
        raise LeapformerError(f"sample_rate is {rate}; give Hz from {RATES[0]:,} to {RATES[1]:,}")
    for key, counted in ("from", "samples"), ("turn", "connections"):
        if known.get(key, 0) < 0:
            raise LeapformerError(f"{key} is {known[key]}; give a number of {counted}")
    if known.get("lagging", 1) < 1:
        raise LeapformerError(f"lagging is {known['lagging']}; give k of wait-k, at least 1")
    return known


class Samples:
    """Converts arriving audio of one sample rate to samples in [-1, 1] at 16 kHz."""

    def __init__(self, rate: int = SAMPLE_RATE) -> None:
        """Raises LeapformerError if soxr is needed for resampling and not installed."""
        self._head = b""  # first bytes of the audio, to recognise a file
        self._resampler = None if rate == SAMPLE_RATE else _resampler(rate)

    def of(self, pcm: bytes) -> np.ndarray:
        """Convert mono 16-bit little-endian PCM. Raises LeapformerError for half a sample, or the content of a file."""
        if len(self._head) < HEAD_BYTES:
            self._head = (self._head + pcm)[:HEAD_BYTES]
            if kind := file_kind(self._head):
                raise LeapformerError(f"the audio is a file ({kind}), raw 16-bit PCM is needed; {TO_PCM}")
        if len(pcm) % 2:
            raise LeapformerError(f"{len(pcm)} bytes of audio; 16-bit samples take an even number")
        samples = pcm_samples(pcm)
        if self._resampler is None or not len(samples):
            return samples
        return np.asarray(self._resampler.resample_chunk(samples))

    def rest(self) -> np.ndarray:
        """The samples left in the resampler at the end of the audio."""
        nothing = np.zeros(0, np.float32)
        return nothing if self._resampler is None else np.asarray(self._resampler.resample_chunk(nothing, last=True))


def _resampler(rate: int) -> Any:
    try:
        import soxr
    except ImportError as error:
        raise LeapformerError(
            f"audio at {rate} Hz needs soxr; pip install 'leapformer-fairseq[live]', or send {SAMPLE_RATE} Hz"
        ) from error
    return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
