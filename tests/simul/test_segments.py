"""Segments of synthetic audio whose pauses are known."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from leapformer_fairseq.runtime.audio import UNIT_SAMPLES
from leapformer_fairseq.runtime.simul.segments import Segmenter, SegmentOptions
from leapformer_fairseq.runtime.simul.silence import level_of
from leapformer_fairseq.support.errors import LeapformerError


def noise(seconds: float, decibels: float, seed: int = 0) -> np.ndarray:
    return 10 ** (decibels / 20) * np.random.default_rng(seed).normal(size=round(seconds * 16_000))


def syllables(seconds: float, decibels: float) -> np.ndarray:
    """Noise whose level rises and falls by some 25 dB, five times a second."""
    time = np.arange(round(seconds * 16_000)) / 16_000
    return noise(seconds, decibels) * (0.05 + np.sin(np.pi * 5 * time) ** 2)


def places(parts: list[np.ndarray], n_tokens: int = 0, **options) -> list[tuple[str, float]]:
    """What became of the audio: (place, seconds), one after the other."""
    segmenter, samples = Segmenter(SegmentOptions(**options)), np.concatenate(parts)
    pieces = (samples[at : at + UNIT_SAMPLES] for at in range(0, len(samples), UNIT_SAMPLES))
    found = [place.name.lower() for piece in pieces for place, _ in segmenter.push(piece, n_tokens)]
    return [(place, round(0.04 * len(list(group)), 2)) for place, group in groupby(found)]


def test_a_pause_ends_a_segment_after_its_400_ms_and_the_next_sound_begins_one() -> None:
    found = places([noise(3, -20), noise(1, -60), noise(3, -20), noise(0.2, -60), noise(2, -20)])
    assert found == [("speech", 3.36), ("end", 0.04), ("between", 0.6), ("speech", 5.2)]


def test_a_segment_begins_with_the_sound_and_not_with_the_piece_that_it_is_in() -> None:
    """To 10 ms; where states of 40 ms are counted, with the piece."""
    audio = np.concatenate([noise(3, -20), noise(0.625, -60), noise(1, -20)])[: 115 * UNIT_SAMPLES]
    pieces = [audio[at : at + UNIT_SAMPLES] for at in range(0, len(audio), UNIT_SAMPLES)]
    for grid, begins in ((16, 3.62), (UNIT_SAMPLES, 3.6)):
        segmenter = Segmenter(SegmentOptions(), grid)
        found = [pair for piece in pieces for pair in segmenter.push(piece, 0)]
        np.testing.assert_array_equal(np.concatenate([part for _, part in found]), audio)
        silence = next(n for n, (place, _) in enumerate(found) if place.name == "BETWEEN")
        sound = next(n for n in range(silence, len(found)) if found[n][0].name == "SPEECH")
        assert sum(len(part) for _, part in found[:sound]) / 16_000 == begins


def test_what_a_pause_is_can_be_said() -> None:
    audio = [noise(3, -20), noise(0.2, -32), noise(3, -20)]
    assert places(audio, pause_ms=120, pause_db=10) == [
        ("speech", 3.08), ("end", 0.04), ("between", 0.08), ("speech", 3.0)
    ]  # fmt: skip
    assert places(audio, pause_ms=240, pause_db=10) == places(audio, pause_ms=120, pause_db=14) == [("speech", 6.2)]


def test_a_pause_that_comes_early_ends_the_segment_when_it_is_long_enough() -> None:
    pause = [noise(0.8, -20), noise(0.8, -60), noise(0.4, -20), noise(0.6, -60), noise(1, -20)]
    assert places(pause, min_seconds=2) == [("speech", 2.36), ("end", 0.04), ("between", 0.2), ("speech", 1.0)]


def test_no_segment_is_longer_than_the_longest() -> None:
    assert places([noise(5, -20)], max_seconds=2) == [
        ("speech", 1.96), ("end", 0.04), ("speech", 1.96), ("end", 0.04), ("speech", 1.0)
    ]  # fmt: skip


def test_a_segment_that_gets_too_long_in_a_pause_leaves_the_rest_of_it_out() -> None:
    found = places([noise(2, -20), noise(1, -60), noise(2, -20)], max_seconds=2.2)
    assert found == [("speech", 2.16), ("end", 0.04), ("between", 0.8), ("speech", 2.0)]


@pytest.mark.parametrize("level", [-90, -60, -20])
def test_what_is_equally_loud_throughout_has_no_pauses(level: float) -> None:
    assert places([noise(12, level)], silence_db=None) == [("speech", 12.0)]


def test_silence_is_one_segment_up_to_the_longest() -> None:
    assert places([np.zeros(16_000 * 5)], max_seconds=4, silence_db=None) == [
        ("speech", 3.96),
        ("end", 0.04),
        ("speech", 1.0),
    ]


def test_steady_noise_behind_a_pause_is_no_speech_however_long() -> None:
    assert places([noise(3, -20), noise(40, -50)]) == [("speech", 3.36), ("end", 0.04), ("between", 39.6)]


def test_a_much_quieter_speaker_is_heard() -> None:
    found = dict(places([syllables(4, -10), syllables(6, -45), noise(1, -75)]))
    assert found.get("between", 0) < 0.6


def test_below_a_level_there_is_no_speech() -> None:
    """Not at the beginning, nor in an hour of silence; what is above it is heard as ever."""
    audio = [noise(3, -70), noise(3, -20), noise(1, -60), noise(3, -30)]
    found = places(audio, silence_db=-50)
    assert found == [("speech", 3.36), ("end", 0.04), ("between", 0.6), ("speech", 3.0)]
    for options in ({}, {"silence_db": -50}, {"kind": "tokens"}, {"kind": "seconds", "history": "window"}):
        assert places([np.zeros(16_000 * 60), noise(60, -60)], **options) == []
    assert places([noise(3, -35), noise(1, -52)], silence_db=-50)[-1][0] == "between", "also where it is no pause"
    assert places([noise(3, -35), noise(1, -52)]) == [("speech", 4.0)]
    for pause in (noise(2, -60), np.zeros(16_000)):  # what comes after a pause of zeros is not louder for that
        found = places([noise(3, -20), pause, noise(40, -60), noise(1, -20)])
        assert [place for place, _ in found] == ["speech", "end", "between", "speech"]


@pytest.mark.parametrize("options", [{"kind": "tokens"}, {"kind": "seconds", "history": "window"}])
def test_long_silence_where_no_pause_ends_a_segment_is_cut_to_a_second(options: dict) -> None:
    for silence in (np.zeros(16_000 * 65), noise(65, -60)):
        audio = [noise(3, -20), silence, noise(3, -20), noise(1, -60), noise(1, -20)]
        assert places(audio, **options) == [("speech", 9.0)]
        assert places(audio, **options, silence_db=None, max_seconds=90) == [("speech", 73.0)]
    assert places([noise(65, -50)], **options, max_seconds=90) == [], "steady noise before any sound"
    assert places([noise(1, -20), noise(65, -50)], **options, max_seconds=90) == [("speech", 66.0)], "it may be speech"


def test_after_ten_seconds_the_quieter_level_is_the_recent_one() -> None:
    """Then its own pauses are found, too."""
    quiet = [noise(3, -45), noise(0.6, -75)]
    found = places([noise(3, -20), *quiet * 5])
    assert [place for place, _ in found].count("end") >= 4


def test_what_was_forgotten_makes_a_segment_no_longer() -> None:
    segmenter = Segmenter(SegmentOptions("seconds", min_seconds=0.5, max_seconds=1, history="window"))
    piece = noise(0.04, -20)
    found = [place.name for i in range(60) for place, _ in segmenter.push(piece, 0, max(0, i - 20))]
    assert found == ["SPEECH"] * 60
    found = [place.name for _ in range(5) for place, _ in segmenter.push(piece, 0, 40)]
    assert found == ["SPEECH"] * 4 + ["END"]


def test_tokens_and_seconds() -> None:
    audio = [noise(3, -20), noise(1, -60), noise(1, -20)]
    assert places(audio, n_tokens=7, kind="tokens", tokens=8) == [("speech", 5.0)]
    found = places(audio, n_tokens=8, kind="tokens", tokens=8, min_seconds=2)
    assert found == [("speech", 1.96), ("end", 0.04)] * 2 + [("speech", 1.0)]
    found = places(audio, n_tokens=99, kind="seconds", min_seconds=0.5, max_seconds=4)
    assert found == [("speech", 3.96), ("end", 0.04), ("speech", 1.0)]


def test_levels() -> None:
    assert level_of(np.zeros(640, np.float32)) == pytest.approx(-100)
    assert level_of(np.full(640, -1, np.float32)) == pytest.approx(0, abs=1e-6)
    assert level_of(noise(1, -35)) == pytest.approx(-35, abs=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "words"}, "--segment 'words': choose from pause, sentence, tokens, seconds"),
        ({"pause_ms": 20}, "--pause-ms 20"),
        ({"pause_db": float("nan")}, "--pause-db nan"),
        ({"kind": "sentence"}, "--segment sentence needs --sentence-ends FILE"),
        ({"lead_ms": -40}, "--lead-ms -40: give at least 0"),
        ({"tokens": 0}, "--segment-tokens 0"),
        ({"min_seconds": 5, "max_seconds": 4}, "--min-seconds 5 and --max-seconds 4"),
        ({"max_seconds": float("inf")}, "--max-seconds inf"),
        ({"min_seconds": float("nan")}, "--min-seconds nan"),
    ],
)
def test_impossible_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(LeapformerError, match=message):
        SegmentOptions(**options)
