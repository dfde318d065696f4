"""Trainings in processes of their own: one or several at a time, watched, interrupted together, resumed.

A folder belongs to one study and one process; the output of all attempts of a training is in one log.
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NoReturn, TextIO

from .. import register
from ..support.errors import TRACEBACK, LeapformerError
from ..support.files import holds_files, owned, replacing, write_text

PROGRAM = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.cli.main")
OPTIONS = "options"
LAST = "checkpoint_last.pt"
POLL_S = 1.0
_log = logging.getLogger(__name__)
PATIENCE_S = 60.0  # for an interrupted training to exit
Watch = Callable[[dict[str, Any]], None]  # gets the JSON objects of fairseq's log
# The last line of a traceback, and argparse's error about options; not torchrun's about a process that said more.
_RANK = re.compile(r"^\[rank\d+\]: ?")
_REASON = re.compile(r"(?!.*\bChildFailedError)[\w.]*(Error|Exception)\b|leapformer[\w -]*: error: ")


@dataclass(frozen=True)
class Process:
    """A command, the log that its output is added to, who watches that, and variables of its environment."""

    command: Sequence[str]
    log: Path
    watch: Watch = lambda entry: None
    environment: Mapping[str, str] = field(default_factory=dict)


#: yields processes one after the other, and is sent the exit status of each
Work = Generator[Process, int, None]


# -------------------------------------------------------------------------------------------------------------- folders
def check_folder(out: Path, record: str, study: str) -> None:
    """Make sure that `out` is new, empty, or holds this `study` of this `record`, such as a training command.

    Raises LeapformerError when it holds another one, or something else.
    """
    if (out / OPTIONS).is_file():
        other = (out / OPTIONS).read_text(encoding="utf-8").strip()
        if other != record:
            raise LeapformerError(
                f"--out {out} holds the {study} of another command ({other}); choose another folder or delete it"
            )
    elif holds_files(out):
        raise LeapformerError(f"--out {out} is not empty and holds no {study}; choose another folder")


@contextmanager
def locked(out: Path, record: str, study: str) -> Iterator[None]:
    """The folder `out`, made if need be, for this study and this process alone.

    Raises LeapformerError as `files.owned` and `check_folder` do.
    """
    with owned(out):
        check_folder(out, record, study)
        if not (out / OPTIONS).is_file():
            write_text(out / OPTIONS, record + "\n")
        yield


# ------------------------------------------------------------------------------------------------------------ processes
def environment(threads: int | None = None) -> dict[str, str]:
    """Variables for a process that trains or generates on a CPU, where the user has not set them.

    threads: how many it has, whatever the user says; by default what the user says, or all cores.
    """
    threads_text = str(threads or os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    defaults = {
        # Idle threads spin only briefly. Spinning longer, the default, makes training many times slower as soon as
        # anything else runs on these cores; sleeping at once also makes it slower.
        "GOMP_SPINCOUNT": "20000",
        # glibc keeps freed memory, in pages of 2 MiB, instead of returning it and getting it back zeroed at every
        # update: a CPU trains a quarter faster.
        "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_TOP_PAD_": "268435456",
        "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.hugetlb=1",
        # oneDNN keeps 1,024 products, of which each shape of a batch has its own: with --bf16 they grow to 10 GB.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    }
    unset = {name: value for name, value in defaults.items() if name not in os.environ}
    threads_of = {"OMP_NUM_THREADS": threads_text, "MKL_NUM_THREADS": threads_text}
    return {**unset, **threads_of, TRACEBACK: "1"}  # into the log


def run_all(works: Iterable[Work], at_once: int = 1) -> None:
    """Carry out works, so many `at_once`.

    When this process is interrupted its processes are, too, and have ended when KeyboardInterrupt comes out of here.
    What a work raises ends all.
    """
    waiting, active = iter(works), list[_Active]()
    with _interruptible():
        try:
            while True:
                while len(active) < at_once and (work := next(waiting, None)) is not None:
                    _begin(work, None, active)
                if not active:
                    return
                with suppress(subprocess.TimeoutExpired):
                    active[0].process.wait(POLL_S)
                for one in list(active):
                    status = one.look()
                    if status is not None:
                        active.remove(one)
                        one.close()
                        _begin(one.work, status, active)
        except BaseException:
            for one in active:
                one.stop()
            raise


class _Active:
    """A process that runs for a work."""

    def __init__(self, work: Work, about: Process) -> None:
        about.log.parent.mkdir(parents=True, exist_ok=True)
        self.work, self.watch = work, about.watch
        self.output = about.log.open("ab")
        self.reader: TextIO = about.log.open(encoding="utf-8", errors="replace")
        self.reader.seek(0, os.SEEK_END)
        self.process = subprocess.Popen(
            about.command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal reaches a whole group; one interrupt is enough
            close_fds=False,  # the lock
            env={**os.environ, **about.environment},
        )

    def look(self) -> int | None:
        """Show the watcher what is new in the log; the exit status once there is one."""
        status = self.process.poll()
        for entry in read_log(iter(self.reader.readline, "")):
            self.watch(entry)
        return status

    def close(self) -> None:
        self.output.close()
        self.reader.close()

    def stop(self) -> None:
        """As Ctrl-C does; what does not listen, or not before a second Ctrl-C, is killed with all it has started."""
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            self.process.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()


def _begin(work: Work, status: int | None, active: list[_Active]) -> None:
    """Start the next process of a work, if it has one."""
    with suppress(StopIteration):
        process = next(work) if status is None else work.send(status)
        active.append(_Active(work, process))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and a closed terminal do what Ctrl-C does, also in the background, where a shell ignores Ctrl-C."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)  # not with nohup
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ----------------------------------------------------------------------------------------------------------------- logs
def read_log(lines: Iterable[str], name: str = "") -> Iterator[dict[str, Any]]:
    """The JSON objects in the lines of fairseq's log, of the logger `name` only if one is given."""
    for line in lines:
        before, brace, rest = line.partition("{")
        if brace and name in before:
            with suppress(json.JSONDecodeError):
                entry = json.loads(brace + rest)
                if isinstance(entry, dict):
                    yield entry


