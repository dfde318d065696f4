"""Commands of `leapformer` in forks of a process that has imported PyTorch and fairseq, and nothing else.

A new interpreter takes five seconds for that, more than most trainings of tests. multiprocessing keeps the process
that forks. `Fork` starts a command as `subprocess.Popen` does; trainings that the command starts are forks, too. Tests
of the start itself take new interpreters.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn
from unittest.mock import patch

from leapformer_fairseq.studies import trainings

from . import kills

LATE = ("torch._dynamo", "matplotlib.figure", "sacrebleu")  # imported by trainings, pictures and scores
_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([f"{__package__}.preloaded"])


class Fork:
    """A command in a fork, with as much of `subprocess.Popen` as `trainings` needs."""

    def __init__(
        self,
        command: Sequence[str],
        stdin: int | IO[Any],
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        env: Mapping[str, str],
        cwd: str | Path | None = None,
        start_new_session: bool = False,
        close_fds: bool = True,
    ) -> None:
        arguments = command[len(trainings.PROGRAM) :]
        with open(os.devnull, "rb") as nothing:
            streams = [nothing if stdin == subprocess.DEVNULL else stdin, stdout]
            streams.append(stdout if stderr == subprocess.STDOUT else stderr)
            about = (arguments, _Streams(streams), dict(env), str(cwd or Path.cwd()), start_new_session)
            self._process = _forking.Process(target=_run, args=about)
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("leapformer", timeout or 0)
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class _Streams:
    """Standard streams of a fork, which can be sent to it while it is started."""

    def __init__(self, streams: Sequence[int | IO[Any]]) -> None:
        self._streams = streams

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([DupFd(one if isinstance(one, int) else one.fileno()) for one in self._streams],)


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a fork, for what must not stay in a process that other tests fork.

    PyTorch keeps process groups of gloo that were destroyed; a fork from another thread than theirs waits for their
    threads, which it does not have, for ever.
    """
    with ProcessPoolExecutor(1, _forking, _alone) as pool:
        return pool.submit(function, *arguments).result()


def _alone() -> None:
    import torch

    torch.set_num_threads(1)


def is_ours(command: Sequence[str]) -> bool:
    """Whether a command runs in a fork."""
    return tuple(command[: len(trainings.PROGRAM)]) == trainings.PROGRAM


def run(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, stdin: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` does, with the output captured as text."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin)
        given.seek(0)
        fork = Fork(command, given, out, err, env, cwd)
        try:
            status = fork.wait(timeout)
        except subprocess.TimeoutExpired:
            fork.send_signal(signal.SIGKILL)
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


@contextmanager
def forks() -> Iterator[None]:
    """Let the trainings that commands of this process start be forks."""
    ours = {**vars(subprocess), "Popen": _popen}
    with patch.object(trainings, "subprocess", SimpleNamespace(**ours)):
        yield


def _popen(command: Sequence[str], **settings: Any) -> Fork | subprocess.Popen[bytes]:
    return Fork(command, **settings) if is_ours(command) else subprocess.Popen(command, **settings)


def import_all() -> None:
    """In the process that forks: import what commands need, and leave logging as it was."""
    from leapformer_fairseq import register

    logging.getLogger().addHandler(logging.NullHandler())  # or else fairseq sets up logging
    register()
    for name in LATE:
        importlib.import_module(name)
    logging.getLogger().handlers.clear()


def stay_with_the_server() -> None:
    """In a fork: start others as a new process would, or from the process that this one comes from.

    multiprocessing would start all as this one was started, each from a new server that imports everything again.
    """
    multiprocessing.set_start_method(None, force=True)
    patch.object(forkserver._forkserver, "ensure_running", lambda: None).start()


def _run(arguments: Sequence[str], streams: Sequence[DupFd], env: Mapping[str, str], cwd: str, leads: bool) -> NoReturn:
    """In a fork: what `leapformer` does with these arguments, set up as a new process is; exits."""
    for number, stream in enumerate(streams):
        given = stream.detach()
        os.dup2(given, number)
        os.close(given)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if leads:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    stay_with_the_server()
    if about := os.environ.get(kills.VARIABLE):
        kills.install(about)

    import numpy as np
    import torch

    from leapformer_fairseq.cli.main import main

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    torch.seed()
    np.random.seed()
    sys.argv = ["leapformer", *arguments]
    status: Any = 1
    try:
        with forks():
            status = main()
    except SystemExit as error:
        status = error.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))  # fast: nothing is taken apart
