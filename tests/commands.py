"""How tests run commands: with one thread, ours in forks (see `forks`), others in a new interpreter."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from leapformer_fairseq.studies.trainings import PROGRAM

from . import forks

LIMIT_S = 900


def leapformer(*arguments: str) -> list[str]:
    """The command line of one of our commands."""
    return [*PROGRAM, *arguments]


def run(
    command: Sequence[str], cwd: Path | None = None, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The exit status and output of a command; one of ours in a fork."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if forks.is_ours(command):
        return forks.run(command, environment, cwd, stdin, LIMIT_S)
    return subprocess.run(
        command, cwd=cwd, env=environment, input=stdin, capture_output=True, text=True, timeout=LIMIT_S
    )


def done(command: Sequence[str], stdin: str = "") -> str:
    """All output of a command that has to end well."""
    finished = run(command, stdin=stdin)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout + finished.stderr
