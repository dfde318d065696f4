"""How tests run commands: ours in a process forked from one that has imported torch and fairseq, which takes seconds.

A forked process has arguments, output, modules and logging of its own, as a new one has; so have the trainings that it
starts. That commands also start from nothing is seen where tests interrupt them, run the quickstart or `fairseq-*`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

LIMIT_S = 900
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PREFIX = [sys.executable, "-m", "leapformer_fairseq.cli.main"]
SERVER = multiprocessing.get_context("forkserver")  # not fork: this process may have threads of torch
SERVER.set_forkserver_preload(["torch", "fairseq.models", "fairseq.tasks", "fairseq.trainer"])


def leapformer(*arguments: str) -> list[str]:
    """The command line of one of our commands."""
    return [*PREFIX, *arguments]


def run(
    command: Sequence[str], cwd: Path | None = None, stdin: str = "", fresh: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The exit status and output of a command, with one thread; `fresh`: in a new interpreter, ours too."""
    if list(command[:3]) == PREFIX and not fresh:
        return _forked(_leapformer, list(command[3:]), stdin, cwd, environment)
    environment = {**os.environ, **ONE_THREAD, **environment}
    return subprocess.run(
        command, cwd=cwd, env=environment, input=stdin, capture_output=True, text=True, timeout=LIMIT_S
    )


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """The same of `python -c CODE`."""
    return _forked(exec, code)


def done(command: Sequence[str], stdin: str = "", fresh: bool = False) -> str:
    """All output of a command that has to end well."""
    finished = run(command, stdin=stdin, fresh=fresh)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout + finished.stderr


def _leapformer(arguments: list[str]) -> None:
    from leapformer_fairseq import trainings
    from leapformer_fairseq.cli.main import main

    trainings.subprocess = Subprocess
    sys.argv = ["leapformer", *arguments]
    sys.exit(main())


class Forked:
    """What `trainings` uses of a `Popen`, for one of our commands."""

    def __init__(self, command: Sequence[str], stdout: BinaryIO, env: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.setsid()
                with open(os.devnull) as nothing:
                    _become(nothing.fileno(), stdout.fileno(), stdout.fileno(), env)
                _leapformer(list(command[3:]))
            except SystemExit as end:
                status = end.code or 0
            except BaseException:
                traceback.print_exc()
            finally:
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = LIMIT_S) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Subprocess:
    """The module, in `trainings`."""

    DEVNULL, STDOUT, TimeoutExpired = subprocess.DEVNULL, subprocess.STDOUT, subprocess.TimeoutExpired

    @staticmethod
    def Popen(command: Sequence[str], **options: Any) -> Forked | subprocess.Popen[bytes]:  # noqa: N802
        if list(command[:3]) == PREFIX:
            return Forked(command, options["stdout"], options["env"])
        return subprocess.Popen(command, **options)


def _forked(
    function: Callable[[Any], None],
    argument: Any,
    stdin: str = "",
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        variables = {**os.environ, **ONE_THREAD, **(environment or {})}
        process = SERVER.Process(target=_child, args=(function, argument, files, cwd or Path.cwd(), variables))
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(str(argument), LIMIT_S)
        return subprocess.CompletedProcess(argument, process.exitcode, *(file.read_text() for file in files[1:]))


def _child(
    function: Callable[[Any], None], argument: Any, files: list[Path], cwd: Path, environment: Mapping[str, str]
) -> None:
    import torch

    torch.set_num_threads(1)  # a process that has used more cannot be forked again
    with files[0].open() as stdin, files[1].open("w") as out, files[2].open("w") as err:
        _become(stdin.fileno(), out.fileno(), err.fileno(), environment)
    os.chdir(cwd)
    function(argument)


def _become(stdin: int, out: int, err: int, environment: Mapping[str, str]) -> None:
    """Give this process other standard files and variables."""
    for number, file in enumerate((stdin, out, err)):
        os.dup2(file, number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has put another one there
    os.environ.clear()
    os.environ.update(environment)