def entries(log: Path, name: str = "") -> list[dict[str, Any]]:
    """The JSON objects in a log of all attempts, as `read_log`."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return list(read_log(lines, name))


def speed(log: Path, unit: str) -> float | None:
    """The median training speed in a log, in words ("wps") or updates ("ups") a second; None when it has none."""
    speeds = [float(entry[unit]) for entry in entries(log, "train_inner") if unit in entry]
    measured = [one for one in speeds if one > 0]  # the first of a process may be 0
    return median(measured) if measured else None


def failure(log: Path, start: int, status: int) -> LeapformerError:
    """What the last attempt died of: the last line in the log from byte `start` on that names an error."""
    with log.open("rb") as file:
        file.seek(start)
        output = file.read().decode(errors="replace")
    lines = [line for line in (_RANK.sub("", line.strip()) for line in output.splitlines()) if line]
    named = [line for line in lines if _REASON.match(line)] or lines[-1:]
    how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
    reason = named[-1].removeprefix("leapformer: error: ")[:300] if named else "no output"
    return LeapformerError(f"{reason} ({how}; see {log})")


def size_of(log: Path) -> int:
    """Bytes, 0 without a log: where the next attempt begins."""
    return log.stat().st_size if log.is_file() else 0


# ---------------------------------------------------------------------------------------------------------- checkpoints
def mend_last(folder: Path) -> None:
    """Put the newest whole checkpoint in the place of a last one whose copying was interrupted.

    fairseq writes one file and copies it to the other names, and goes on from the last one only. Without `compat`, or
    in earlier versions, copies were made in place.
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
    """Whether it is no whole file of torch.save, whose list of contents is at the end.

    Files of PyTorch before 1.6 are pickles; whether those are whole, and what else may be wrong, a reader has to say.
    """
    with checkpoint.open("rb") as file:
        return file.read(1) != b"\x80" and not zipfile.is_zipfile(file)


def refusing(what: str, command: str = "train") -> Callable[[str], NoReturn]:
    """What a parser of fairseq's options does with an error: one line about `what`, instead of pages of usage."""

    def refuse(message: str) -> NoReturn:
        reason = message.partition(" (choose from")[0]  # there are hundreds of architectures
        raise LeapformerError(f"{what}: {reason}; see `leapformer {command} --help`")

    return refuse


def parse_options(words: Sequence[str], what: str) -> Namespace:
    """The options of a training, parsed as `leapformer train` does, to find out before any work what it would refuse.

    Raises LeapformerError in one line, about `what` the words came from, for options that do not exist.
    """
    register()
    from fairseq import options

    parser = options.get_training_parser()
    parser.error = refusing(what)
    args: Namespace = options.parse_args_and_arch(parser, list(words))
    return args
