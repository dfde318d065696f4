"""What fairseq's commands log, through `leapformer`: its own format, nothing that no user can act on, all the rest."""

import os
import subprocess
import sys
import warnings

import pytest

from leapformer_fairseq.cli import logs

pytest.importorskip("fairseq")


COMMANDS = """
import logging, os, sys, warnings
from leapformer_fairseq.cli.main import main
OPTIONS = ("--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 8 --max-tokens 80 --cpu "
           "--max-update 1 --optimizer adam --no-save")
def next_one():
    for stream in (sys.stdout, sys.stderr):
        print("NEXT", file=stream, flush=True)

assert main("preprocess --trainpref train --validpref valid --destdir data --only-source --workers 1".split()) == 0
next_one()
assert main(["train", "data", *OPTIONS.split()]) == 0
next_one()
logging.getLogger().handlers.clear()
sys.warnoptions.append("default")
warnings.resetwarnings()
os.environ["LOGLEVEL"] = "DEBUG"
assert main(["train", "data", *OPTIONS.split()]) == 0
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What a preparation of data and two trainings print, the second as if PYTHONWARNINGS and LOGLEVEL were set."""
    folder = tmp_path_factory.mktemp("logs")
    for split in ("train", "valid"):
        (folder / split).write_text("a b c d e f g\n" * 8)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMANDS]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return [out + err for out, err in zip(done.stdout.split("NEXT\n"), done.stderr.split("NEXT\n"), strict=True)]


def test_no_warning_that_no_user_can_act_on(printed):
    for out in printed[:2]:
        first, *_ = out.splitlines()
        assert " | INFO | fairseq_cli." in first, first
        for noise in ("Warning", "DEBUG", "tensorboardX", "--user-dir="):
            assert noise not in out.replace(first, "")  # the first line of a training lists all options


def test_all_of_them_when_asked_for(printed):
    assert "hydra.experimental.initialize() is no longer experimental" in printed[2] and "| DEBUG | " in printed[2]


@pytest.mark.parametrize("options", [[], ["ignore:semaphore_tracker:UserWarning"]])  # fairseq leaves that to processes
@pytest.mark.parametrize(
    ("message", "category", "module"),
    [
        ("a defect", UserWarning, "hydra.experimental.initialize"),
        ("hydra.experimental.compose() is no longer experimental", UserWarning, "another.module"),
        ("`torch.cuda.amp.autocast(args...)` is deprecated", UserWarning, "fairseq.trainer"),
    ],
)
def test_only_these(monkeypatch, message, category, module, options):
    monkeypatch.setattr(sys, "warnoptions", options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        logs.set_up()
        warnings.warn_explicit(message, category, "file.py", 1, module=module)
        warnings.warn_explicit("In 'config': Usage of deprecated keyword in package header '# @package _group_'.",
                               UserWarning, "file.py", 1, module="hydra.core.default_element")  # fmt: skip
    assert [str(one.message) for one in seen] == [message]
