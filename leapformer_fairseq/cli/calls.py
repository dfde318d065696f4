"""Helpers for commands that consist of other commands: print a line, and run one of our commands."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import LeapformerError


def say(line: str) -> None:
    """Print a line and flush it, also to a pipe."""
    print(line, flush=True)


def call(words: Sequence[str]) -> None:
    """Run one of our commands in this process; for short ones. Raises LeapformerError if it fails."""
    from .main import build_parser

    args = build_parser(words[0]).parse_args(words)
    if args.run(args):
        raise LeapformerError(f"leapformer {' '.join(words)} failed; the messages above say why")
