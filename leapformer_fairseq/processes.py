"""Work in several processes: the one pool of the package, in which a process that dies ends the command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

from .errors import LeapformerError


@contextmanager
def pool_of(count: int, what: str, remedy: str) -> Iterator[ProcessPoolExecutor]:
    """`count` fresh processes that log warnings only; what waits for them is dropped when the block ends.

    Fresh ones, since forked ones inherit the threads of torch, and since fairseq, once imported, logs at its own level.
    `multiprocessing.Pool` is not used: it waits for ever for the result of a process that was killed. Raises
    LeapformerError when one of them dies: `what` is the option that asked for them, and `remedy` says what is kept.
    """
    quiet = partial(logging.basicConfig, level=logging.WARNING)
    with ProcessPoolExecutor(count, get_context("spawn"), quiet) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise LeapformerError(f"a process of {what} was killed, perhaps out of memory; {remedy}") from error
        finally:
            pool.shutdown(cancel_futures=True)
