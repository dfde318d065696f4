"""The texts of talks on disk: final words are saved at once and survive the server.

A file for each talk, NAME.jsonl, which only its owner may read: a line about the talk, one for each final event, and a
last one when the talk has ended. A talk that lost its server goes on from the end of its last finished segment or, in a
long one of which old parts are forgotten, from the last mark.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ..simul.session import Event
from .messages import RATES

NAME = re.compile(r"[0-9a-f]{32}")
ENDED, SETTLED, LETTERS = "ended", "settled", "letters"

logger = logging.getLogger(__name__)


def state_folder() -> Path:
    """The default folder of texts: below the user's folder for the state of programs."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if Path(state).is_absolute() else Path.home() / ".local/state") / "leapformer/talks"


@dataclass(frozen=True)
class Kept:
    """A talk as read from disk: its final events up to the last finished segment or mark, and the place of that.

    settled: samples of the client's audio that the events are the text of; rate: of the audio.
    """

    events: list[Event]
    settled: int
    rate: int
    ended: bool


class Texts:
    """The folder of the texts."""

    def __init__(self, folder: Path) -> None:
        """Raises LeapformerError if the folder cannot be created or written to."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = os.open(folder / f".{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.close(probe)
            (folder / f".{os.getpid()}").unlink()
        except OSError as error:
            raise LeapformerError(
                f"--talks {folder}: texts cannot be kept there ({error.strerror}); choose another folder, or --no-talks"
            ) from error

    def begin(self, name: str, secret: str, rate: int, about: dict[str, Any]) -> Text:
        """Create the file of a new talk."""
        first = {"talk": name, "secret": digest(secret), "sample_rate": rate, "began": _now(), **about}
        return Text(self._path(name), first)

    def again(self, name: str) -> Text:
        """Open the file of a talk after a restart. Raises LeapformerError while another server writes it."""
        text = Text(self._path(name), {"again": _now()})
        if text.taken:
            raise LeapformerError("another server translates this talk; try again later")
        return text

    def find(self, name: str, secret: str | None = None) -> Kept | None:
        """A talk on disk; with a `secret`, only if it is that of its speaker. None if there is none."""
        if not NAME.fullmatch(name):
            return None
        try:
            lines = self._path(name).read_bytes().split(b"\n")
        except OSError:
            return None
        entries = list(filter(None, map(_entry, lines)))
        if not entries or "sample_rate" not in entries[0]:
            return None
        if secret is not None and not hmac.compare_digest(str(entries[0].get("secret")), digest(secret)):
            return None
        try:
            return _kept(entries)
        except (KeyError, TypeError, ValueError):  # damaged
            logger.warning("%s is damaged; move it elsewhere, or mend it by hand", self._path(name))
            return None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


class Text:
    """The file of one talk, which one server writes at a time.

    While it cannot be written, the talk goes on, and what is missing is written when it can be again.
    """

    def __init__(self, path: Path, first: dict[str, Any]) -> None:
        self._path = path
        self._number: int | None = None
        self._waiting = b""  # bytes that are not written yet
        self._lock = threading.Lock()  # one thread writes, and another may close
        self._gone = self._warned = False
        self.taken = False  # whether another server writes it
        self._write(first)

    @property
    def waits(self) -> bool:
        """Whether bytes are not written yet."""
        return bool(self._waiting)

    def add(self, events: Iterable[Event], settled: int) -> None:
        """Write final events; with the last one of a segment, `settled` samples of the client's audio are done."""
        self._write(*({**asdict(event), **({SETTLED: settled} if event.ends else {})} for event in events))

    def mark(self, settled: int, letters: int) -> None:
        """Note that the first `settled` samples of the client's audio and `letters` of the segment are done.

        letters: without spaces; they are not written again.
        """
        self._write({SETTLED: settled, LETTERS: letters})

    def end(self) -> None:
        """Mark the talk as ended."""
        self._write({ENDED: _now()})
        self.close()

    def close(self) -> None:
        """Close the file of a talk that may continue later."""
        with self._lock:
            if self._waiting:
                self._flush()
            self._leave()

    def _leave(self) -> None:
        if self._number is not None:
            os.close(self._number)
            self._number = None
        self._gone = True

    def _write(self, *entries: dict[str, Any]) -> None:
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode()
        with self._lock:
            if lines and not self._gone:
                self._waiting += lines
                self._flush(any(SETTLED in entry or ENDED in entry for entry in entries))

    def _flush(self, safely: bool = True) -> None:
        """Write what is waiting. `safely`: to the disk itself, so that it survives a crash of the machine."""
        try:
            self._number = self._opened() if self._number is None else self._number
            while self._waiting:
                count = os.write(self._number, self._waiting)
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._waiting = self._waiting[count:]
            self._warned = False
            if safely:
                os.fsync(self._number)
                self._check_there(self._number)
        except OSError as error:
            self.taken = isinstance(error, BlockingIOError)
            if not self._warned:
                logger.warning("%s cannot be written (%s); the talk goes on, its text is not kept for now", self._path,
                               error.strerror)  # fmt: skip
            self._warned = True

    def _opened(self) -> int:
        """Open and lock the file for this server; an incomplete last line is ended."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(number).st_size
            if size and os.pread(number, 1, size - 1) != b"\n":  # a server was killed, or the disk full, midway
                self._waiting = b"\n" + self._waiting
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # file systems without locks
                os.close(number)
                raise
        return number

    def _check_there(self, number: int) -> None:
        """Stop writing a file that somebody deleted."""
        if not os.fstat(number).st_nlink:
            logger.warning("%s was deleted; the talk goes on, its text is not kept", self._path)
            self._leave()


def _entry(line: bytes) -> dict[str, Any]:
    """The entry in a line; empty if the line is cut off because a server was killed."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _kept(entries: list[dict[str, Any]]) -> Kept:
    rate = int(entries[0]["sample_rate"])
    if not RATES[0] <= rate <= RATES[1]:
        raise ValueError(rate)
    events, settled = list[Event](), 0
    whole = letters = 0  # events kept whole, and letters kept of those after them
    for entry in entries[1:]:
        if "again" in entry:  # after a restart, unfinished text was translated again
            events[whole:] = _cut(events[whole:], letters)
            whole, letters = len(events), 0
        elif "text" in entry:
            events.append(Event(**{name: entry[name] for name in Event.__dataclass_fields__}))
            if SETTLED in entry:
                settled, whole, letters = int(entry[SETTLED]), len(events), 0
        elif SETTLED in entry:
            settled, letters = int(entry[SETTLED]), int(entry[LETTERS])
    ended = ENDED in entries[-1]
    if not ended:
        events[whole:] = _cut(events[whole:], letters)
    return Kept(events, settled, rate, ended)


def _cut(events: list[Event], letters: int) -> list[Event]:
    """The first `letters` letters of events, as an ended segment."""
    kept = list[Event]()
    for event in events:
        if not letters:
            break
        place = 0
        while place < len(event.text) and letters:
            letters -= not event.text[place].isspace()
            place += 1
        kept.append(replace(event, text=event.text[:place]))
    return [*kept[:-1], *(replace(event, ends=True) for event in kept[-1:])]


def digest(secret: str) -> str:
    """The hash by which a secret is recognised."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
