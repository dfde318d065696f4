"""Time alignments of the phonemes or words of a recording, and the number of spectrogram frames of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..runtime.spoken import PAUSE
from ..support.errors import LeapformerError


class Interval(NamedTuple):
    """A phoneme or word, spoken from `start` to `end`, in seconds of its recording."""

    start: float
    end: float
    text: str


def moved(intervals: Iterable[Interval], seconds: float) -> list[Interval]:
    """The intervals shifted by this many seconds."""
    return [Interval(start + seconds, end + seconds, text) for start, end, text in intervals]


def with_single_pauses(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge consecutive pauses, and remove pauses of zero length."""
    kept: list[Interval] = []
    for interval in intervals:
        if interval.text == PAUSE and kept and kept[-1].text == PAUSE:
            kept[-1] = kept[-1]._replace(end=interval.end)
        elif interval.text != PAUSE or interval.end > interval.start:
            kept.append(interval)
    return kept


def frame_durations(intervals: Sequence[Interval], frames: int, hop_s: float) -> list[int]:
    """Distribute a recording's `frames` over its intervals: at least 1 each, `frames` in total.

    Frame t is centred on t * `hop_s` seconds and belongs to the interval that contains this time. An interval too short
    to contain a centre takes a frame from a neighbour; the last interval takes all remaining frames. The intervals must
    start at 0 and follow each other without gaps. Raises LeapformerError if there are more intervals than frames.
    """
    if not 0 < len(intervals) <= frames:
        raise LeapformerError(f"{len(intervals)} phonemes cannot share {frames} frames; give longer speech")
    # The number of frames centred before the end of each interval. The tolerance makes a centre on a boundary belong to
    # the later interval in spite of rounding errors.
    ends = [math.ceil(interval.end / hop_s - 1e-6) for interval in intervals[:-1]] + [frames]
    # Push ends forward until each interval has a frame, then back until those after it have one, too.
    for i, end in enumerate(ends[:-1]):
        ends[i] = max(end, ends[i - 1] + 1 if i else 1)
    for i in range(len(ends) - 2, -1, -1):
        ends[i] = min(ends[i], ends[i + 1] - 1)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
