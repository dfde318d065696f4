"""The one exception for what a user can correct: the command line prints it as a single line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable


class LeapformerError(ValueError):
    """A user's value, file or combination of options is wrong.

    The message is one line that names the value, the reason and the remedy.
    """


def one_line(error: LeapformerError) -> str:
    """The message alone: an error from a data loader's worker process comes with its traceback in front."""
    return str(error).strip().splitlines()[-1].rpartition(f"{LeapformerError.__name__}: ")[2]


def suggestion(name: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown name, as part of a message: "did you mean leap or local? ", or nothing."""
    from difflib import get_close_matches  # only here, where time no longer matters

    near = get_close_matches(name, known, n=2, cutoff=0.65)
    return f"did you mean {' or '.join(near)}? " if near else ""
