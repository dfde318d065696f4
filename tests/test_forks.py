"""Commands in forks do what they do in a new interpreter."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import forks
from .commands import leapformer, run
from .covering import kept
from .patience import Patience, started_since

COMMANDS = {
    "an answer": ["doctor"],
    "a user's error": ["train", "data"],
    "an unknown option": ["plot", "--speed", "3"],
    "fairseq's own error": ["train", "no-such-folder", "--arch", "leapformer_lm_tiny", "--batch-size", "3"],
}


@pytest.mark.parametrize("name", kept(COMMANDS, *(name for name in COMMANDS if "fairseq" in name)))
def test_status_and_output(name, tmp_path):
    command = leapformer(*COMMANDS[name])
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    fork = run(command, cwd=tmp_path)
    assert fork.returncode == alone.returncode
    assert without_times(fork.stdout) == without_times(alone.stdout)
    assert without_times(fork.stderr) == without_times(alone.stderr)


def without_times(text: str) -> list[str]:
    return [line.split(" | ", 1)[-1] for line in text.splitlines()]


def test_forks_of_a_fork_come_from_the_same_server(tmp_path):
    """Another one would import everything once more; with a data loader of its own it would never end."""
    process = forks._forking.Process(target=begin_another, args=(tmp_path,))
    process.start()
    process.join()
    assert (tmp_path / "outer").read_text() == (tmp_path / "inner").read_text()
    assert (tmp_path / "method").read_text() == multiprocessing.get_start_method()


def begin_another(folder: Path) -> None:
    forks.stay_with_the_server()
    (folder / "method").write_text(multiprocessing.get_start_method())
    note_parent(folder / "outer")
    inner = forks._forking.Process(target=note_parent, args=(folder / "inner",))
    inner.start()
    inner.join()


def note_parent(path: Path) -> None:
    path.write_text(str(os.getppid()))


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
    command = leapformer("bench", "attention", "--out", str(tmp_path / "bench"))  # it may come as far as that
    with (tmp_path / "log").open("wb") as log:
        fork = forks.Fork(command, subprocess.DEVNULL, log, subprocess.STDOUT, dict(os.environ), start_new_session=True)
        fork.send_signal(signal.SIGKILL)
        assert fork.wait(30) == -signal.SIGKILL == fork.poll()


def test_a_test_that_waits_for_ever_for_a_process_fails(tmp_path, capfd):
    patience = Patience(0.5)
    patience.begin()
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    code = "import faulthandler, time; faulthandler.enable(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", f"import os, time; os.fork(); {code}"]) as process:
        while len(started := started_since(began)) < 2:
            time.sleep(0.01)
        assert process.wait() == -signal.SIGABRT
    patience.end()
    assert process.pid in started and not started_since(began)
    assert "Fatal Python error" in capfd.readouterr().err
