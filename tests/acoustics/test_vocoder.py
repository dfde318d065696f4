"""Griffin-Lim by analysing its output again, and HiFi-GAN's files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from leapformer_fairseq.acoustics import vocoder
from leapformer_fairseq.acoustics.mel import MelConfig, log_mel
from leapformer_fairseq.acoustics.vocoder import GriffinLim, load_hifigan
from leapformer_fairseq.errors import LeapformerError

from .signals import voiced

MELS = MelConfig()
BOUND = 0.2  # of the log-mel error below: measured 0.14 after 32 iterations, 0.84 with random phases
HIFIGAN = {
    "model_in_dim": 80,
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3, 5]],
    "upsample_rates": [20, 10],
    "upsample_kernel_sizes": [40, 20],
    "upsample_initial_channel": 8,
}


def error(log_mels, iterations=32):
    """Mean difference of log-mels and those of the speech made of them."""
    return float((log_mel(GriffinLim(MELS, iterations)(log_mels), MELS) - log_mels).abs().mean())


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
    log_mels = torch.full((40, 80), -9.0)
    log_mels[:, 20] = 0.0
    mels = log_mels.exp()
    found = log_mel(GriffinLim(MELS)(log_mels), MELS).exp()
    assert float((found - mels).norm() / mels.norm()) < 0.39


def test_the_same_input_repeats_and_the_seed_counts():
    log_mels = log_mel(voiced(0.2), MELS)
    once = GriffinLim(MELS, 4)(log_mels)
    torch.manual_seed(5)
    assert torch.equal(once, GriffinLim(MELS, 4)(log_mels))
    assert not torch.allclose(once, GriffinLim(MELS, 4, seed=1)(log_mels), atol=1e-3)


@pytest.mark.parametrize("frames", [2, 3, 4, 50])
def test_as_many_frames_come_back(frames):
    speech = GriffinLim(MELS, 2)(torch.randn(frames, 80) - 4)
    assert speech.dtype == torch.float32 and speech.shape == (200 * (frames - 1),)
    assert speech.isfinite().all()
    assert len(log_mel(speech, MELS)) == frames


def test_a_single_frame_is_one_hop():
    assert GriffinLim(MELS, 2)(torch.zeros(1, 80)).shape == (200,)


def test_loudness_is_kept():
    log_mels = log_mel(voiced(), MELS)
    loud, soft = (GriffinLim(MELS, 8)(log_mels + gain).square().mean().sqrt() for gain in (0.0, -1.0))
    assert float(loud / soft) == pytest.approx(torch.e, rel=1e-3)
    assert float(loud) == pytest.approx(float(voiced().square().mean().sqrt()), rel=0.1)


@pytest.mark.parametrize("shape", [(10, 40), (0, 80), (2, 10, 80), (80,)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(LeapformerError, match=r"for a vocoder of \(frames, 80\)"):
        GriffinLim(MELS)(torch.zeros(shape))


def test_other_features():
    mels = replace(MELS, sample_rate=22_050, win_length=1024, hop_length=256, f_min=0.0)
    log_mels = log_mel(voiced(rate=22_050), mels)
    assert float((log_mel(GriffinLim(mels)(log_mels), mels) - log_mels).abs().mean()) < BOUND


@pytest.fixture
def hifigan(tmp_path):
    """The paths of a small generator's checkpoint and configuration."""
    from fairseq.models.text_to_speech.hifigan import Generator

    checkpoint, config = tmp_path / "g_1", tmp_path / "config.json"
    torch.save({"generator": Generator(HIFIGAN).state_dict()}, checkpoint)
    config.write_text(json.dumps(HIFIGAN))
    return checkpoint, config


def test_hifigan_is_fairseqs_generator(hifigan):
    from fairseq.models.text_to_speech.hifigan import Generator

    checkpoint, config = hifigan
    generator = Generator(HIFIGAN)
    generator.load_state_dict(torch.load(checkpoint)["generator"])
    log_mels = torch.randn(7, 80)
    speech = load_hifigan(checkpoint, config)(log_mels)
    assert speech.shape == (7 * 200,) and not speech.requires_grad
    torch.testing.assert_close(speech, generator(log_mels.T[None])[0, 0].detach())


def broken_files(checkpoint, config):
    yield "no vocoder at", checkpoint.with_name("none"), config
    yield "cannot be loaded", config, config
    yield "cannot be read as JSON", checkpoint, config.with_name("none")
    yield "cannot be read as JSON", checkpoint, checkpoint
    for name, content in (("list", [1]), ("other", {"a": 1}), ("wide", HIFIGAN | {"upsample_initial_channel": 16})):
        path = config.with_name(f"{name}.json")
        path.write_text(json.dumps(content))
        yield "holds no JSON object" if name == "list" else "is not the one that", checkpoint, path
    for name, content in (("do", {"mpd": {}}), ("code", {"generator": config}), ("tensor", torch.zeros(1))):
        torch.save(content, checkpoint.with_name(name))
        yield "cannot be loaded" if name == "code" else "holds no generator", checkpoint.with_name(name), config


def test_files_that_are_no_hifigan(hifigan):
    """Among them one that would have to run code to be read."""
    for message, checkpoint, config in broken_files(*hifigan):
        with pytest.raises(LeapformerError, match=message) as error:
            load_hifigan(checkpoint, config)
        assert "\n" not in str(error.value)
