"""HiFi-GAN's files, and that its network is fairseq's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from leapformer_fairseq.models.hifigan import load_hifigan
from leapformer_fairseq.support.errors import LeapformerError

HIFIGAN = {
    "model_in_dim": 80,
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3, 5]],
    "upsample_rates": [20, 10],
    "upsample_kernel_sizes": [40, 20],
    "upsample_initial_channel": 8,
}


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
    log_mels = np.random.default_rng(0).standard_normal((7, 80)).astype(np.float32)
    speech = load_hifigan(checkpoint, config)(log_mels)
    assert speech.shape == (7 * 200,)
    np.testing.assert_allclose(speech, generator(torch.tensor(log_mels.T[None]))[0, 0].detach(), atol=1e-5)


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
