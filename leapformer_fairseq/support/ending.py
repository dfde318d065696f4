"""How a command ends: its exit status, and one line for whatever went wrong.

A user's error is explained in that line. Of any other exception the line says where it happened and what it says, and
names a log file with the traceback. `--traceback`, or the variable LEAPFORMER_TRACEBACK, prints every traceback: in the
logs of processes that our commands start, it is what tells more.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from . import user_dir
from .errors import TRACEBACK, LeapformerError, first_line, frames, one_line, suggestion

FLAG = "--traceback"
USERS_ERROR, DEFECT, INTERRUPTED, NOBODY_READS = 2, 1, 128 + signal.SIGINT, 128 + signal.SIGPIPE
_OURS = ("leapformer_fairseq", "fairseq", "fairseq_cli", "simuleval")
Explain = Callable[[BaseException], LeapformerError | None]


class Parser(argparse.ArgumentParser):
    """Refuses wrong options in one line; its sub-commands do so, too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As always, but a sub-command names itself when it refuses words, and not the program."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown and " " in self.prog:
            near = suggestion(unknown[0].partition("=")[0], self._option_string_actions).strip()
            self.error(f"unrecognized arguments: {shlex.join(unknown)}{f' ({near})' if near else ''}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise LeapformerError(f"{message}; `{self.prog} --help` tells more")


def without_flag(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words of a command without --traceback, and whether tracebacks are printed."""
    rest = [word for word in words if word != FLAG]
    return rest, len(rest) < len(words) or bool(os.environ.get(TRACEBACK))


def status_of(work: Callable[[], int], explain: Explain, words: Sequence[str], shown: bool, program: str) -> int:
    """Do the work of a command and return its exit status, or that of the exception which ended it.

    0, or what `work` returns; 1 for a defect, 2 for a user's error, 130 when interrupted, 141 when nobody reads the
    output any more. `words` are those of the command, for the log; `shown`: print the traceback.
    """
    try:
        _open_streams()
        try:
            status = work()
        except SystemExit:  # of a help text
            _flush()
            raise
        _flush()
        return status
    except KeyboardInterrupt:
        say(f"{program}: interrupted")
        return INTERRUPTED
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():  # such as `head`, which has seen enough
            _discard_output()
            return NOBODY_READS
        if not isinstance(error, Exception):
            raise
        return _failed(error, explain, words, shown, program)


def _failed(error: Exception, explain: Explain, words: Sequence[str], shown: bool, program: str) -> int:
    if shown:
        say("".join(traceback.format_exception(error)).rstrip())
    lost = _lost_output(error)
    explained = LeapformerError(lost) if lost else explain(error)
    if explained is not None:
        say(f"{program}: error: {one_line(explained)}")
        return USERS_ERROR
    where = _where(error)
    log = "" if shown else f"; {_logged(error, words, program)}"
    say(f"{program}: error: {first_line(error)}{where}{log}")
    return DEFECT


def _where(error: BaseException) -> str:
    """The innermost line of our packages, of fairseq's, or of the user's folder."""
    packages = {*_OURS, Path(user_dir.given()).name}
    for frame in frames(error):
        package, _, _ = str(frame.f_globals.get("__name__", "")).partition(".")
        if package in packages:
            parts = Path(frame.f_code.co_filename).parts
            at = max((i for i, part in enumerate(parts) if part == package), default=len(parts) - 1)
            return f" ({'/'.join(parts[at:])}, line {frame.f_lineno})"
    return ""


def _logged(error: BaseException, words: Sequence[str], program: str) -> str:
    """Write the traceback to a file of its own, and say which."""
    text = f"{program} {__version__}, Python {sys.version.split()[0]}\n{shlex.join([program, *words])}\n\n"
    text += "".join(traceback.format_exception(error))
    try:
        number, name = tempfile.mkstemp(prefix=f"{program}-", suffix=".log")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:  # the disk may be what is full
        return f"repeat it with {FLAG} for the traceback"
    return f"the traceback is in {name}, and {FLAG} prints it"


# -------------------------------------------------------------------------------------------------------------- streams
def _open_streams() -> None:
    """Make sure that no file which the command opens is taken for a standard stream that was closed before.

    Raises LeapformerError without a standard output, and lets an ASCII one take UTF-8, which begins as ASCII does.
    """
    closed = sys.stdout is None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
    if closed:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
        raise LeapformerError("standard output is closed; send it to a file, or to /dev/null")
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-")
    if encoding in ("ascii", "us-ascii", "ansi-x3.4-1968", "646") and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")


def _flush() -> None:
    """Write what is buffered now: Python ends with a message of its own and status 120 if it cannot."""
    if not sys.stdout.closed:
        sys.stdout.flush()


def say(line: str) -> None:
    """Print a line to standard error."""
    with suppress(OSError):  # nobody may be there to read it
        print(line, file=sys.stderr, flush=True)


def _lost_output(error: Exception) -> str | None:
    """The reason why standard output cannot be written, if that is what ended the command."""
    if not isinstance(error, OSError) or error.filename is not None or error.errno is None:
        return None
    try:
        sys.stdout.flush()
    except OSError as again:
        _discard_output()
        return f"standard output cannot be written ({again.strerror}); send it to another file"
    return None


def _nobody_reads() -> bool:
    """Whether the reader of a pipe at standard output has gone."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def _discard_output() -> None:
    """What is still buffered has no place any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
