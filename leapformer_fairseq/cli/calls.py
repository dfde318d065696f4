"""Helpers for commands: print a line, run another of our commands, lock the folder of --out."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..support.errors import LeapformerError
from ..support.files import owned

if TYPE_CHECKING:
    from ..studies.engine import State

Run = Callable[[argparse.Namespace], int]


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def call(words: Sequence[str]) -> None:
    """Run one of our short commands, in this process. Raises LeapformerError if it fails."""
    from .main import build_parser

    args = build_parser(words[0]).parse_args(words)
    if args.run(args):
        raise LeapformerError(f"leapformer {' '.join(words)} failed; the messages above say why")


def failures(state: State) -> int:
    """Print a line for each cell of a study that failed; return the exit status."""
    for name, reason in state.failed.items():
        print(f"leapformer: error: {name}: {reason}", file=sys.stderr)
    return int(bool(state.failed))


def owning(run: Run) -> Run:
    """Make a command lock the folder of its --out while it runs, unless it writes nothing; see `files.owned`."""
    return _owning(run, waits=False)


def waiting(run: Run) -> Run:
    """As `owning`, but the command waits for a process that holds the lock, since it can then reuse its results."""
    return _owning(run, waits=True)


def _owning(run: Run, waits: bool) -> Run:
    @functools.wraps(run)
    def alone(args: argparse.Namespace) -> int:
        if not args.out or getattr(args, "dry_run", False):
            return run(args)
        with owned(args.out, waits=waits):
            return run(args)

    return alone
