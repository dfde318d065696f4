"""`fairseq-hydra-train` with our models: the documented command, with the defaults of the flags."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from leapformer_fairseq import PLUGIN_DIR

from ..commands import done, leapformer, run
from ..reversed_text import reversed_text

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/language_models.md"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return reversed_text(tmp_path_factory.mktemp("hydra"), train=200, valid=20, test=30)


def documented() -> list[str]:
    """The words of the command in the page after its name."""
    command = re.search(r"^fairseq-hydra-train (.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [word.strip("'") for word in command[1].replace("\\\n", " ").split() if word != "$(leapformer"]


def train(tmp_path: Path, changed: dict[str, str | None]):
    """The documented command with other options; None leaves one out."""
    changed = {
        "common.user_dir": str(PLUGIN_DIR),
        "common.cpu": "true",
        "dataset.num_workers": "0",
        "optimization.max_update": "3",
        "checkpoint.save_dir": str(tmp_path / "save"),
        **changed,
    }
    given = dict(word.partition("=")[::2] for word in documented() if "=" in word)
    words = [f"{name}={value}" for name, value in {**given, **changed}.items() if value is not None]
    return run([sys.executable, "-m", "fairseq_cli.hydra_train", *words], cwd=tmp_path)


@pytest.mark.full
def test_the_documented_command_and_the_checkpoint_after_it(data, tmp_path):
    small = {"task.data": str(data / "lm"), "+model._name": "leapformer_lm_tiny", "task.tokens_per_sample": "32"}
    finished = train(tmp_path, small)
    assert finished.returncode == 0, finished.stderr[-2000:]
    path = str(tmp_path / "save/checkpoint_last.pt")
    done(leapformer("eval-lm", str(data / "lm"), "--path", path, "--tokens-per-sample", "32", "--cpu"))
    begin = "--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 32 --optimizer adam --lr 1e-9 --cpu"
    sizes = "--max-update 1 --max-tokens 200 --num-workers 0 --finetune-from-model"
    words = [*begin.split(), *sizes.split(), path, "--save-dir", str(tmp_path / "next")]
    assert " instead of " not in done(leapformer("train", str(data / "lm"), *words))


@pytest.mark.full
def test_translation(data, tmp_path):
    small = {"task": "translation", "task.data": str(data / "mt"), "+model._name": "leapformer_nmt_tiny",
             "+model.decoder_self_attention": "softmax", "task.tokens_per_sample": None}  # fmt: skip
    finished = train(tmp_path, small)
    assert finished.returncode == 0, finished.stderr[-2000:]
    path = str(tmp_path / "save/checkpoint_last.pt")
    assert "\nH-" in done(leapformer("generate", str(data / "mt"), "--path", path, "--cpu"))


@pytest.mark.full
def test_an_option_that_is_none_is_named(data, tmp_path):
    small = {
        "task.data": str(data / "lm"),
        "+model._name": "leapformer_lm_tiny",
        "+model.decoder_selfattention": "relu",
    }
    finished = train(tmp_path, small)
    assert finished.returncode != 0
    assert "model.decoder_selfattention: leapformer_lm_tiny has no such option" in finished.stderr
