"""Cepstral and spectral distortion against scipy, alignment against plain loops, and what both are for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.fft
import scipy.signal

from leapformer_fairseq.scoring.distortion import Distortion, cepstra, distance, log_spectrum, mcd, msd, warp
from tests.runtime.acoustics.signals import RATE, voiced
from tests.runtime.acoustics.test_mel import htk, written_out


def spectrum_written_out(samples, rate):
    """log(power in 80 mel channels + 1e-6) with windows of 50 ms every 12.5 ms, frame by frame."""
    size, hop = int(0.05 * rate), int(0.0125 * rate)
    padded = np.pad(samples.astype(float), size // 2, mode="reflect")
    window = scipy.signal.get_window("hann", size)
    frames = [padded[start : start + size] * window for start in range(0, len(samples) + 1, hop)]
    power = np.abs(scipy.fft.rfft(np.stack(frames), axis=1)) ** 2
    return np.log(power @ written_out(htk, False, rate, size, 80, 20.0, rate / 2).T + 1e-6)


def warp_in_loops(costs):
    """Every cell: the least sum of costs up to it and, of the paths with this sum, the least length."""
    table = {}
    for i, row in enumerate(costs):
        for j, cost in enumerate(row):
            before = [table[cell] for cell in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if cell in table]
            total, length = min(before, default=(0.0, 0))
            table[i, j] = (total + cost, length + 1)
    return table[len(costs) - 1, len(costs[0]) - 1]


@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_features_are_those_of_torchaudio(rate):
    samples = voiced(0.3, rate=rate)[:-77]
    expected = spectrum_written_out(samples, rate)
    found = log_spectrum(samples, rate)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    cosines = scipy.fft.dct(expected, type=2, norm="ortho", axis=1)
    np.testing.assert_allclose(cepstra(found), cosines[:, :13], atol=5e-3)


@pytest.mark.parametrize("values", ["reals", "ties"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2), (5, 9), (17, 13), (31, 30)])
def test_alignment(shape, values):
    rng = np.random.default_rng(sum(shape))
    for _ in range(5):
        costs = rng.random(shape) if values == "reals" else rng.integers(0, 3, shape).astype(float)
        total, length = warp(costs)
        expected = warp_in_loops(costs.tolist())
        assert total == pytest.approx(expected[0], abs=1e-12) and length == expected[1]


def test_alignment_takes_a_detour_that_is_cheaper():
    costs = np.full((4, 4), 9.0)
    for cell in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3)):
        costs[cell] = 1.0
    assert warp(costs) == (6.0, 6), "the corner may be cut"


def test_distance_of_frames():
    reference, synthesised = np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 2.0, -1.0]])
    assert distance(reference, synthesised) == Distortion(pytest.approx(math.sqrt(17 / 3)), 1, 1, 1)


def test_insertions_and_deletions():
    frames = np.random.default_rng(0).standard_normal((5, 13))
    slow = frames.repeat(3, axis=0)
    inserted, deleted = distance(frames, slow), distance(slow, frames)
    assert inserted.total == deleted.total == 0
    assert (inserted.insertions, inserted.deletions) == (10, 0)
    assert (deleted.insertions, deleted.deletions) == (0, 10)
    assert (inserted.reference_frames, inserted.synthesised_frames, inserted.aligned) == (5, 15, 15)


def test_insertions_and_deletions_are_steps_of_the_path():
    """Both sides stay once: 1 2 2 3 4 and 1 2 3 4 4."""
    left, right = (np.array(values)[:, None] for values in ([1.0, 2, 2, 3, 4], [1.0, 2, 3, 4, 4]))
    found = distance(left, right)
    assert (found.total, found.insertions, found.deletions, found.aligned) == (0, 1, 1, 6)


def test_a_corpus_is_the_sum():
    whole = Distortion(3.0, 10, 12, 15) + Distortion(5.0, 30, 28, 35)
    assert whole == Distortion(8.0, 40, 40, 50)
    assert (whole.per_reference_frame, whole.per_aligned_frame) == (0.2, 0.16)
    assert (whole.insertions, whole.deletions) == (10, 10)
    assert whole + Distortion() == whole


@pytest.mark.parametrize("measure", [mcd, msd])
def test_nothing_is_far_from_itself(measure):
    samples = voiced()
    assert measure(samples, samples, RATE) == Distortion(0.0, 49, 49, 49)
    assert measure(samples, 0.5 * samples, RATE).per_reference_frame > 0.5


@pytest.mark.parametrize("measure", [mcd, msd])
def test_a_slower_copy_is_nearer_than_another_voice(measure):
    samples = voiced(0.6)
    slower, other = measure(samples, voiced(0.9), RATE), measure(samples, voiced(0.9, pitch=200.0), RATE)
    assert slower.per_aligned_frame < 0.6 * other.per_aligned_frame
    assert slower.insertions >= 24


def test_alignment_beats_comparing_frame_by_frame():
    samples, slower = voiced(0.6), voiced(0.8)
    left, right = (cepstra(log_spectrum(one, RATE)) for one in (samples, slower))
    one_by_one = np.sqrt(((left - right[: len(left)]) ** 2).mean(axis=1)).mean()
    assert mcd(samples, slower, RATE).per_aligned_frame < 0.5 * float(one_by_one)


@pytest.mark.parametrize("length", [0, 1, 250])
def test_speech_that_ended_at_once(length):
    """A model may stop with the first frame; it is scored, not refused."""
    found = mcd(voiced(), np.full(length, 0.1), RATE)
    assert found.aligned == 49 and found.synthesised_frames == 1 + length // 200
    assert math.isfinite(found.total) and found.total > 0
