"""A talk: one speaker's audio, its translation, the text on disk, and the listeners."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ...support.errors import LeapformerError, one_line
from ..audio import SAMPLE_RATE
from ..simul.session import Event, Session
from ..simul.shown import Shown
from ..simul.silence import SILENCE_DB, level_of
from .messages import Samples
from .texts import Kept, Text

LONGEST_CHUNK = SAMPLE_RATE // 2  # most samples that are translated before text is shown
UNSENT = 1_000  # most messages that wait for a listener
AUDIBLE_S = 1.0  # seconds of sound after which a client counts as speaking
MARK_S = 5.0  # seconds between marks in the file, within a segment, of how much is settled

logger = logging.getLogger(__name__)


def _limit(default: float, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Limits:
    """The limits of a server. `about` of each field is the help text of its option."""

    talks: int = _limit(4, "that are translated at a time")
    connections: int = _limit(64, "of speakers")
    listeners: int = _limit(256, "of all talks")
    per_address: int = _limit(16, "connections from one address; from this machine, where a proxy may be, as many as "
                              "there are")  # fmt: skip
    message_bytes: int = _limit(1 << 20, "of one message")
    backlog_s: float = _limit(10.0, "seconds of audio of a talk that wait for translation; then its sender must wait")
    idle_s: float = _limit(300.0, "seconds without audio until a connection is closed, and that a talk waits for its "
                           "speaker to come back")  # fmt: skip
    silent_s: float = _limit(60.0, "seconds of silence after which a talk ends if another needs its place")
    send_s: float = _limit(10.0, "seconds that a client may take to read a message")

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise LeapformerError(f"--max-{name.replace('_', '-')} is {value}; give a number above 0")


class Listener:
    """Messages on their way to one client. A client that does not read them in time is given up (`lost`)."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.lost = False

    def put(self, message: dict[str, Any] | None) -> None:
        """Queue a message; None: there will be no more."""
        self.lost = self.lost or self._queue.qsize() >= UNSENT
        if not self.lost or message is None:
            self._queue.put_nowait(message)

    async def next(self, patience_s: float | None = None) -> dict[str, Any] | None:
        """The next message, or an empty one if none comes in time."""
        try:
            return await asyncio.wait_for(self._queue.get(), patience_s)
        except TimeoutError:
            return {}


