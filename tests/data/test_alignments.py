"""Times to frames: what every frame belongs to, and what is left for phonemes that are shorter than a frame."""

from __future__ import annotations

import numpy as np
import pytest

from leapformer_fairseq.data.alignments import PAUSE, Interval, frame_durations, moved, with_single_pauses
from leapformer_fairseq.support.errors import LeapformerError

HOP_S = 0.0125


def intervals(*ends: float) -> list[Interval]:
    """Intervals one after the other from 0 on, that end there."""
    return [Interval(start, end, f"p{end}") for start, end in zip([0.0, *ends], ends, strict=False)]


def owners(spans: list[Interval], frames: int) -> list[int]:
    """The interval that each frame's centre is in, by looking for it."""
    inside = [[i for i, span in enumerate(spans) if span.start <= frame * HOP_S + 1e-9 < span.end + 1e-9]
              for frame in range(frames)]  # fmt: skip
    return [found[-1] if found else len(spans) - 1 for found in inside]


@pytest.mark.parametrize("seed", range(20))
def test_frames_belong_to_the_interval_that_their_centre_is_in(seed):
    rng = np.random.default_rng(seed)
    spans = intervals(*np.cumsum(rng.uniform(HOP_S, 0.2, 30)))
    frames = int(spans[-1].end / HOP_S) + 1
    durations = frame_durations(spans, frames, HOP_S)
    assert np.repeat(range(len(spans)), durations).tolist() == owners(spans, frames)


def test_a_boundary_on_a_centre_begins_the_next_interval():
    assert frame_durations(intervals(4 * HOP_S, 7 * HOP_S), 8, HOP_S) == [4, 4]


@pytest.mark.parametrize("seed", range(20))
def test_every_interval_has_a_frame_and_all_frames_are_shared(seed):
    rng = np.random.default_rng(seed)
    spans = intervals(*np.cumsum(rng.exponential(HOP_S, 40)))
    frames = 41 + seed
    durations = frame_durations(spans, frames, HOP_S)
    assert min(durations) >= 1
    assert sum(durations) == frames
    assert 0 in np.bincount(owners(spans, frames), minlength=40)  # without help some would have none


def test_short_intervals_at_both_ends_take_from_their_neighbours():
    assert frame_durations(intervals(0.0, 0.001, 0.1, 0.1, 0.1), 9, HOP_S) == [1, 1, 5, 1, 1]


@pytest.mark.parametrize(("count", "frames"), [(3, 2), (0, 4)])
def test_too_many_intervals_are_refused(count, frames):
    with pytest.raises(LeapformerError, match=f"{count} phonemes cannot share {frames} frames"):
        frame_durations(intervals(*range(1, count + 1)), frames, HOP_S)


def test_pauses_are_joined_and_those_of_no_length_left_out():
    spans = [(0, 0, PAUSE), (0, 1, "a"), (1, 2, PAUSE), (2, 3, PAUSE), (3, 3, "b"), (3, 3, PAUSE)]
    joined = with_single_pauses(Interval(*span) for span in spans)
    assert joined == [(0, 1, "a"), (1, 3, PAUSE), (3, 3, "b")]


def test_moving_keeps_lengths():
    assert moved([Interval(0.5, 0.75, "a")], -0.5) == [Interval(0.0, 0.25, "a")]
