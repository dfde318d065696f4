"""When each phoneme or word of a recording is said, and how many frames of a spectrogram that makes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import LeapformerError

PAUSE = "_"  # the phoneme of silence


class Interval(NamedTuple):
    """What is said (a phoneme or a word) from `start` to `end`, in seconds of its recording."""

    start: float
    end: float
    text: str


def moved(intervals: Iterable[Interval], seconds: float) -> list[Interval]:
    """The same, so many seconds later."""
    return [Interval(start + seconds, end + seconds, text) for start, end, text in intervals]


def with_single_pauses(intervals: Iterable[Interval]) -> list[Interval]:
    """Pauses one after the other as one, and those that take no time left out."""
    kept: list[Interval] = []
    for interval in intervals:
        if interval.text == PAUSE and kept and kept[-1].text == PAUSE:
            kept[-1] = kept[-1]._replace(end=interval.end)
        elif interval.text != PAUSE or interval.end > interval.start:
            kept.append(interval)
    return kept


def frame_durations(intervals: Sequence[Interval], frames: int, hop_s: float) -> list[int]:
    """How many of a recording's `frames` each interval has: at least 1, and `frames` together.

    Frame t is centred on t * `hop_s` seconds and belongs to the interval that this time is in. An interval too short
    to hold a centre takes its frame from a neighbour; the last one has all frames that are left. Intervals follow each
    other without gaps, from 0 on. Raises LeapformerError where there are more of them than frames.
    """
    if not 0 < len(intervals) <= frames:
        raise LeapformerError(f"{len(intervals)} phonemes cannot share {frames} frames; give longer speech")
    # Frames before the end of each interval; a centre on a boundary counts as after it, in spite of rounding errors.
    ends = [math.ceil(interval.end / hop_s - 1e-6) for interval in intervals[:-1]] + [frames]
    for i, end in enumerate(ends[:-1]):
        ends[i] = max(end, ends[i - 1] + 1 if i else 1)
    for i in range(len(ends) - 2, -1, -1):
        ends[i] = min(ends[i], ends[i + 1] - 1)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