class Talk:
    """Takes audio with `hear` and `end`, and sends messages to its listeners while `run` runs.

    Everything but the translation itself, which is in a thread of `pool`, happens in the event loop. `name` lets one
    listen, `key` speak. A talk translates once it is given a place (`placed`), and keeps its audio until then.
    """

    def __init__(
        self,
        make: Callable[[], Session],
        unit: str,
        pool: Executor,
        backlog_s: float,
        rate: int = SAMPLE_RATE,
        name: str = "",
        secret: str = "",
        kept: Kept | None = None,
    ) -> None:
        """`kept`: the talk as it was before a restart.

        Raises LeapformerError for a rate that cannot be resampled.
        """
        self.name, self.secret = name, secret
        self.rate, self._make = rate, make
        self._session: Session | None = None
        self.keep: Callable[[], Text] | None = None  # creates the file of the text
        self.text: Text | None = None
        self.history = [] if kept is None else list(kept.events)  # final text
        self.received = 0 if kept is None else kept.settled  # samples of the client's audio
        self.speaker: object | None = None
        self.turn = 0  # number of the speaker's connection, because a delayed one may arrive after its successor
        self.done, self.placed = asyncio.Event(), asyncio.Event()
        self._samples = Samples(rate)
        self._segments = max((event.segment for event in self.history), default=0)  # of earlier sessions
        self._start = self.received  # samples of the client's audio before the session's first one
        self._settled = self.received  # samples of the client's audio whose text is final, and on disk if it is kept
        self._pool, self._backlog = pool, round(backlog_s * SAMPLE_RATE)
        self._shown = Shown(unit)
        self._shown.changed(self.history)
        self._listeners: list[Listener] = []
        self._waiting: deque[np.ndarray] = deque()
        self._n_waiting = 0
        self._audible, self._sounded = 0, time.monotonic()  # samples of sound, and the time of the last one
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._ended = False
        self._compute_s = 0.0
        if kept is not None and kept.ended:
            self._ended = True
            self.done.set()

    @property
    def key(self) -> str:
        """The key, with which a client may speak."""
        return f"{self.name}.{self.secret}"

    @property
    def session(self) -> Session:
        """The session, created at its first use: listeners of an old talk need none."""
        if self._session is None:
            self._session = self._make()
        return self._session

    @property
    def behind_s(self) -> float:
        """Seconds of audio that are not translated yet."""
        return self._n_waiting / SAMPLE_RATE

    @property
    def speaks(self) -> bool:
        """Whether a second of sound was heard: silence takes no place from other talks."""
        return self._audible >= AUDIBLE_S * SAMPLE_RATE

    @property
    def silent_s(self) -> float:
        """Seconds since the last sound."""
        return time.monotonic() - self._sounded

    @property
    def is_empty(self) -> bool:
        """Whether nothing was heard and nobody listens."""
        return not (self.speaks or self.history or self._listeners)

    @property
    def is_heard(self) -> bool:
        """Whether there are listeners, the speaker included."""
        return bool(self._listeners)

    def is_mine(self, key: str) -> bool:
        """Whether this is the key of the talk's speaker."""
        return bool(self.secret) and secrets.compare_digest(key.encode(), self.key.encode())

    # ------------------------------------------------------------------------------------------------------ listeners
    def join(self, speaker: bool = False, new: bool = False) -> Listener:
        """Listen from now on. The first message holds the text so far and, for the speaker, the key.

        new: whether the talk begins now.
        """
        listener = Listener()
        first = {"listen": self.name, "history": list(map(vars, self.history)), **self._state()}
        if speaker:
            first |= {"talk": self.key, "begun": new}
        listener.put(first)
        if self.done.is_set():
            listener.put({"end_of_processing": True})
            listener.put(None)
        else:
            self._listeners.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Stop sending to a listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        listener.put(None)

    # ---------------------------------------------------------------------------------------------------------- audio
    def continue_from(self, place: int) -> int:
        """How many bytes to skip in audio that begins with sample `place` of the talk.

        Raises LeapformerError if samples before it are missing.
        """
        if place > self.received and self._session is None and not self._n_waiting:
            # Audio that was lost with an earlier server is no longer available.
            self._start = self._settled = self.received = place
        if place > self.received:
            raise LeapformerError(f"the audio goes on at sample {place}, {self.received} came; send all, in order")
        return 2 * (self.received - place)

    def hear(self, pcm: bytes) -> None:
        """Add audio; wait for `room` before adding more. Raises LeapformerError as `Samples.of` does."""
        if self._ended:
            return
        samples = self._samples.of(pcm)
        self.received += len(pcm) // 2
        self._take_in(samples)

    async def room(self) -> None:
        """Wait until enough audio is translated to accept more."""
        late = self._n_waiting > self._backlog and (self.placed.is_set() or self.speaks)
        if late and not self.done.is_set():
            self._room.clear()
            self.tell_state()
            await self._room.wait()

    def tell_state(self) -> None:
        """Send how much audio has arrived, and how far the translation is behind."""
        self._tell({"new": "", "deleted": "", "events": [], **self._state()})

    def finish(self) -> None:
        """Mark the end of the audio."""
        if not self._ended:
            self._take_in(self._samples.rest())
        self.end()

    def _take_in(self, samples: np.ndarray) -> None:
        if not len(samples):
            return
        if level_of(samples) >= SILENCE_DB:
            self._audible, self._sounded = self._audible + len(samples), time.monotonic()
        self._waiting.append(samples)
        self._n_waiting += len(samples)
        self._wake.set()
        if not self.placed.is_set() and not self.speaks:
            self._forget_silence()

    def _forget_silence(self) -> None:
        """Drop the oldest waiting audio, which was silence."""
        while self._n_waiting > self._backlog:
            dropped = len(self._waiting.popleft())
            self._n_waiting -= dropped
            self._start += round(dropped * self.rate / SAMPLE_RATE)
            if self._session is None:
                self._settled = self._start

    def end(self) -> None:
        """End the audio; `done` is set once it is translated."""
        self._ended = True
        self._wake.set()
        self.placed.set()

    # ---------------------------------------------------------------------------------------------------- translation
    async def run(self) -> None:
        """Translate to the end. An error ends this talk only, and is sent to its listeners."""
        loop, cancelled = asyncio.get_running_loop(), True
        try:
            while not self.done.is_set():
                await self.placed.wait()
                await self._wake.wait()
                samples, last = self._take()
                if not len(samples) and not last:
                    self._wake.clear()
                    continue
                session = self.session  # created here: a client may choose k at the same time
                self._written(await loop.run_in_executor(self._pool, self._translate, session, samples, last))
                if last:
                    break
            cancelled = False
        except Exception as error:
            cancelled = False
            told = one_line(error) if isinstance(error, LeapformerError) else ""  # such as that of a user's policy
            reason = told or "the translation failed; see the log"
            logger.error("a talk failed: %s", reason, exc_info=not told)
            self._tell({"error": reason})
        finally:
            self._ended = True
            self.done.set()
            if self.text is not None:
                self.text.close()
            self._room.set()
            for listener in self._listeners:
                if not cancelled:  # otherwise the server stops, and its successor may continue the talk
                    listener.put({"end_of_processing": True})
                listener.put(None)
            self._listeners.clear()

    def _written(self, events: list[Event]) -> None:
        """Add final events to the history, and send all events to the listeners."""
        self.history += self._final(events)
        new, deleted = self._shown.changed(events).strings
        self._tell({"new": new, "deleted": deleted, "events": list(map(vars, events)), **self._state()})

    @staticmethod
    def _final(events: list[Event]) -> list[Event]:
        return [event for event in events if event.final and (event.text or event.ends)]

    def _take(self) -> tuple[np.ndarray, bool]:
        """At most LONGEST_CHUNK waiting samples, and whether they are the last."""
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

    def _translate(self, session: Session, samples: np.ndarray, last: bool) -> list[Event]:
        """Translate, in a thread of its own, and write final text to disk before it is sent."""
        start = time.perf_counter()
        events = list(session.push(samples))
        if last:
            events += session.finish()
        self._compute_s += time.perf_counter() - start
        before, seconds = self._segments, self._start / self.rate
        events = [
            replace(event, segment=event.segment + before, audio_s=round(event.audio_s + seconds, 6))
            for event in events
        ]
        self._write_down(session, self._final(events), last)
        return events

    def _write_down(self, session: Session, final: list[Event], last: bool) -> None:
        """Write final events and what they settle to disk; only then may the client forget its audio."""
        if final and self.keep is not None and not self.done.is_set():
            self.text, self.keep = self.keep(), None
            if self.done.is_set():  # the server stopped in the meantime
                self.text.close()
        settled = self._start + session.settled * self.rate // SAMPLE_RATE
        letters, ended = session.settled_letters, any(event.ends for event in final)
        settles = ended or settled - self._settled >= MARK_S * self.rate
        settled = settled if settles else self._settled
        if self.text is not None:
            self.text.add(final, settled)
            if settles and (letters or not ended):
                self.text.mark(settled, letters)
            if last:
                self.text.end()
        if self.text is None or not self.text.waits:
            self._settled = settled

    def _received(self) -> dict[str, int]:
        return {"received": self.received, "settled": self._settled}

    def _state(self) -> dict[str, Any]:
        heard = self._session.audio_s if self._session else 0.0
        rtf = self._compute_s / heard if heard else 0.0
        seconds = heard + self._start / self.rate
        return {"heard_s": seconds, "behind_s": self.behind_s, "rtf": rtf, **self._received()}

    def _tell(self, message: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.put(message)
