"""An utterance of a data set, and reading its audio in the form that models expect: 16 kHz mono, in [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import soundfile

from ..audio import SAMPLE_RATE, check_speech
from ..errors import LeapformerError
from . import lines

SILENCE_RMS = 1e-3  # -60 dB of full scale, below any intelligible recording; clips of digital silence do occur


@dataclass(frozen=True)
class Recording:
    """The audio of an utterance and its text, in the source and the target language.

    `start` and `duration` (seconds) select a segment of a longer recording; without a duration it is the whole file.
    """

    id: str
    path: Path
    speaker: str
    source: str
    target: str
    start: float = 0.0
    duration: float | None = None


class Unusable(Exception):
    """This recording must be left out; the message is the reason in a word or two, for the statistics."""


def read_segment(recording: Recording) -> np.ndarray:
    """The samples of a segment, (T,) float32; only this part of the file is read.

    Raises LeapformerError if the file is missing, unreadable, not 16 kHz mono, or ends before the segment starts.
    """
    try:
        with soundfile.SoundFile(str(recording.path)) as file:
            check_speech(file.channels, file.samplerate, str(recording.path))
            start = round(recording.start * SAMPLE_RATE)
            if start >= file.frames:
                raise LeapformerError(
                    f"{recording.path} ends at {file.frames / SAMPLE_RATE:.2f} s, before segment {recording.id} starts "
                    f"({recording.start:.2f} s); is the file truncated?"
                )
            file.seek(start)
            wanted = -1 if recording.duration is None else round(recording.duration * SAMPLE_RATE)
            return file.read(wanted, dtype="float32")
    except soundfile.LibsndfileError as error:
        raise LeapformerError(f"{recording.path} cannot be read as audio ({error}); is the file truncated?") from error


def read_audible(recording: Recording) -> np.ndarray:
    """The samples of a recording of any format, sample rate and number of channels, (T,) float32 at 16 kHz mono.

    Raises Unusable if it cannot be decoded, ends before it starts, or is silent.
    """
    try:
        with soundfile.SoundFile(str(recording.path)) as file:
            start, rate = round(recording.start * file.samplerate), file.samplerate
            if start >= file.frames:
                raise Unusable("start after the end of the file")
            file.seek(start)
            wanted = -1 if recording.duration is None else round(recording.duration * rate)
            samples = file.read(wanted, dtype="float32", always_2d=True).mean(axis=1)
    except soundfile.LibsndfileError as error:
        raise Unusable("broken") from error
    if not np.isfinite(samples).all():
        raise Unusable("samples that are no numbers")
    if len(samples) and np.sqrt(np.mean(np.square(samples, dtype=np.float64))) < SILENCE_RMS:
        raise Unusable("silent")
    return resample(samples, rate)


def read_mono(recording: Recording) -> tuple[np.ndarray, int]:
    """The samples of a whole file, (T,) float32, mono at the file's own sample rate, and that rate. Raises Unusable."""
    try:
        samples, rate = soundfile.read(str(recording.path), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise Unusable("broken") from error
    return samples.mean(axis=1), rate


def resample(samples: np.ndarray, rate: int, wanted: int = SAMPLE_RATE) -> np.ndarray:
    """Resample (T,) from `rate` Hz to `wanted` Hz, band-limited."""
    if rate == wanted:
        return samples
    from scipy.signal import resample_poly  # a slow import, not needed for data that is at that rate already

    shared = math.gcd(rate, wanted)
    up, down = wanted // shared, rate // shared
    return resample_poly(samples, up, down, window=_low_pass(max(up, down), samples.dtype.str)).astype(np.float32)


@lru_cache
def _low_pass(ratio: int, dtype: str) -> np.ndarray:
    """The filter of `resample_poly`, which would design it again for every recording, in a third of its time."""
    from scipy.signal import firwin

    return firwin(20 * ratio + 1, 1 / ratio, window=("kaiser", 5.0)).astype(dtype)


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a tab-separated table in the format of Common Voice and CoVoST, reduced to `columns`.

    Raises LeapformerError if the file or a column is missing.
    """
    need_file(path)
    rows = lines.read_table(
        path, dict.fromkeys(columns, "is it the table of the data set's release?"), of_common_voice=True
    )
    return [{column: row[column] for column in columns} for _, row in rows]


def need_file(path: Path) -> None:
    """Raise LeapformerError if the file does not exist."""
    if not path.is_file():
        raise LeapformerError(f"no file {path}; check the data root, and that everything is downloaded and unpacked")


def need_recordings(recordings: Sequence[Recording], split: str) -> None:
    """Raise LeapformerError with the name of the first missing audio file, or of the split if it has no recordings."""
    if not recordings:
        raise LeapformerError(f"split {split} has no recordings; check the data root")
    missing = sorted(path for path in {recording.path for recording in recordings} if not path.is_file())
    if missing:
        raise LeapformerError(f"{len(missing)} audio files of split {split} are missing, the first is {missing[0]}")
