"""Trainings with averaged weights and with noise of quantisation, as fairseq offers them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leapformer_fairseq.models.averaging import load_checkpoint

from ..commands import done, leapformer
from ..covering import shared_out
from ..reversed_text import TRAINING, reversed_text

LM = "--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 32 --share-decoder-input-output-embed"
ARCHS = {"lm": LM, "mt": "--task translation --arch leapformer_nmt_tiny"}
MOVING = {"lm": "decoder.layer_norm.weight", "mt": "decoder.layers.0.fc1.weight"}
TRAINING += " --max-tokens 200 --no-epoch-checkpoints"
AVERAGES = ["--store-ema", "--ema-decay", "0.5"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return reversed_text(tmp_path_factory.mktemp("averages"), train=200, valid=20, test=30)


def train(data: Path, kind: str, save: Path, *more: str) -> dict:
    done(leapformer("train", str(data / kind), *ARCHS[kind].split(), *TRAINING.split(), "--save-dir", str(save), *more))
    return load_checkpoint(save / "checkpoint_last.pt")


def averages(state: dict) -> dict[str, torch.Tensor]:
    return state["extra_state"]["ema"]


@pytest.mark.parametrize("more", [[], ["--ema-fp32"]], ids=["", "fp32"])
@pytest.mark.parametrize("kind", sorted(ARCHS))
def test_weights_are_averaged_and_counters_copied(data, tmp_path, kind, more):
    state = train(data, kind, tmp_path, *AVERAGES, *more, "--max-update", "3")
    own = averages(state)
    assert own.keys() == state["model"].keys(), "the last norm and versions, too"
    for name, value in state["model"].items():
        if not value.is_floating_point() or name.endswith("version"):
            assert torch.equal(own[name], value), name
    assert not torch.equal(own[MOVING[kind]], state["model"][MOVING[kind]])


def test_averages_are_resumed_and_begin_with_other_weights(data, tmp_path):
    whole = train(data, "lm", tmp_path / "whole", *AVERAGES, "--max-update", "6")
    train(data, "lm", tmp_path / "parts", *AVERAGES, "--max-update", "3")
    parts = train(data, "lm", tmp_path / "parts", *AVERAGES, "--max-update", "6")
    for name, value in averages(whole).items():
        torch.testing.assert_close(averages(parts)[name], value, msg=name)
    train(data, "lm", tmp_path / "plain", "--max-update", "3")
    begin = ["--finetune-from-model", str(tmp_path / "plain/checkpoint_last.pt")]
    first = train(data, "lm", tmp_path / "begun", *AVERAGES, *begin, "--max-update", "1", "--lr", "1e-9")
    for name, value in load_checkpoint(tmp_path / "plain/checkpoint_last.pt")["model"].items():
        torch.testing.assert_close(averages(first)[name], value, msg=name)


@pytest.mark.parametrize("noise", [["--quant-noise-scalar", "0.5"], ["--quant-noise-pq", "0.1"]], ids=lambda n: n[0])
@pytest.mark.parametrize("kind", shared_out(sorted(ARCHS), 0))
def test_noise_of_quantisation_and_the_model_after_it(data, tmp_path, kind, noise):
    train(data, kind, tmp_path, *noise, "--max-update", "3")
    command, more = ("eval-lm", "--tokens-per-sample 32") if kind == "lm" else ("generate", "--beam 2")
    path = str(tmp_path / "checkpoint_last.pt")
    done(leapformer(command, str(data / kind), "--path", path, *more.split(), "--max-tokens", "800", "--cpu"))
