"""Reading speech and computing log-mel filterbanks, whole or while the audio arrives.

Frames are those of Kaldi's filterbank as fairseq uses it (25 ms windows every 10 ms, povey window, pre-emphasis 0.97,
no dither, samples at 16-bit integer scale). One graph computes them (`acoustics.fbank`), whole or piece by piece, here
and in the browser, so a model sees while streaming what it saw in training.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

from ..support.errors import LeapformerError
from .acoustics.fbank import FRAMES, HOP_MS, SAMPLES, lengths, session

SAMPLE_RATE = 16_000
FRAME_MS = HOP_MS
AT_ONCE = 100  # frames per run of the graph: more are not faster, and take memory
UNIT_MS = 40  # four frames, of which an encoder makes one state
UNIT_SAMPLES = SAMPLE_RATE * UNIT_MS // 1000
INT16_SCALE = 2.0**15  # of the samples of 16-bit integers
MAX_AMPLITUDE = 8.0  # loud floats may pass 1 a little; 16-bit integers pass this at the first sound
PCM_BYTES = 3_200  # 100 ms, the most that is read at once
RATES = 4_000, 384_000  # lowest and highest sample rate of a recording, Hz
LONGEST = 1 << 30  # most samples in memory: 4 GiB, or 18 h of 16 kHz mono
MARK_BYTES = 12
FILE_MARKS = {  # the mark of a file type: its offset, and the name of the type
    b"RIFF": (0, "WAV"), b"RF64": (0, "WAV"), b"RIFX": (0, "WAV"), b"riff\x2e\x91\xcf\x11": (0, "W64"),
    b"fLaC": (0, "FLAC"), b"OggS": (0, "Ogg"), b"ID3": (0, "MP3"), b"FORM": (0, "AIFF"), b".snd": (0, "AU"),
    b"caff": (0, "CAF"), b"ftyp": (4, "MP4"), b"\x1a\x45\xdf\xa3": (0, "WebM"), b"ADIF": (0, "AAC"),
    b"#!AMR": (0, "AMR"), b"0&\xb2u\x8ef\xcf\x11": (0, "WMA"), b"wvpk": (0, "WavPack"), b"NIST_1A": (0, "SPHERE"),
}  # fmt: skip
TO_PCM = f"send raw PCM, e.g. `ffmpeg -i FILE -f s16le -ar {SAMPLE_RATE} -ac 1 -`"
_MPEG1 = 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320  # kbit/s of layer III
_MPEG2 = 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160


class AudioError(LeapformerError):
    """Unusable audio; `reason` is why in a few words, under which skipped recordings are counted."""

    def __init__(self, message: str, reason: str = "broken") -> None:
        super().__init__(message)
        self.reason = reason


# ---------------------------------------------------------------------------------------------------------------- files
@contextmanager
def open_audio(source: str | Path | BinaryIO, name: str = "") -> Iterator[soundfile.SoundFile]:
    """Open an audio file of any format; every reader of audio does it here.

    Raises AudioError for a file that is missing, unreadable (also while the block reads it) or empty, and for a sample
    rate outside `RATES`, which a damaged header may claim.
    """
    if isinstance(source, (str, Path)):
        name, source = str(source), Path(source)
        if not source.is_file():
            raise AudioError(f"no audio file at {name}; check the path, or the manifest that names it")
        source = str(source)
    try:
        with soundfile.SoundFile(source) as file:
            if not RATES[0] <= file.samplerate <= RATES[1]:
                raise AudioError(
                    f"{name} claims {file.samplerate:,} samples per second, {RATES[0]:,} to {RATES[1]:,} can be; is "
                    "its header damaged? record it again or leave it out",
                    f"sample rate outside {RATES[0] // 1000} to {RATES[1] // 1000} kHz",
                )
            if not file.frames:
                raise AudioError(f"{name} holds no samples; record it again or leave it out", "no samples")
            yield file
    except (soundfile.LibsndfileError, TypeError) as error:  # TypeError: raw samples, whose format is unknown
        reason = getattr(error, "error_string", error)
        raise AudioError(f"{name} cannot be read as audio ({reason}); is the file truncated?") from error


def read_audio(path: str | Path, start_s: float = 0.0, duration_s: float | None = None) -> tuple[np.ndarray, int]:
    """Read a recording or a part of it: samples (T, channels) float32, and the file's sample rate.

    Raises AudioError as `open_audio` and `check_samples` do, for a part that starts after the end, and before decoding
    anything for more than `LONGEST` samples, here or at 16 kHz.
    """
    with open_audio(path) as file:
        return _part(file, path, start_s, duration_s), file.samplerate


def read_speech(
    path: str | Path, sample_rate: int = SAMPLE_RATE, start_s: float = 0.0, duration_s: float | None = None
) -> np.ndarray:
    """Read a mono recording at `sample_rate`, or a part of it: samples (T,) in [-1, 1].

    Raises AudioError as `read_audio` does, and for several channels or another rate.
    """
    with open_audio(path) as file:
        check_speech(file.channels, file.samplerate, str(path), sample_rate)
        return _part(file, path, start_s, duration_s)[:, 0]


def _part(file: soundfile.SoundFile, path: str | Path, start_s: float, duration_s: float | None) -> np.ndarray:
    """As `read_audio`, from an open file."""
    count = None if duration_s is None else round(duration_s * file.samplerate)
    return samples_of(file, str(path), round(start_s * file.samplerate), count)


def samples_of(file: soundfile.SoundFile, name: str, start: int = 0, count: int | None = None) -> np.ndarray:
    """Read at most `count` samples (T, channels) float32 of an open file, from sample `start`.

    Raises AudioError as `read_audio` does.
    """
    if start >= file.frames:
        raise AudioError(
            f"{name} ends at {file.frames / file.samplerate:.2f} s, before {start / file.samplerate:.2f} s, where a "
            "segment starts; is the file truncated?",
            "start after the end of the file",
        )
    count = file.frames - start if count is None else min(count, file.frames - start)
    if max(count * file.channels, count / file.samplerate * SAMPLE_RATE) > LONGEST:
        raise AudioError(
            f"{name} has {count / file.samplerate / 3600:.1f} h of {file.channels} channels at "
            f"{file.samplerate:,} Hz, more than fits in memory ({LONGEST:,} samples); cut it, or is its header "
            "damaged?",
            "too much to decode",
        )
    file.seek(start)
    samples: np.ndarray = file.read(count, dtype="float32", always_2d=True)
    check_samples(samples, name)
    return samples


def read_blocks(path: str | Path, size: int, sample_rate: int = SAMPLE_RATE) -> Iterator[np.ndarray]:
    """Read a mono recording of any length in blocks of `size` samples; the last block is what is left.

    Raises AudioError as `read_speech` does; unusable samples are noticed in the block that holds them.
    """
    with open_audio(path) as file:
        yield from _blocks(file, size, str(path), sample_rate)


def check_file(path: str | Path, sample_rate: int = SAMPLE_RATE) -> float:
    """The length of a mono recording in seconds. Raises AudioError for several channels or another sample rate."""
    with open_audio(path) as file:
        check_speech(file.channels, file.samplerate, str(path), sample_rate)
        return float(file.frames / file.samplerate)


def _blocks(file: soundfile.SoundFile, size: int, name: str, sample_rate: int = SAMPLE_RATE) -> Iterator[np.ndarray]:
    check_speech(file.channels, file.samplerate, name, sample_rate)
    done = 0
    while len(block := file.read(size, dtype="float32")):
        check_samples(block, f"{name}, at {done / sample_rate:.1f} s,")
        yield block
        done += len(block)


# ----------------------------------------------------------------------------------------------------------------- PCM
def read_pcm(file: BufferedReader, name: str) -> Iterator[np.ndarray]:
    """Samples (T,) in [-1, 1] of raw 16-bit little-endian mono PCM as they arrive.

    Half a sample at the end is dropped. If the data begins like an audio file, it is read to its end and decoded.
    Raises AudioError for a file that cannot be decoded, or that is not 16 kHz mono.
    """
    odd, ended = b"", False
    while not ended and _may_be_file(odd):
        data = file.read1(PCM_BYTES)
        odd, ended = odd + data, not data
    if kind := file_kind(odd):
        yield from _decoded(odd, file, name, kind)
        return
    while odd and not ended:
        whole = len(odd) - len(odd) % 2
        if whole:
            yield pcm_samples(odd[:whole])
        data = file.read1(PCM_BYTES)
        odd, ended = odd[whole:] + data, not data
    if len(odd) > 1:  # all there was
        yield pcm_samples(odd[: len(odd) - len(odd) % 2])


def _decoded(head: bytes, rest: BufferedReader, name: str, kind: str) -> Iterator[np.ndarray]:
    content = io.BytesIO(head + rest.read(LONGEST))
    if rest.read(1):
        raise AudioError(f"{name} is {kind} of more than {LONGEST >> 30} GiB; {TO_PCM}")
    try:
        with open_audio(content, name) as file:
            yield from _blocks(file, PCM_BYTES // 2, name)
    except AudioError as error:
        raise AudioError(f"{name} is {kind}: {error}; or {TO_PCM}") from error


def file_kind(head: bytes) -> str | None:
    """The type of the audio file that begins with these bytes; None for raw PCM, or if more bytes are needed."""
    for mark, (place, kind) in FILE_MARKS.items():
        if head[place:].startswith(mark):
            return kind
    size = _frame_bytes(head)
    if size and len(head) >= size + 2 and head[size] == head[0] and head[size + 1] == head[1]:
        return "AAC" if head[1] & 0x06 == 0 else "MP3"
    return None


def _may_be_file(head: bytes) -> bool:
    """Whether `file_kind` needs more bytes than these to decide."""
    return len(head) < MARK_BYTES or len(head) < _frame_bytes(head) + 2 > 2


def _frame_bytes(head: bytes) -> int:
    """The size in bytes of the MPEG audio frame (MP3, or AAC in ADTS) that begins here; 0 if none does."""
    if len(head) < 6 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return 0
    if head[1] & 0xF6 == 0xF0:  # ADTS
        return (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    rate, frequency = head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer != 1 or rate in (0, 15) or frequency == 3:  # of MP3, layer III
        return 0
    first = version == 3
    kilobits = (_MPEG1 if first else _MPEG2)[rate - 1]
    hertz = (44_100, 48_000, 32_000)[frequency] // (1 if first else 2 if version == 2 else 4)
    return (144 if first else 72) * kilobits * 1000 // hertz + (head[2] >> 1 & 1)


def pcm_samples(data: bytes) -> np.ndarray:
    """Samples (T,) in [-1, 1] of raw 16-bit little-endian mono PCM."""
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(INT16_SCALE)


# -------------------------------------------------------------------------------------------------------------- checks
def check_samples(samples: np.ndarray, name: str) -> None:
    """Raise AudioError for NaN, and for samples far outside [-1, 1], such as 16-bit integers read as floats.

    They are not rescaled, because the right factor is unknown.
    """
    if samples.size and not np.abs(samples).max() <= MAX_AMPLITUDE:  # also when it is not a number
        largest = np.abs(samples).max()
        reason = "samples that are no numbers" if not np.isfinite(largest) else "samples far beyond [-1, 1]"
        raise AudioError(f"{name} has samples of {largest:g}; they must be floats in [-1, 1]", reason)


def check_speech(channels: int, rate: int, name: str, sample_rate: int = SAMPLE_RATE) -> None:
    """Raise AudioError for several channels or another sample rate: a model would silently translate nonsense."""
    if channels != 1:
        raise AudioError(f"{name} has {channels} channels, mono is needed; mix it down, e.g. `sox in.wav -c 1 out.wav`")
    if rate != sample_rate:
        raise AudioError(
            f"{name} is sampled at {rate} Hz, {sample_rate} Hz is needed; "
            f"resample it, e.g. `sox in.wav -r {sample_rate} out.wav`"
        )


# ---------------------------------------------------------------------------------------------------------- filterbanks
class OnlineFbank:
    """Filterbank frames of audio that arrives piece by piece; every frame is computed once.

    `push` takes samples in [-1, 1] and returns the frames they completed, shape (n, n_bins), n may be 0. Any cutting of
    the audio gives the frames of `fbank` on the whole (no frame is padded: the last incomplete window is dropped).
    """

    def __init__(self, sample_rate: int = SAMPLE_RATE, n_bins: int = 80) -> None:
        """Raises LeapformerError as `acoustics.fbank.session` does."""
        self.sample_rate, self.n_bins = sample_rate, n_bins
        self._session = session(sample_rate, n_bins)
        self._rest = np.empty(0, np.float32)  # samples of windows that are not complete

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Add samples, (T,), and return the frames they completed, (n, n_bins)."""
        window, hop = lengths(self.sample_rate)
        known = np.concatenate([self._rest, np.asarray(samples, np.float32)])
        count = max(0, 1 + (len(known) - window) // hop)
        self._rest = known[count * hop :].copy()
        frames = np.empty((count, self.n_bins), np.float32)
        for start in range(0, count, AT_ONCE):
            stop = min(start + AT_ONCE, count)
            whole = known[start * hop : (stop - 1) * hop + window]
            (frames[start:stop],) = self._session.run([FRAMES], {SAMPLES: whole})
        return frames

    def fork(self) -> OnlineFbank:
        """An independent copy."""
        return copy.copy(self)  # arrays are replaced, not changed


def fbank(samples: np.ndarray, sample_rate: int = SAMPLE_RATE, n_bins: int = 80) -> np.ndarray:
    """Log-mel filterbank, (frames, n_bins), of a whole recording with samples in [-1, 1], shape (T,)."""
    return OnlineFbank(sample_rate, n_bins).push(samples)
