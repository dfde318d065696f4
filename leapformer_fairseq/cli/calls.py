"""Helpers for commands: print a line, run another of our commands, own the folder that --out names."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence

from ..support.errors import LeapformerError
from ..support.files import owned

Run = Callable[[argparse.Namespace], int]


def say(line: str) -> None:
    """Print a line and flush it, also to a pipe."""
    print(line, flush=True)


def call(words: Sequence[str]) -> None:
    """Run one of our commands in this process; for short ones. Raises LeapformerError if it fails."""
    from .main import build_parser

    args = build_parser(words[0]).parse_args(words)
    if args.run(args):
        raise LeapformerError(f"leapformer {' '.join(words)} failed; the messages above say why")


def owning(run: Run) -> Run:
    """A command that owns the folder of its --out while it runs, unless it writes nothing; see `files.owned`."""
    return _owning(run, waits=False)


def waiting(run: Run) -> Run:
    """As `owning`, for a command that finds its work done by another process: it waits for that."""
    return _owning(run, waits=True)


def _owning(run: Run, waits: bool) -> Run:
    @functools.wraps(run)
    def alone(args: argparse.Namespace) -> int:
        if not args.out or getattr(args, "dry_run", False):
            return run(args)
        with owned(args.out, waits=waits):
            return run(args)

    return alone
