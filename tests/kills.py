"""Commands that are killed at a chosen change of a file, and started again.

`LEAPFORMER_TESTS_KILL` in the environment of a command in forks (see `forks`) makes its processes count together
whatever they are about to change in one folder: files that are opened for writing, renamed, truncated or deleted, and
folders that are made or deleted. At the chosen number (of a file that is opened to be written anew: when it is empty),
or some milliseconds later, all of them are killed, as when a machine stops. Python's audit hooks tell of the changes;
nothing of the commands is replaced.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "LEAPFORMER_TESTS_KILL"
LIMIT_S = 300
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: names of values that depend on the time, the load or the state of the code, not on what was asked for
_OF_TIME = re.compile(
    r"second|wps|ups\b|speed|time|signature|duration|throughput|(^|_)wall|_s$|_CA$|^compute$|without_prenet|^date$"
)
#: files of logs and pictures, and of tables with speeds, whose numbers are in a .json beside them
_LEFT_OUT = re.compile(r"(\.log|\.svg|\.md|commands\.sh|(table|quality)\.csv|compute\.jsonl)$")


@dataclass(frozen=True)
class Case:
    """A command: `make(folder)` fills a folder with what it reads, `words(folder, out)` are its words."""

    make: Callable[[Path], object]
    words: Callable[[Path, Path], Sequence[str]]


@dataclass(frozen=True)
class Moment:
    """When to kill: at the start of so many changes, from 1, and milliseconds after that."""

    change: int
    later_ms: float = 0.0


# ------------------------------------------------------------------------------------------------ in the killed command
def install(about: str) -> None:
    """Count the changes of this process, which is a fork of a test, and kill it and the others of its command."""
    spec = json.loads(about)
    counter = os.open(spec["counter"], os.O_RDWR | os.O_APPEND | os.O_CREAT)
    members = os.open(f"{spec['counter']}.pids", os.O_RDWR | os.O_APPEND | os.O_CREAT)
    os.write(members, b"%d\n" % os.getpid())
    root, at = spec["root"], spec["change"]

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event not in _CHANGES and not (event == "open" and isinstance(args[2], int) and args[2] & _WRITES):
            return
        if not isinstance(args[0], (str, os.PathLike)) or not os.path.abspath(args[0]).startswith(root):
            return
        os.write(counter, b".")
        if os.fstat(counter).st_size != at:
            return
        if event == "open" and args[2] & os.O_TRUNC and not args[2] & os.O_EXCL:
            os.close(os.open(args[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))  # opened, nothing written yet
        if spec["later_ms"]:
            threading.Timer(spec["later_ms"] / 1000, _kill_all, [members]).start()
        else:
            _kill_all(members)

    sys.addaudithook(watch)


def _kill_all(members: int) -> None:
    found = {int(line) for line in os.pread(members, 1 << 16, 0).split()} - {os.getpid()}
    for one in found:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


# --------------------------------------------------------------------------------------------------------- in the test
def started(words: Sequence[str], out: Path, moment: Moment = Moment(0)) -> tuple[int, int, str]:
    """Run a command whose changes in `out` are counted; its status, how many there were, and its standard error."""
    from .commands import leapformer
    from .forks import Fork

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        counter = Path(folder, "counter")
        spec = {"root": str(out), "counter": str(counter), "change": moment.change, "later_ms": moment.later_ms}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", VARIABLE: json.dumps(spec)}
        environment.pop("LEAPFORMER_OWNED", None)
        process = Fork(leapformer(*words), subprocess.DEVNULL, said, said, environment)
        status = process.wait(LIMIT_S)
        end = time.monotonic() + 20
        members = [int(line) for line in Path(f"{counter}.pids").read_text().split()]
        while any(map(_lives, members)) and time.monotonic() < end:
            time.sleep(0.02)
        said.seek(0)
        return status, counter.stat().st_size if counter.exists() else 0, said.read()[-3000:]


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def killed_and_resumed(case: Case, made: Path, out: Path, moment: Moment) -> tuple[bool, dict[str, Any], str]:
    """Whether it was killed, what the same command has made after that, and what that said if it failed."""
    shutil.rmtree(out, ignore_errors=True)
    words = case.words(made, out)
    status, *_ = started(words, out, moment)
    again, _, said = started(words, out)
    return status == -signal.SIGKILL, results(out), f"exit status {again}: {said}" if again else ""


def results(out: Path) -> dict[str, Any]:
    """What a command has made, without times; files that were left half written are results, too."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_file() and path.name != ".lock" and not _LEFT_OUT.search(name):
            found[name] = _content(path)
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of files that only one of two results has, or that differ."""
    return [name for name in sorted({**one, **other}) if not _same(one.get(name), other.get(name))]


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal; numbers up to what a model computes otherwise in another process."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _content(path: Path) -> Any:
    if path.suffix == ".pt":
        import torch

        found = torch.load(path, map_location="cpu", weights_only=False)
        if isinstance(found, dict) and "extra_state" in found:  # of fairseq: meters in it tell of speed
            extra = found["extra_state"]
            told = {name: extra.get(name) for name in ("train_iterator", "val_loss", "best")}
            updates = found["optimizer_history"][-1]["num_updates"]  # those before it are of earlier processes
            return _digest([found["model"], found["last_optimizer_state"]]), told, updates
        return _digest(found)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    content = path.read_bytes()
    if content[:1] == b"{":
        try:
            return _timeless(json.loads(content))
        except ValueError:
            pass
    return hashlib.sha256(content).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if not _OF_TIME.search(name)}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:
    """Of all tensors and arrays in it, with the names that lead to them."""
    import torch

    found = hashlib.sha256()

    def add(name: str, one: Any) -> None:
        if isinstance(one, dict):
            for key in sorted(one, key=str):
                add(f"{name}/{key}", one[key])
        elif isinstance(one, (list, tuple)):
            for number, inner in enumerate(one):
                add(f"{name}/{number}", inner)
        elif isinstance(one, torch.Tensor):
            found.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
            found.update(one.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())

    add("", value)
    return found.hexdigest()
