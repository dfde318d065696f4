"""How tests run commands: with one thread, ours in forks (see `forks`), others in a new interpreter."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from leapformer_fairseq.studies import trainings
from leapformer_fairseq.studies.trainings import PROGRAM, Process

from . import forks

R = TypeVar("R")

LIMIT_S = 900
#: a generator that yields processes to run one after the other, and receives the exit status of each
Work = Generator[Process, int, None]


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


def run_all(works: Iterable[Work], at_once: int = 1) -> None:
    """Run `works`, at most `at_once` in parallel.

    If this process is interrupted, it interrupts all started processes, and raises KeyboardInterrupt once they have
    ended. An exception in one of the works ends all.
    """
    waiting, active = iter(works), dict[trainings.Running, Work]()
    with trainings.interruptible():
        try:
            while True:
                while len(active) < at_once and (work := next(waiting, None)) is not None:
                    _begin(work, None, active)
                if not active:
                    return
                with suppress(subprocess.TimeoutExpired):
                    next(iter(active)).process.wait(0.02)
                for running in list(active):
                    status = running.poll()
                    if status is not None:
                        running.close()
                        _begin(active.pop(running), status, active)
        except BaseException:
            for running in active:  # all at once: each may take its time to save
                running.interrupt()
            for running in active:
                running.end()
            raise


def _begin(work: Work, status: int | None, active: dict[trainings.Running, Work]) -> None:
    """Start the next process of a work, if there is one."""
    with suppress(StopIteration):
        process = next(work) if status is None else work.send(status)
        active[trainings.Running(process)] = work


def carried_out(work: Generator[Process, int, R]) -> R:
    """What some work of `trainings` returns once its processes have ended."""
    found = []

    def whole() -> Generator[Process, int, None]:
        found.append((yield from work))

    run_all([whole()])
    return found[0]


def status_of(process: Process) -> Generator[Process, int, int]:
    """The work of one process, which returns its exit status."""
    return (yield process)
