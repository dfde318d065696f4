"""Griffin-Lim by analysing its output again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leapformer_fairseq.runtime.acoustics import vocoder
from leapformer_fairseq.runtime.acoustics.mel import MelConfig, log_mel
from leapformer_fairseq.runtime.acoustics.vocoder import GriffinLim
from leapformer_fairseq.support.errors import LeapformerError
from tests.runtime.acoustics.signals import voiced

MELS = MelConfig()
BOUND = 0.2  # of the log-mel error below: measured 0.14 after 32 iterations, 0.84 with random phases


def error(log_mels, iterations=32):
    """Mean difference of log-mels and those of the speech made of them."""
    return float(np.abs(log_mel(GriffinLim(MELS, iterations)(log_mels), MELS) - log_mels).mean())


def test_speech_has_the_log_mels_it_was_made_of():
    """Random phases, without an iteration, are the control."""
    log_mels = log_mel(voiced(), MELS)
    assert error(log_mels) < BOUND < 0.5 * error(log_mels, iterations=0)


def test_momentum_helps(monkeypatch):
    log_mels = log_mel(voiced(), MELS)
    fast = error(log_mels)
    monkeypatch.setattr(vocoder, "MOMENTUM", 0.0)
    assert fast < 0.97 * error(log_mels)


def test_negative_magnitudes_are_silent():
    """The pseudo-inverse has them beside a single loud channel; with their absolute values the error is 0.45."""
    log_mels = np.full((40, 80), -9.0)
    log_mels[:, 20] = 0.0
    mels = np.exp(log_mels)
    found = np.exp(log_mel(GriffinLim(MELS)(log_mels), MELS))
    assert np.linalg.norm(found - mels) / np.linalg.norm(mels) < 0.39


def test_the_same_input_repeats_and_the_seed_counts():
    log_mels = log_mel(voiced(0.2), MELS)
    once = GriffinLim(MELS, 4)(log_mels)
    np.random.seed(5)
    assert np.array_equal(once, GriffinLim(MELS, 4)(log_mels))
    assert not np.allclose(once, GriffinLim(MELS, 4, seed=1)(log_mels), atol=1e-3)


@pytest.mark.parametrize("frames", [2, 3, 4, 50])
def test_as_many_frames_come_back(frames):
    speech = GriffinLim(MELS, 2)(np.random.default_rng(0).standard_normal((frames, 80)) - 4)
    assert speech.dtype == np.float32 and speech.shape == (200 * (frames - 1),)
    assert np.isfinite(speech).all()
    assert len(log_mel(speech, MELS)) == frames


def test_a_single_frame_is_one_hop():
    assert GriffinLim(MELS, 2)(np.zeros((1, 80))).shape == (200,)


def test_loudness_is_kept():
    log_mels = log_mel(voiced(), MELS)
    loud, soft = (GriffinLim(MELS, 8)(log_mels + gain).std() for gain in (0.0, -1.0))
    assert float(loud / soft) == pytest.approx(np.e, rel=1e-3)
    assert float(loud) == pytest.approx(float(voiced().std()), rel=0.1)


@pytest.mark.parametrize("shape", [(10, 40), (0, 80), (2, 10, 80), (80,)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(LeapformerError, match=r"for a vocoder of \(frames, 80\)"):
        GriffinLim(MELS)(np.zeros(shape))


def test_other_features():
    mels = replace(MELS, sample_rate=22_050, win_length=1024, hop_length=256, f_min=0.0)
    log_mels = log_mel(voiced(rate=22_050), mels)
    assert np.abs(log_mel(GriffinLim(mels)(log_mels), mels) - log_mels).mean() < BOUND
