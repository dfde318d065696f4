"""A talk: one speaker's audio, the translation, and who listens to it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..agents.session import Event, Session
from ..agents.shown import Shown
from ..audio import SAMPLE_RATE
from ..errors import LeapformerError, one_line

LONGEST_CHUNK = SAMPLE_RATE // 2  # samples that are translated before the text so far is shown
UNSENT = 1_000  # messages that wait for a listener, at most

logger = logging.getLogger(__name__)


def _limit(default: float, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Limits:
    """What a server grants; the commands' help is what each field says of itself."""

    talks: int = _limit(4, "that are translated at a time")
    connections: int = _limit(64, "of speakers and listeners")
    message_bytes: int = _limit(1 << 20, "of one message")
    backlog_s: float = _limit(10.0, "seconds of audio of a talk that wait for translation; then its sender must wait")
    idle_s: float = _limit(300.0, "seconds without audio until a connection is closed, and that a talk waits for its "
                           "speaker to come back")  # fmt: skip
    send_s: float = _limit(10.0, "seconds that a client may take to read a message")

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise LeapformerError(f"--max-{name.replace('_', '-')} is {value}; give a number above 0")


class Listener:
    """Messages on their way to one client. One that does not read them in time is left behind (`lost`)."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.lost = False

    def put(self, message: dict[str, Any] | None) -> None:
        """None: there will be no more."""
        self.lost = self.lost or self._queue.qsize() >= UNSENT
        if not self.lost or message is None:
            self._queue.put_nowait(message)

    async def next(self) -> dict[str, Any] | None:
        return await self._queue.get()


class Talk:
    """Audio goes in with `hear` and `end`; messages for its listeners come out while `run` runs.

    Everything but the translation itself, which is in a thread of `pool`, happens in the event loop.
    """

    def __init__(self, session: Session, unit: str, pool: Executor, backlog_s: float) -> None:
        self.name = secrets.token_hex(8)  # who knows it may listen
        self.session = session
        self.history: list[Event] = []  # final text
        self.done = asyncio.Event()
        self._pool, self._backlog = pool, round(backlog_s * SAMPLE_RATE)
        self._shown = Shown(unit)
        self._listeners: list[Listener] = []
        self._waiting: deque[np.ndarray] = deque()
        self._n_waiting = 0
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._ended = False
        self._compute_s = 0.0

    @property
    def behind_s(self) -> float:
        """Seconds of audio that wait for translation."""
        return self._n_waiting / SAMPLE_RATE

    def join(self) -> Listener:
        """Listen from now on; the first message tells what was written before."""
        listener = Listener()
        listener.put({"talk": self.name, "history": [asdict(event) for event in self.history], **self._state()})
        if self.done.is_set():
            listener.put(None)
        else:
            self._listeners.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """The listener gets nothing more."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        listener.put(None)

    async def hear(self, samples: np.ndarray) -> None:
        """Take in samples at 16 kHz; returns when there is room for more."""
        if self._ended or not len(samples):
            return
        self._waiting.append(samples)
        self._n_waiting += len(samples)
        self._wake.set()
        if self._n_waiting > self._backlog:
            self._room.clear()
            self._tell({"new": "", "deleted": "", "events": [], **self._state()})  # how far it is behind
            await self._room.wait()

    def end(self) -> None:
        """There is no more audio; `done` will be set."""
        self._ended = True
        self._wake.set()

    async def run(self) -> None:
        """Translate to the end. An error ends this talk only; its listeners are told."""
        loop = asyncio.get_running_loop()
        try:
            while not self.done.is_set():
                await self._wake.wait()
                samples, last = self._take()
                if not len(samples) and not last:
                    self._wake.clear()
                    continue
                events = await loop.run_in_executor(self._pool, self._translate, samples, last)
                self.history += [event for event in events if event.final and (event.text or event.ends)]
                new, deleted = self._shown.changed(events).strings
                self._tell({"new": new, "deleted": deleted, "events": list(map(asdict, events)), **self._state()})
                if last:
                    break
        except Exception as error:
            logger.exception("a talk failed")
            reason = one_line(error) if isinstance(error, LeapformerError) else "the translation failed; see the log"
            self._tell({"error": reason})
        finally:
            self._ended = True
            self.done.set()
            self._room.set()
            for listener in self._listeners:
                listener.put({"end_of_processing": True})
                listener.put(None)
            self._listeners.clear()

    def _take(self) -> tuple[np.ndarray, bool]:
        """Samples that wait, not too many at a time, and whether they are the last."""
        taken, count = [np.zeros(0, np.float32)], 0
        while self._waiting and count < LONGEST_CHUNK:
            piece = self._waiting.popleft()
            cut = LONGEST_CHUNK - count
            if len(piece) > cut:
                self._waiting.appendleft(piece[cut:])
            taken.append(piece[:cut])
            count += len(taken[-1])
        self._n_waiting -= count
        if self._n_waiting <= self._backlog / 2:
            self._room.set()
        return np.concatenate(taken), self._ended and not self._waiting

    def _translate(self, samples: np.ndarray, last: bool) -> list[Event]:
        start = time.perf_counter()
        events = list(self.session.push(samples))
        if last:
            events += self.session.finish()
        self._compute_s += time.perf_counter() - start
        return events

    def _state(self) -> dict[str, float]:
        heard = self.session.audio_s
        return {"heard_s": heard, "behind_s": self.behind_s, "rtf": self._compute_s / heard if heard else 0.0}

    def _tell(self, message: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.put(message)
