"""The utterances of a data set, and their audio in the form that models expect: 16 kHz mono, in [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..runtime.audio import SAMPLE_RATE, AudioError, read_audio, read_speech
from ..support import lines
from ..support.errors import LeapformerError

SILENCE_RMS = 1e-3  # -60 dB of full scale, below any intelligible recording; clips of digital silence do occur


@dataclass(frozen=True)
class Recording:
    """The audio of an utterance and its text in the source and the target language.

    `start` and `duration` (seconds) select a segment of a longer recording; without a duration it ends with the file.
    """

    id: str
    path: Path
    speaker: str
    source: str
    target: str
    start: float = 0.0
    duration: float | None = None


class Unusable(Exception):
    """A recording must be left out: the `reason` is a word or two for the statistics, the message is for the user."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(reason, message)  # pickle rebuilds an exception from `args`, between processes
        self.reason = reason

    def __str__(self) -> str:
        return self.args[1] or self.reason


def read_segment(recording: Recording) -> np.ndarray:
    """Read a segment, (T,) float32, without reading the rest of the file.

    Raises LeapformerError if the file is missing, unreadable, not 16 kHz mono, or ends before the segment starts.
    """
    return read_speech(recording.path, SAMPLE_RATE, recording.start, recording.duration)


def read_audible(recording: Recording) -> np.ndarray:
    """Read a recording of any format, sample rate and number of channels as (T,) float32 at 16 kHz mono.

    Raises Unusable if it is silent, or if `runtime.audio` refuses it, as for a file that cannot be decoded or ends
    before the recording starts.
    """
    samples, rate = read_mono(recording)
    if len(samples) and np.sqrt(np.mean(np.square(samples, dtype=np.float64))) < SILENCE_RMS:
        raise Unusable("silent")
    return resample(samples, rate)


def read_mono(recording: Recording) -> tuple[np.ndarray, int]:
    """Read a recording as (T,) float32, mono at the file's sample rate, which is also returned. Raises Unusable."""
    try:
        samples, rate = read_audio(recording.path, recording.start, recording.duration)
    except AudioError as error:
        raise Unusable(error.reason) from error
    return samples.mean(axis=1), rate


def resample(samples: np.ndarray, rate: int, new_rate: int = SAMPLE_RATE) -> np.ndarray:
    """Resample (T,) from `rate` Hz to `new_rate` Hz, band-limited."""
    if rate == new_rate:
        return samples
    from scipy.signal import resample_poly  # slow to import, and not needed for audio that has the rate already

    divisor = math.gcd(rate, new_rate)
    up, down = new_rate // divisor, rate // divisor
    return resample_poly(samples, up, down, window=_low_pass(max(up, down), samples.dtype.str)).astype(np.float32)


@lru_cache
def _low_pass(ratio: int, dtype: str) -> np.ndarray:
    """The default filter of `resample_poly`, which would spend a third of its time designing it for each call."""
    from scipy.signal import firwin

    return firwin(20 * ratio + 1, 1 / ratio, window=("kaiser", 5.0)).astype(dtype)


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read a tab-separated table in the format of Common Voice and CoVoST, reduced to `columns`.

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
    """Raise LeapformerError if the split has no recordings, or if audio files are missing; it names the first."""
    if not recordings:
        raise LeapformerError(f"split {split} has no recordings; check the data root")
    # A set: the segments of a talk share its file.
    missing = sorted(path for path in {recording.path for recording in recordings} if not path.is_file())
    if missing:
        raise LeapformerError(f"{len(missing)} audio files of split {split} are missing, the first is {missing[0]}")
