"""Filterbanks and log-mels against formulas written out, and the configuration that fairseq reads."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
import yaml

from leapformer_fairseq.runtime.acoustics.mel import MelConfig, log_mel, mel_filters
from leapformer_fairseq.support.errors import LeapformerError
from tests.runtime.acoustics.signals import voiced

DEFAULT = MelConfig()
OTHER = MelConfig(22_050, 1024, 1024, 256, 40, 0.0, 8000.0, 1e-4)
BANKS = [(16_000, 1024, 80, 20.0, 8000.0), (22_050, 1102, 40, 0.0, 11_025.0)]


def slaney(hertz):
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def htk(hertz):
    return 2595 * math.log10(1 + hertz / 700)


def inverse(scale, mel):
    """By bisection: no second formula that could be wrong in the same way."""
    low, high = 0.0, 1e5
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if scale(middle) < mel else (low, middle)
    return low


def written_out(scale, equal_area, rate, n_fft, n_mels, f_min, f_max):
    edges = [inverse(scale, mel) for mel in np.linspace(scale(f_min), scale(f_max), n_mels + 2)]
    filters = np.zeros((n_mels, n_fft // 2 + 1))
    for channel in range(n_mels):
        left, centre, right = edges[channel : channel + 3]
        for place in range(n_fft // 2 + 1):
            hertz = place * rate / (2 * (n_fft // 2))
            if left < hertz <= centre:
                filters[channel, place] = (hertz - left) / (centre - left)
            elif centre < hertz < right:
                filters[channel, place] = (right - hertz) / (right - centre)
        if equal_area:
            filters[channel] *= 2 / (right - left)
    return filters


def spectrogram_written_out(samples, config):
    """Magnitudes of mirrored, windowed frames, one after the other."""
    margin, gap = config.n_fft // 2, config.n_fft - config.win_length
    window = np.pad(scipy.signal.get_window("hann", config.win_length), (gap // 2, gap - gap // 2))
    padded = np.pad(samples.astype(float), margin, mode="reflect")
    starts = range(0, len(samples) + 1, config.hop_length)
    return np.stack([np.abs(np.fft.rfft(padded[start : start + config.n_fft] * window)) for start in starts])


@pytest.mark.parametrize("bank", BANKS)
def test_slaney_filters(bank):
    np.testing.assert_allclose(mel_filters(*bank, "slaney"), written_out(slaney, True, *bank), atol=1e-7)


@pytest.mark.parametrize("bank", BANKS)
def test_htk_filters(bank):
    np.testing.assert_allclose(mel_filters(*bank, "htk"), written_out(htk, False, *bank), atol=1e-6)


def test_the_scales_differ():
    """So that neither test above would pass with the other's filters."""
    found = mel_filters(*BANKS[0], "slaney")
    assert np.abs(found - written_out(slaney, False, *BANKS[0])).max() > 0.5
    assert np.abs(found - written_out(htk, True, *BANKS[0])).max() > 1e-3


@pytest.mark.parametrize(("config", "length"), [(DEFAULT, 4001), (DEFAULT, 513), (OTHER, 7777)])
def test_log_mels(config, length):
    samples = voiced(0.5, rate=config.sample_rate)[:length]
    filters = written_out(slaney, True, config.sample_rate, config.n_fft, config.n_mels, config.f_min, config.f_max)
    expected = np.log(np.maximum(spectrogram_written_out(samples, config) @ filters.T, config.floor))
    found = log_mel(samples, config)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("length", [0, 1, 199, 200, 512, 513, 1000])
def test_every_hop_begins_a_frame_however_short_the_speech(length):
    frames = log_mel(0.1 * np.random.default_rng(0).standard_normal(length), DEFAULT)
    assert frames.shape == (1 + length // 200, 80)
    assert np.isfinite(frames).all()


def test_silence_is_the_floor():
    assert np.allclose(log_mel(np.zeros(1000), DEFAULT), math.log(1e-5), rtol=1e-6)


def test_features_are_what_fairseq_reads():
    features = OTHER.features()
    assert set(features) == {
        "type", "eps", "n_mels", "n_fft", "window_fn", "win_length", "hop_length", "sample_rate", "win_len_t",
        "hop_len_t", "f_min", "f_max", "n_stft",
    }  # fmt: skip
    # fairseq's vocoder takes the lengths from the seconds, like this
    assert int(features["win_len_t"] * features["sample_rate"]) == 1024
    assert int(features["hop_len_t"] * features["sample_rate"]) == 256
    assert features["n_stft"] == 513 and features["type"] == "spectrogram+melscale+log"


@pytest.mark.parametrize("config", [DEFAULT, OTHER])
def test_a_data_configuration_round_trips(config):
    text = yaml.safe_dump({"features": config.features()})
    assert MelConfig.from_features(yaml.safe_load(text)["features"]) == config


def test_lengths_may_be_given_in_seconds():
    features = OTHER.features()
    del features["win_length"], features["hop_length"]
    assert MelConfig.from_features(features) == OTHER


def test_numbers_that_yaml_takes_for_text():
    assert MelConfig.from_features(yaml.safe_load(yaml.safe_dump(DEFAULT.features() | {"eps": "1e-5"}))) == DEFAULT


@pytest.mark.parametrize("name", ["sample_rate", "n_fft", "n_mels", "f_min", "f_max", "eps", "window_fn"])
def test_a_missing_key_is_named(name):
    features = DEFAULT.features()
    del features[name]
    with pytest.raises(LeapformerError, match=f"have no {name}; give the config.yaml"):
        MelConfig.from_features(features)


def test_a_length_missing_both_ways_is_named():
    features = DEFAULT.features()
    del features["hop_length"], features["hop_len_t"]
    with pytest.raises(LeapformerError, match="have no hop_length"):
        MelConfig.from_features(features)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window_fn": "hamming"}, "window_fn hamming is not supported"),
        ({"n_mels": "many"}, "n_mels is 'many'"),
        ({"n_mels": None}, "n_mels is None"),
        ({"n_mels": 0}, "must be positive"),
        ({"eps": 0}, "must be positive"),
        ({"eps": math.nan}, "must be positive"),
        ({"hop_length": 0}, "hop_length 0, win_length 800"),
        ({"win_length": 2000}, "none greater than the next"),
        ({"f_max": 9000}, "at most half the sample rate"),
        ({"f_min": 8000}, "f_min must be below f_max"),
    ],
)
def test_values_that_do_not_serve(values, message):
    with pytest.raises(LeapformerError, match=message) as error:
        MelConfig.from_features(DEFAULT.features() | values)
    assert "\n" not in str(error.value)


def test_frequencies_and_floor_reach_the_spectrogram():
    samples = voiced()
    assert (log_mel(samples, replace(DEFAULT, floor=0.1)) >= math.log(0.1) - 1e-6).all()
    assert not np.allclose(log_mel(samples, replace(DEFAULT, f_max=4000.0)), log_mel(samples, DEFAULT), atol=0.1)
