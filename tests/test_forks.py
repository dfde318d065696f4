"""Commands in forks do what they do in a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from . import forks
from .commands import leapformer, run

COMMANDS = {
    "an answer": ["doctor"],
    "a user's error": ["train", "data"],
    "an unknown option": ["plot", "--speed", "3"],
    "fairseq's own error": ["train", "no-such-folder", "--arch", "leapformer_lm_tiny", "--batch-size", "3"],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if "error" in name else pytest.mark.full) for name in COMMANDS]
)
def test_status_and_output(name, tmp_path):
    command = leapformer(*COMMANDS[name])
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    fork = run(command, cwd=tmp_path)
    assert fork.returncode == alone.returncode
    assert without_times(fork.stdout) == without_times(alone.stdout)
    assert without_times(fork.stderr) == without_times(alone.stderr)


def without_times(text: str) -> list[str]:
    return [line.split(" | ", 1)[-1] for line in text.splitlines()]


def test_folder_environment_and_input(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid"):
        (text / split).write_text("one two\n")
    words = (
        "preprocess",
        "--only-source",
        "--trainpref",
        "text/train",
        "--validpref",
        "text/valid",
        "--destdir",
        "data",
    )
    made = run(leapformer(*words, "--workers", "1"), cwd=tmp_path, LOGLEVEL="ERROR")
    assert made.returncode == 0 and "INFO" not in made.stderr, made.stderr
    command = leapformer("interactive", "data", "--task", "language_modeling", "--path", "nothing.pt")
    assert "nothing.pt" in run(command, cwd=tmp_path, stdin="one").stderr


def test_a_signal_ends_it(tmp_path):
    command = leapformer("bench", "attention")
    with (tmp_path / "log").open("wb") as log:
        fork = forks.Fork(command, subprocess.DEVNULL, log, subprocess.STDOUT, dict(os.environ), start_new_session=True)
        fork.send_signal(signal.SIGKILL)
        assert fork.wait(30) == -signal.SIGKILL == fork.poll()
