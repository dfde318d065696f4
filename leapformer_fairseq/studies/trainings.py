"""Trainings as processes: what starts and watches them, what interrupts them together, and what helps to resume them.

A folder belongs to one study and one process. A log holds the output of all attempts of a training.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NoReturn, TextIO

from .. import register
from ..support.errors import TRACEBACK, LeapformerError
from ..support.files import holds_files, replacing, write_text

PROGRAM = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.cli.main")
OPTIONS = "options"
LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
_log = logging.getLogger(__name__)
PATIENCE_S = 60.0  # time for an interrupted training to exit
Watch = Callable[[dict[str, Any]], None]  # receives the JSON objects of fairseq's log
_RANK = re.compile(r"^\[rank\d+\]: ?")  # the prefix of lines by torchrun's processes
# The last line of a traceback, or argparse's error; not torchrun's error about a process that has printed its own.
_REASON = re.compile(r"(?!.*\bChildFailedError)[\w.]*(Error|Exception)\b|leapformer[\w -]*: error: ")


@dataclass(frozen=True)
class Process:
    """A command, the log to which its output is appended, a watcher of the log, and environment variables."""

    command: Sequence[str]
    log: Path
    watch: Watch = lambda entry: None
    environment: Mapping[str, str] = field(default_factory=dict)


# -------------------------------------------------------------------------------------------------------------- folders
def check_folder(out: Path, record: str, study: str) -> None:
    """Raise LeapformerError unless `out` is new, empty, or holds a `study` with this `record`.

    `study` is a noun for the message, `record` the options of a command.
    """
    if (out / OPTIONS).is_file():
        other = (out / OPTIONS).read_text(encoding="utf-8").strip()
        if other != record:
            raise LeapformerError(
                f"--out {out} holds the {study} of another command ({other}); choose another folder or delete it"
            )
    elif holds_files(out):
        raise LeapformerError(f"--out {out} is not empty and holds no {study}; choose another folder")


def reserve(out: Path, record: str, study: str) -> None:
    """Note in a folder that this process owns whose it is. Raises LeapformerError like `check_folder`."""
    check_folder(out, record, study)
    if not (out / OPTIONS).is_file():
        write_text(out / OPTIONS, record + "\n")


# ------------------------------------------------------------------------------------------------------------ processes
def environment(threads: int | None = None) -> dict[str, str]:
    """Environment variables for a process that trains or generates on a CPU; those that the user has set stay.

    `threads` overrides the user's OMP_NUM_THREADS; by default that holds, or else all cores are used.
    """
    threads_text = str(threads or os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    defaults = {
        # Idle threads spin only briefly. Longer spinning, the default, makes training many times slower as soon as
        # anything else runs on the cores; sleeping at once makes it slower, too.
        "GOMP_SPINCOUNT": "20000",
        # glibc keeps freed memory, in pages of 2 MiB, instead of returning it to the system and getting it back zeroed
        # at every update: a CPU trains a quarter faster.
        "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_TOP_PAD_": "268435456",
        "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.hugetlb=1",
        # oneDNN caches 1,024 products by default, and each shape of a batch needs its own: 10 GB with --bf16.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    }
    unset = {name: value for name, value in defaults.items() if name not in os.environ}
    threads_of = {"OMP_NUM_THREADS": threads_text, "MKL_NUM_THREADS": threads_text}
    return {**unset, **threads_of, TRACEBACK: "1"}  # tracebacks go to the log


class Running:
    """A process that is running, and its log."""

    def __init__(self, about: Process) -> None:
        about.log.parent.mkdir(parents=True, exist_ok=True)
        self.watch = about.watch
        self.output = about.log.open("ab")
        self.reader: TextIO = about.log.open(encoding="utf-8", errors="replace")
        # The watcher has seen the entries of earlier attempts.
        self.reader.seek(0, os.SEEK_END)
        self.process = subprocess.Popen(
            about.command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C would reach it, too; only `interrupt` does
            close_fds=False,  # it inherits the folder's lock
            env={**os.environ, **about.environment},
        )

    def poll(self) -> int | None:
        """Pass new entries of the log to the watcher; return the exit status, or None if the process is running."""
        status = self.process.poll()  # before reading the log, so that its end is not missed
        for entry in read_log(iter(self.reader.readline, "")):
            self.watch(entry)
        return status

    def close(self) -> None:
        self.output.close()
        self.reader.close()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Wait for the interrupted process; kill it with all its children after PATIENCE_S or a second Ctrl-C."""
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            self.process.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and a closed terminal act like Ctrl-C, also in the background, where shells ignore Ctrl-C."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)  # nohup ignores it
    with _handled_by(signal.default_int_handler, numbers):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Raise the KeyboardInterrupt that comes in the block after it, when whatever the block started is known."""
    numbers = [number for number in signal.Signals if signal.getsignal(number) is signal.default_int_handler]
    came = list[int]()
    with _handled_by(lambda number, frame: came.append(number), numbers):
        yield
    if came:
        raise KeyboardInterrupt


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], Any], numbers: Iterable[signal.Signals]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


# ----------------------------------------------------------------------------------------------------------------- logs
def read_log(lines: Iterable[str], name: str = "") -> Iterator[dict[str, Any]]:
    """Iterate over the JSON objects in the lines of fairseq's log, only those of the logger `name` if given."""
    for line in lines:
        before, brace, rest = line.partition("{")
        if brace and name in before:
            with suppress(json.JSONDecodeError):
                entry = json.loads(brace + rest)
                if isinstance(entry, dict):
                    yield entry


