"""How long work says how far it is: a callback of the library, which commands show as a bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Watch(Protocol):
    """Called now and then: so much is done, of so much, and this is what is being done."""

    def __call__(self, done: int, total: int, what: str = "") -> None: ...


def unwatched(done: int, total: int, what: str = "") -> None:
    """Nobody looks."""


@contextmanager
def progress(title: str, unit: str) -> Iterator[Watch]:
    """A bar on standard error, drawn once a second at most, and not before the first call: work may be refused.

    Without tqdm, which exported models do not need, there is no bar.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        yield unwatched
        return
    bars: list[tqdm] = []

    def watch(done: int, total: int, what: str = "") -> None:
        if not bars:
            bars.append(tqdm(desc=title, unit=unit, total=total, file=sys.stderr, mininterval=1.0))
        (bar,) = bars
        bar.total = total
        if what:
            bar.set_description(f"{title}: {what}", refresh=False)
        bar.update(done - bar.n)

    try:
        yield watch
    finally:
        for bar in bars:
            bar.close()
