"""Commands of `leapformer` in forks of a process that has imported PyTorch and fairseq.

A new interpreter takes five seconds for that, more than most trainings of tests. `Fork` starts a command as
`subprocess.Popen` does; its own trainings are forks, too. Tests of the start itself take new interpreters.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn
from unittest.mock import patch

from leapformer_fairseq import trainings

ADDRESS = "TESTS_WARM"  # variable of the environment: where the process that forks listens
LATE = ("torch._dynamo", "matplotlib.figure", "sacrebleu")  # imported by trainings, pictures and scores
LARGEST = 1 << 20  # bytes of a command and its environment


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
        given = {
            "arguments": command[len(trainings.PROGRAM) :],
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
            "leads": start_new_session,
        }
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(os.environ.get(ADDRESS) or _server())
        with open(os.devnull, "rb") as nothing:
            inputs = [nothing if stdin == subprocess.DEVNULL else stdin, stdout]
            inputs.append(stdout if stderr == subprocess.STDOUT else stderr)
            files = [one if isinstance(one, int) else one.fileno() for one in inputs]
            socket.send_fds(self._connection, [json.dumps(given).encode()], files)
            self.pid = int(self._connection.recv(100))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("leapformer", timeout or 0)
            self.returncode = int(self._connection.recv(100))
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


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


@cache
def _server() -> str:
    """Start the process that forks, which ends with this one; its address."""
    folder = tempfile.TemporaryDirectory()
    address = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, ADDRESS: address, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[1],
    )
    assert process.stdin is not None and process.stdout is not None
    atexit.register(folder.cleanup)
    atexit.register(process.stdin.close)
    process.stdout.readline()  # it listens
    return address


# ----------------------------------------------------------------------------------------- in the process that forks
def serve(address: str) -> dict[str, Any] | None:
    """Fork for each connection. In a fork, what it is to do is returned; None when nobody needs more."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("listens", flush=True)
        while select.select([listening, sys.stdin], [], [])[0] == [listening]:
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    return _started(connection)
            with suppress(ChildProcessError):  # those that have ended
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    return None


def _started(connection: socket.socket) -> dict[str, Any]:
    """Fork again: the parent tells who it is and how it ends, the child is set up as it was asked for."""
    words, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
    process = os.fork()
    if process:
        connection.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        with suppress(OSError):  # nobody waits for it any more
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    given: dict[str, Any] = json.loads(words)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if given["leads"]:
        os.setsid()
    os.chdir(given["cwd"])
    kept = {ADDRESS: os.environ[ADDRESS]}
    os.environ.clear()
    os.environ.update(given["env"] | kept)
    return given


def run_command(given: Mapping[str, Any]) -> NoReturn:
    """In a fork: what `leapformer` does with these arguments; exits."""
    import numpy as np
    import torch

    from leapformer_fairseq.cli.main import main

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    np.random.seed()
    sys.argv = ["leapformer", *given["arguments"]]
    with forks():
        status = main()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without taking apart what was imported, which takes a second


def import_all() -> None:
    """Import what commands need, to be shared by all forks, and leave logging as it was."""
    from leapformer_fairseq import register

    logging.basicConfig(level=logging.WARNING)  # or else fairseq sets it up
    register()
    for name in LATE:
        importlib.import_module(name)
    logging.getLogger().handlers.clear()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "only the thread that forks goes on in a fork"


if __name__ == "__main__":
    import_all()
    asked = serve(sys.argv[1])
    if asked is not None:
        run_command(asked)
