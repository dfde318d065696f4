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
from ..support.progress import progress, unwatched

if TYPE_CHECKING:
    from ..studies.engine import State, Study
    from ..studies.launching import Launcher

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

    status = options.call(build_parser(words[0], words).parse_args(words))
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise LeapformerError(f"leapformer {' '.join(words)} failed; the messages above say why")


def study_options(cells: str) -> str:
    """The options that every study has, but for --jobs, as lines of a table; `cells` is the plural of what it runs."""
    return (
        f"--dry-run  print the {cells} to do, and write nothing\n"
        f"--only WORD... =  only {cells} of these names, or with these words in their names, and what they need"
    )


def run_study(
    study: Study,
    args: argparse.Namespace,
    title: str = "",
    unit: str = "",
    *,
    inline: Callable[[Sequence[str]], None] | None = None,
    launcher: Launcher | None = None,
    kept: str = "finished work is kept, the same command resumes",
) -> tuple[State, int]:
    """Run a study with a bar, or without a `title` with lines, and print a line for each cell that failed.

    args:     of the command; those of `study_options` and, if there is one, --jobs count.
    inline:   runs a short command in this process, by default `call`.
    launcher: of the trainings.
    kept:     what an interrupt leaves.

    Returns what is known at the end, and the exit status: 1 if a cell failed, INTERRUPTED after an interrupt. Raises
    LeapformerError like `engine.Engine.run`.
    """
    from ..studies.engine import NOT_STARTED, Engine, State

    say_lines = say if args.dry_run or not title else ignore
    try:
        with progress(title, unit) as watch:
            engine = Engine(
                study, say=say_lines, call=inline or call, jobs=getattr(args, "jobs", 1), launcher=launcher,
                only=args.only, dry=args.dry_run, watch=watch if title else unwatched,
            )  # fmt: skip
            state = engine.run()
    except KeyboardInterrupt:
        print(f"leapformer: interrupted; {kept}", file=sys.stderr)
        return State(), INTERRUPTED
    for name, reason in state.failed.items():
        if not reason.startswith(NOT_STARTED):
            print(f"leapformer: error: {name}: {reason}", file=sys.stderr)
    if lost := [name for name, reason in state.failed.items() if reason.startswith(NOT_STARTED)]:
        print(f"leapformer: error: {NOT_STARTED}, since they need what failed: {', '.join(lost)}", file=sys.stderr)
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
