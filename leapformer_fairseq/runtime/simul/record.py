"""A log of what a session displays during a talk, and when, for `leapformer score`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..audio import SAMPLE_RATE
from ..formats.streamlog import Chunk, StreamLogWriter, fresh_file, refuse_existing, talk_of
from ..formats.talks import write_talks
from .session import Event
from .shown import Change, Shown

logger = logging.getLogger(__name__)

LOG_FORMATS = ("simulstream", "omnisteval")


class Recorder:
    """Passes the events of a session on and records how they change the display, one block of audio after the other.

    The format "simulstream" is written as events arrive; "omnisteval", which has the final words with queued
    computation only, at the end.
    """

    def __init__(self, path: str | Path, recording: str, unit: str, form: str = LOG_FORMATS[0]) -> None:
        """Raises LeapformerError if the file exists; it is created when the session begins."""
        refuse_existing(path)
        self.path, self.recording, self.unit, self.form = path, recording, unit, form
        self._writer: StreamLogWriter | None = None
        self._chunks: list[Chunk] = []
        self._stream = 0
        self._n_samples = 0
        self._shown = Shown(unit)

    def begin(self, loading_s: float) -> None:
        """Note that loading the model took this many seconds. Raises LeapformerError if the file cannot be created."""
        if self.form == "omnisteval":
            fresh_file(self.path).close()
        else:
            self._writer = StreamLogWriter(self.path)
            self._writer.loaded(loading_s)
            self._stream = self._writer.begin(self.recording)

    def listen(self, events: Iterator[Event], n_samples: int = 0) -> Iterator[Event]:
        """Pass on the events of `n_samples` more samples; only the time to produce them counts as computation."""
        self._n_samples += n_samples
        heard, spent = list[Event](), 0.0
        try:
            while True:
                began = time.perf_counter()
                event = next(events, None)
                spent += time.perf_counter() - began
                if event is None:
                    break
                heard.append(event)
                yield event
        finally:  # what was shown counts, even if an interrupt ends it
            self._add(self._shown.changed(heard), spent)

    def close(self) -> None:
        """End the log; a remaining draft does not count as written.

        Raises LeapformerError if the format "omnisteval" cannot be written.
        """
        left = self._shown.changed([], ends=True)
        if left.deleted:
            self._add(left, 0.0)
        if self._writer is not None:
            self._write(self._writer.close)
        elif self.form == "omnisteval":
            write_talks(self.path, [talk_of(self.recording, self._chunks, self.unit)], self.unit)

    def _add(self, change: Change, seconds: float) -> None:
        chunk = Chunk(self._n_samples / SAMPLE_RATE, seconds, change.new, change.deleted)
        if self._writer is not None:
            self._write(partial(self._writer.add, self._stream, chunk))
        elif self.form == "omnisteval":
            self._chunks.append(chunk)

    def _write(self, write: Callable[[], None]) -> None:
        """Write the log; if that fails, the talk continues without one."""
        try:
            write()
        except OSError as error:
            logger.warning("--log %s ends here (%s); the translation goes on", self.path, error.strerror)
            self._writer = None