def entries(log: Path, name: str = "") -> list[dict[str, Any]]:
    """The JSON objects in a log of all attempts, as by `read_log`."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return list(read_log(lines, name))


def speed(log: Path, unit: str) -> float | None:
    """The median training speed in a log, in words ("wps") or updates ("ups") per second; None if it has none."""
    speeds = [float(entry[unit]) for entry in entries(log, "train_inner") if unit in entry]
    measured = [value for value in speeds if value > 0]  # the first value of a process may be 0
    return median(measured) if measured else None


def failure(log: Path, start: int, status: int) -> LeapformerError:
    """Return the error of the last attempt: the last line of the log from byte `start` on that names an exception."""
    with log.open("rb") as file:
        file.seek(start)
        output = file.read().decode(errors="replace")
    lines = [line for line in (_RANK.sub("", line.strip()) for line in output.splitlines()) if line]
    named = [line for line in lines if _REASON.match(line)] or lines[-1:]
    how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
    reason = named[-1].removeprefix("leapformer: error: ")[:300] if named else "no output"
    return LeapformerError(f"{reason} ({how}; see {log})")


def size_of(log: Path) -> int:
    """The size of a log in bytes, at which the next attempt begins; 0 if there is none."""
    return log.stat().st_size if log.is_file() else 0


# ---------------------------------------------------------------------------------------------------------- checkpoints
def mend_last(folder: Path) -> None:
    """Replace a checkpoint_last.pt that was cut off by the newest whole checkpoint.

    fairseq writes one file, copies it to the other names, and resumes only from the last one. Without `compat`, or in
    earlier versions of this package, copies were written in place, so an interruption could cut one off.
    """
    last = folder / LAST
    if not last.is_file() or not _is_cut_off(last):
        return
    others = sorted(folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
    whole = next((path for path in others if path != last and not _is_cut_off(path)), None)
    if whole is None:
        _log.warning("%s was cut off, and there is no other checkpoint; the training begins again", last)
        last.unlink()
        return
    _log.warning("%s was cut off; the training goes on from %s", last, whole.name)
    with replacing(last) as partial:
        shutil.copyfile(whole, partial)


def _is_cut_off(checkpoint: Path) -> bool:
    """Whether a file of torch.save, a zip archive, lacks its end, where the list of contents is.

    Files of PyTorch before 1.6 are pickles, which only loading can check.
    """
    with checkpoint.open("rb") as file:
        return file.read(1) != b"\x80" and not zipfile.is_zipfile(file)


def refusing(what: str, command: str = "train") -> Callable[[str], NoReturn]:
    """Return an error handler for a parser of fairseq's options: one line about `what` instead of pages of usage."""

    def refuse(message: str) -> NoReturn:
        reason = message.partition(" (choose from")[0]  # there are hundreds of architectures to choose from
        remedy = f"see `leapformer {command} --help`"
        if message.startswith("unrecognized arguments"):
            remedy += "; --user-dir FOLDER adds options of the mechanisms that its __init__.py imports"
        raise LeapformerError(f"{what}: {reason}; {remedy}")

    return refuse


def parse_options(words: Sequence[str], what: str) -> Namespace:
    """Parse the options of a training like `leapformer train`, to reject wrong ones before any work.

    `what` names the source of the words in messages. Raises LeapformerError for unknown options.
    """
    register()
    from fairseq import options

    parser = options.get_training_parser()
    parser.error = refusing(what)
    args: Namespace = options.parse_args_and_arch(parser, list(words))
    return args
