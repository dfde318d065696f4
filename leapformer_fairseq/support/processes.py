"""Pools of processes; a process that dies ends the command instead of leaving it waiting."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any

from .. import register
from . import user_dir
from .errors import LeapformerError


@contextmanager
def pool_of(count: int, what: str, remedy: str, threads: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `count` spawned processes that log warnings only; pending work is cancelled after the block.

    Each has so many `threads`, by default as many as this one. If this process is interrupted, what they are doing is
    lost: they are killed. Ctrl-C does not reach them.

    Raises LeapformerError if a process dies: `what` is the option that asked for processes, `remedy` says what is kept.
    """
    # Spawned, not forked: forks inherit torch's threads, and the log level that importing fairseq sets.
    # Not multiprocessing.Pool: it waits forever for the result of a process that was killed.
    with ProcessPoolExecutor(count, get_context("spawn"), _begin, (logging.WARNING, threads)) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise LeapformerError(f"a process of {what} was killed, perhaps out of memory; {remedy}") from error
        except KeyboardInterrupt:
            for process in list((pool._processes or {}).values()):  # Python 3.14 calls this kill_workers
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(level: int | None = None, threads: int | None = None) -> None:
    """Begin a process of a pool, which ends with its parent: if that is killed, nobody wants the results.

    It knows the mechanisms of the folder that was given to its parent.
    """
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)  # read when PyTorch is imported
    if level is not None:
        logging.basicConfig(level=level)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if user_dir.given():
            register()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Pool:
    """The part of `multiprocessing.Pool` that fairseq uses. Raises LeapformerError if one of its processes dies."""

    def __init__(self, processes: int) -> None:
        self._count = processes
        self._executor = ProcessPoolExecutor(processes, initializer=_begin)

    def apply_async(self, work: Callable[..., Any], args: Sequence[Any] = (), kwds: Mapping[str, Any] = {}) -> _Result:
        """Submit work; `get` of the returned object waits for the result."""
        return _Result(self._executor.submit(work, *args, **kwds), self._count)

    def close(self) -> None:
        """Accept no more work."""
        self._executor.shutdown(wait=False)

    def join(self) -> None:
        """Wait for all work."""
        self._executor.shutdown()


class _Result:
    def __init__(self, future: Future[Any], count: int) -> None:
        self._future, self._count = future, count

    def get(self) -> Any:
        try:
            return self._future.result()
        except BrokenProcessPool as error:
            raise LeapformerError(
                f"one of {self._count} processes was killed, perhaps out of memory; give fewer --workers"
            ) from error
