"""What fairseq's commands log, through `leapformer`: its own format, nothing that no user can act on, all the rest."""

import os
import subprocess
import sys
import warnings

import pytest

from leapformer_fairseq.cli import logs

pytest.importorskip("fairseq")


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains a language model for one update; returns what the command prints."""
    folder = tmp_path_factory.mktemp("logs")
    for split in ("train", "valid"):
        (folder / split).write_text("a b c d e f g\n" * 8)
    base = "--destdir data --only-source --workers 1"
    options = (
        "--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 8 --max-tokens 80 --cpu --max-update 1 "
        "--optimizer adam --no-save"
    )

    def run(command: str, **variables: str) -> str:
        words = [sys.executable, "-m", "leapformer_fairseq.cli.main", *command.split()]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout + done.stderr

    preparing = run(f"preprocess --trainpref train --validpref valid {base}")
    return preparing, lambda **variables: run(f"train data {options}", **variables)


def test_no_warning_that_no_user_can_act_on(train):
    preparing, train = train
    from_fairseq = {"PYTHONWARNINGS": "ignore:semaphore_tracker:UserWarning"}  # once it has loaded data in this process
    for out in (preparing, train(), train(**from_fairseq)):
        first, *_ = out.splitlines()
        assert " | INFO | fairseq_cli." in first, first
        for noise in ("Warning", "DEBUG", "tensorboardX", "--user-dir="):
            assert noise not in out.replace(first, "")  # the first line of a training lists all options


def test_all_of_them_when_asked_for(train):
    out = train[1](PYTHONWARNINGS="default", LOGLEVEL="DEBUG")
    assert "hydra.experimental.initialize() is no longer experimental" in out and "| DEBUG | " in out


@pytest.mark.parametrize(
    ("message", "category", "module"),
    [
        ("a defect", UserWarning, "hydra.experimental.initialize"),
        ("hydra.experimental.compose() is no longer experimental", UserWarning, "another.module"),
        ("`torch.cuda.amp.autocast(args...)` is deprecated", UserWarning, "fairseq.trainer"),
    ],
)
def test_only_these(message, category, module):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        logs.set_up()
        warnings.warn_explicit(message, category, "file.py", 1, module=module)
        warnings.warn_explicit("In 'config': Usage of deprecated keyword in package header '# @package _group_'.",
                               UserWarning, "file.py", 1, module="hydra.core.default_element")  # fmt: skip
    assert [str(one.message) for one in seen] == [message]
