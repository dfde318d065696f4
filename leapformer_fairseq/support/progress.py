"""Progress of long-running work: callbacks, which commands show as a bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Watch(Protocol):
    """A progress callback: `done` of `total` units of work are finished; `what` names the current one."""

    def __call__(self, done: int, total: int, what: str = "") -> None: ...


def unwatched(done: int, total: int, what: str = "") -> None:
    """Ignore progress."""


def part_of(watch: Watch, before: int, total: int) -> Watch:
    """The callback for a part of work of which `before` of `total` units were done when the part began."""
    return lambda done, _, what="": watch(before + done, total)


@contextmanager
def progress(title: str, unit: str) -> Iterator[Watch]:
    """Yield a callback that draws a bar on standard error, at most once a second; a total of 0 is an unknown one.

    Nothing is drawn before the first call, since work may still be rejected.

    Without tqdm, which exported models do not need, there is a line of text, and only on a terminal.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        yield from _line(title, unit)
        return
    bars: list[tqdm] = []

    def watch(done: int, total: int, what: str = "") -> None:
        if not bars:
            desc = f"{title}: {what}" if what else title
            bars.append(tqdm(desc=desc, unit=unit, total=total, file=sys.stderr, mininterval=1.0))
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


def _line(title: str, unit: str) -> Iterator[Watch]:
    """As `progress`: what is done, and how fast, in one line of a terminal that is written again."""
    start = shown = time.monotonic()
    text = ""

    def watch(done: int, total: int, what: str = "") -> None:
        nonlocal shown, text
        now = time.monotonic()
        name, of = f"{title}: {what}" if what else title, f" of {total:,}" if total else ""
        text = f"\r{name}: {done:,}{of} {unit}s, {done / max(now - start, 1e-9):.1f} a second\x1b[K"
        if now - shown >= 1:
            shown = now
            sys.stderr.write(text)
            sys.stderr.flush()

    try:
        yield watch if sys.stderr.isatty() else unwatched
    finally:
        if text:
            sys.stderr.write(f"{text}\n")
