"""A test that waits for a process that never ends fails, and the process says where it stood.

Processes that a test has started inherit pytest's faulthandler: on SIGABRT they write down the stacks of their threads.
What does not wait for a process is ended by pytest's faulthandler_timeout (pyproject.toml), later.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path


class Patience(threading.Thread):
    """Aborts the processes that were started since `begin()` once `seconds` have passed without `end()`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self._seconds = seconds
        self._began: tuple[float, float] | None = None
        self.start()

    def begin(self) -> None:
        self._began = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)

    def end(self) -> None:
        self._began = None

    def run(self) -> None:
        while True:
            time.sleep(min(self._seconds, 10) / 2)
            began = self._began
            if began is not None and time.monotonic() - began[0] > self._seconds:
                for process in started_since(began[1]):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGABRT)
                        time.sleep(0.1)  # or else they write at the same time


def started_since(boottime: float) -> list[int]:
    """Processes that this one has started, or those that it has started, after some seconds since the boot."""
    parents, ages = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(file.parent.name)] = int(fields[1])
            ages[int(file.parent.name)] = int(fields[19]) / os.sysconf("SC_CLK_TCK")

    def ours(process: int) -> bool:
        parent = parents.get(process, 0)
        return parent == os.getpid() or (parent > 1 and ours(parent))

    return [process for process in parents if ages[process] > boottime - 0.02 and ours(process)]
