"""What a command that consists of others needs of the command line: to print a line, and to run a command of ours."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import LeapformerError


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def call(words: Sequence[str]) -> None:
    """A short command of ours, in this process. Raises LeapformerError when it fails."""
    from .main import build_parser

    args = build_parser(words[0]).parse_args(words)
    if args.run(args):
        raise LeapformerError(f"leapformer {' '.join(words)} failed; the messages above say why")
