"""Filterbanks against an independent implementation, streaming against offline, and every refusal of a recording."""

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.audio import SAMPLE_RATE, OnlineFbank, fbank, read_speech
from leapformer_fairseq.errors import LeapformerError


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.1 * rng.standard_normal(int(seconds * SAMPLE_RATE))).astype(np.float32)


def reference_fbank(samples: np.ndarray, n_bins: int = 80, rate: int = SAMPLE_RATE) -> np.ndarray:
    """Kaldi's filterbank written out: frame, centre, pre-emphasise, window, power spectrum, mel triangles, log."""
    window, hop = int(0.025 * rate), int(0.010 * rate)
    n_fft = 1 << (window - 1).bit_length()
    starts = hop * np.arange(1 + (len(samples) - window) // hop)
    frames = samples.astype(np.float64)[starts[:, None] + np.arange(window)] * 2**15
    frames -= frames.mean(axis=1, keepdims=True)
    frames -= 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames *= np.hanning(window) ** 0.85  # "povey"
    power = np.abs(np.fft.rfft(frames, n=n_fft)) ** 2

    def mel(hertz: np.ndarray) -> np.ndarray:
        return 1127.0 * np.log1p(hertz / 700.0)

    edges = np.linspace(mel(20.0), mel(rate / 2), n_bins + 2)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = mel(np.arange(n_fft // 2 + 1) * rate / n_fft)
    triangles = np.maximum(0, np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)))
    return np.log(np.maximum(power @ triangles.T, np.finfo(np.float32).eps))


def test_matches_independent_implementation():
    samples = noise(0.5)
    np.testing.assert_allclose(fbank(samples), reference_fbank(samples), atol=2e-3)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, SAMPLE_RATE // 2), max_size=12))
def test_any_cutting_gives_the_offline_frames(cuts):
    samples = noise(0.5)
    online = OnlineFbank()
    pieces = [online.push(piece) for piece in np.split(samples, sorted(cuts))]
    np.testing.assert_array_equal(np.concatenate(pieces), fbank(samples))


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, SAMPLE_RATE // 2))
def test_a_fork_hears_what_comes_after(cut):
    samples, online = noise(0.5), OnlineFbank()
    before = online.push(samples[:cut])
    other = online.fork()
    online.push(noise(0.3, seed=1))
    np.testing.assert_array_equal(np.concatenate([before, other.push(samples[cut:])]), fbank(samples))


@pytest.mark.parametrize(("length", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2)])
def test_only_complete_windows_give_frames(length, frames):
    assert fbank(noise(1)[:length]).shape == (frames, 80)


def test_reads_what_was_written(tmp_path):
    samples = noise(0.1)
    soundfile.write(tmp_path / "a.wav", samples, SAMPLE_RATE, subtype="FLOAT")
    np.testing.assert_array_equal(read_speech(tmp_path / "a.wav"), samples)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(LeapformerError, match=r"no audio file at .*gone\.wav"):
        read_speech(tmp_path / "gone.wav")


def test_truncated_file_is_named(tmp_path):
    path = tmp_path / "cut.flac"
    soundfile.write(path, noise(1), SAMPLE_RATE)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(LeapformerError, match=r"cut\.flac cannot be read as audio"):
        read_speech(path)


@pytest.mark.parametrize(
    ("shape", "rate", "message"),
    [((1600, 2), SAMPLE_RATE, "2 channels"), ((800,), 8000, "8000 Hz"), ((0,), SAMPLE_RATE, "no samples")],
)
def test_unsuitable_recording_is_refused(tmp_path, shape, rate, message):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(shape, np.float32), rate)
    with pytest.raises(LeapformerError, match=message):
        read_speech(path)
