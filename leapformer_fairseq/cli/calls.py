"""Helpers for commands: print a line, run another of our commands, lock the folder of --out."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..support import options
from ..support.errors import LeapformerError
from ..support.files import owned
from ..support.progress import progress

if TYPE_CHECKING:
    from ..studies.engine import State, Study

Run = Callable[..., int | None]
INTERRUPTED = 130  # the exit status


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def ignore(line: str) -> None:
    """Print nothing."""


def call(words: Sequence[str]) -> None:
    """Run one of our short commands, in this process. Raises LeapformerError if it fails."""
    from .main import build_parser

    if options.call(build_parser(words[0]).parse_args(words)):
        raise LeapformerError(f"leapformer {' '.join(words)} failed; the messages above say why")


def run_study(
    study: Study, title: str, unit: str, jobs: int = 1, dry: bool = False, kept: str = "finished work"
) -> tuple[State, int]:
    """Run a study with a bar, and print a line for each cell that failed; `kept` says what an interrupt does not lose.

    Returns what is known at the end, and the exit status: 1 if a cell failed, INTERRUPTED after an interrupt. Raises
    LeapformerError like `engine.Engine.run`.
    """
    from ..studies.engine import Engine, State

    try:
        with progress(title, unit) as watch:
            state = Engine(study, say=say if dry else ignore, jobs=jobs, dry=dry, watch=watch).run()
    except KeyboardInterrupt:
        print(f"leapformer: interrupted; {kept} is kept, the same command resumes", file=sys.stderr)
        return State(), INTERRUPTED
    for name, reason in state.failed.items():
        print(f"leapformer: error: {name}: {reason}", file=sys.stderr)
    return state, int(bool(state.failed))


def owning(run: Run) -> Run:
    """Make a command lock the folder of its --out while it runs, unless it writes nothing; see `files.owned`."""
    return _owning(run, waits=False)


def waiting(run: Run) -> Run:
    """As `owning`, but the command waits for a process that holds the lock, since it can then reuse its results."""
    return _owning(run, waits=True)


def _owning(run: Run, waits: bool) -> Run:
    @functools.wraps(run)
    def alone(*args: argparse.Namespace, **values: Any) -> int | None:
        given = vars(args[0]) if args else values
        if not given["out"] or given.get("dry_run"):
            return run(*args, **values)
        with owned(given["out"], waits=waits):
            return run(*args, **values)

    return alone
