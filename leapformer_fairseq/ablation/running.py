"""One run of an ablation: a training in a separate process that can be interrupted and resumed.

FOLDER/train.log has the output of all attempts; a finished run leaves its result in FOLDER/done.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from ..checkpoints import load_checkpoint
from ..errors import LeapformerError
from ..files import read_json, replacing, write_json, write_text
from ..scoring.runs import describe_checkpoint
from ..signature import signature
from .search import Result
from .training import LAST

Watch = Callable[[str], None]  # gets the value of the last validation, as it stands in the log
OPTIONS, LOCK, LOG, DONE = "options", ".lock", "train.log", "done"
BEST = "checkpoint_best.pt"
POLL_S = 1.0
PATIENCE_S = 60.0  # for an interrupted training to exit
# The last line of a traceback, and argparse's error about options.
_REASON = re.compile(r"[\w.]*(Error|Exception)\b|leapformer[\w -]*: error: ")


def check_folder(out: Path, arguments: str) -> None:
    """Make sure that `out` is new, empty, or holds the ablation of the training command `arguments`.

    Raises LeapformerError when it holds another one, or something else.
    """
    if (out / OPTIONS).is_file():
        other = (out / OPTIONS).read_text(encoding="utf-8").strip()
        if other != arguments:
            raise LeapformerError(
                f"--out {out} holds the ablation of another training command ({other}); choose another folder or "
                "delete it"
            )
    elif out.is_dir() and any(out.iterdir()):
        raise LeapformerError(f"--out {out} is not empty and holds no ablation; choose another folder")


@contextmanager
def locked(out: Path, arguments: str) -> Iterator[None]:
    """The folder `out`, made if need be, for this ablation and this process alone.

    Raises LeapformerError as `check_folder` does, and while another process works in it.
    """
    check_folder(out, arguments)
    if not (out / OPTIONS).is_file():
        write_text(out / OPTIONS, arguments + "\n")
    with (out / LOCK).open("w") as lock:
        os.set_inheritable(lock.fileno(), True)  # trainings hold it, too, should this process be killed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LeapformerError(
                f"--out {out}: another `leapformer ablate`, or a training that it started, is running here; "
                "wait for it or end it"
            ) from error
        yield


def finished(folder: Path) -> Result | None:
    """The result of the run in `folder` if it is finished. Raises LeapformerError when it cannot be read."""
    path = folder / DONE
    if not path.is_file():
        return None
    names = [field.name for field in fields(Result)]
    found = read_json(path, names, "delete it, and the run is repeated")
    return Result(**{name: found[name] for name in names})


def complete(command: Sequence[str], folder: Path, measure: str, watch: Watch) -> Result:
    """Start a training, or resume an interrupted one, and leave its result in `folder`.

    `measure` is the log's name for what validation minimises. Raises LeapformerError with the reason when the training
    fails or leaves no validation loss.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _mend_last(folder)
    log = folder / LOG
    start = log.stat().st_size if log.is_file() else 0
    status = train(command, log, measure, watch)
    if status:
        raise LeapformerError(_reason(log, start, status))
    best = describe_checkpoint(folder / BEST) if (folder / BEST).is_file() else {"valid_loss": None}
    if best["valid_loss"] is None or not math.isfinite(best["valid_loss"]):
        raise LeapformerError(f"no validation loss ({best['valid_loss']}) in {folder / BEST}; see {log}")
    result = Result(
        loss=best["valid_loss"],
        wps=words_per_second(log),
        epoch=best["epoch"],
        updates=best["updates"],
        parameters=best["parameters"],
        signature=signature(),
    )
    write_json(folder / DONE, asdict(result))
    return result


def train(command: Sequence[str], log: Path, measure: str, watch: Watch) -> int:
    """Run `command`, append its output to `log`, and return its exit status.

    When this process is interrupted the command is, too, and has ended when KeyboardInterrupt comes out of here.
    """
    with log.open("ab") as output, log.open(encoding="utf-8", errors="replace") as reader, _interruptible():
        reader.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal reaches a whole group; one interrupt is enough
            close_fds=False,  # the lock
        )
        try:
            return _watched(process, reader, measure, watch)
        except BaseException:
            _stop(process)
            raise


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


def _watched(process: subprocess.Popen[bytes], reader: TextIO, measure: str, watch: Watch) -> int:
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        for entry in read_log(iter(reader.readline, "")):
            if measure in entry:
                watch(entry[measure])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does; what does not listen, or not before a second Ctrl-C, is killed with all it has started."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(PATIENCE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def words_per_second(log: Path) -> float | None:
    """The median of the training speeds in a log, None when it has none."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        speeds = [float(entry["wps"]) for entry in read_log(lines, "train_inner") if "wps" in entry]
    measured = [speed for speed in speeds if speed > 0]  # the first of a process may be 0
    return median(measured) if measured else None


def read_log(lines: Iterable[str], name: str = "") -> Iterator[dict[str, Any]]:
    """The JSON objects in the lines of fairseq's log, of the logger `name` only if one is given."""
    for line in lines:
        before, brace, rest = line.partition("{")
        if brace and name in before:
            with suppress(json.JSONDecodeError):
                entry = json.loads(brace + rest)
                if isinstance(entry, dict):
                    yield entry


def _reason(log: Path, start: int, status: int) -> str:
    """What the last attempt died of: the last line in the log from `start` on that names an error."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if _REASON.match(line)] or lines[-1:]
    how = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
    reason = named[-1].removeprefix("leapformer: error: ")[:300] if named else "no output"
    return f"{reason} ({how}; see {log})"


def _mend_last(folder: Path) -> None:
    """Put the newest whole checkpoint in the place of a last one whose copying was interrupted.

    fairseq writes one file and copies it to the other names, and goes on from the last one only.
    """
    last = folder / LAST
    if not last.is_file() or _is_whole(last):
        return
    others = sorted(folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
    whole = next((path for path in others if path != last and _is_whole(path)), None)
    if whole is None:
        last.unlink()
        return
    with replacing(last) as partial:
        shutil.copy(whole, partial)


def _is_whole(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint)
    except LeapformerError:
        return False
    return True
