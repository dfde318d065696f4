"""Command-line options of recipes, with errors on one line."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...support.errors import LeapformerError


class Parser(argparse.ArgumentParser):
    """A parser that raises LeapformerError and accepts any value for an option, even one that begins with --."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **settings)
        self._with_value: set[str] = set()

    def option(self, name: str, metavar: str, help: str, check: Callable[[str], Any] = str, **more: Any) -> None:
        """Add an option with a value, which `check` converts."""
        self._with_value.add(name)
        self.add_argument(name, metavar=metavar, help=help, type=check, **more)

    def more(self, name: str, of: str, example: str) -> None:
        """Add an option whose words extend the options of the command `of`; repeated uses are concatenated."""
        help_text = f'more options for {of}, e.g. "{example}"'
        self.option(name, "TEXT", help_text, words, action="append", default=[])

    def flag(self, name: str, help: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=help)

    def apart(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Separate steps, which may stand anywhere, from options and their values."""
        steps, options = list[str](), list[str]()
        rest = iter(words)
        for word in rest:
            (options if word.startswith("-") else steps).append(word)
            unknown = word.startswith("--") and word.partition("=")[0] not in self._option_string_actions
            if word in self._with_value or unknown:  # the value is not a step
                options += [value for value in [next(rest, None)] if value is not None]
        return steps, options

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse options. Raises LeapformerError for unknown ones and for wrong values."""
        joined: list[str] = []  # argparse takes a value that begins with -- only as --option=value
        rest = iter(words)
        for word in rest:
            value = next(rest, None) if word in self._with_value else None
            joined.append(word if value is None else f"{word}={value}")
        return self.parse_args(joined)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (--\S+): expected one argument", r"\1 needs a value; see --help", message)
        message = re.sub(r"^unrecognized arguments: (\S+?)(=.*| .*)?$", r"unknown option \1; see --help", message)
        raise LeapformerError(re.sub(r"^argument (--\S+): ", r"\1 ", message))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows defaults, except empty ones."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default not in (None, False, "", [], argparse.SUPPRESS)
        return f"{action.help} (default: %(default)s)" if shown else action.help


def whole(least: int = 1) -> Callable[[str], int]:
    """A check for integers of at least `least`."""

    def check(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: give a whole number from {least}")
        return int(text)

    return check


def positive(text: str) -> str:
    """Check for a number above 0; it stays as written."""
    if not re.fullmatch(r"\d*\.?\d+", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """A check for one of these values."""

    def check(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text or '(none)'}: choose from {', '.join(choices)}")
        return text

    return check


def list_of(check: Callable[[str], Any] = str) -> Callable[[str], list[Any]]:
    """A check for a list of values, in quotes and separated by spaces."""
    return lambda text: [check(word) for word in text.split()]


def lagging(text: str) -> str:
    """Check for k of wait-k: a number, or a range with or without offline; it stays as written."""
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?(,offline)?", text):
        raise argparse.ArgumentTypeError(f"{text}: give a number from 1, or a range as in 1-9, or 1-9,offline")
    return text


def stage(text: str) -> tuple[str, str]:
    """Parse TOKENS:EPOCHS."""
    tokens, _, epochs = text.partition(":")
    if not (tokens.isdigit() and epochs.isdigit() and int(tokens) and int(epochs)):
        raise argparse.ArgumentTypeError(f'{text}: give TOKENS:EPOCHS for each, as in "32:7 64:1"')
    return tokens, epochs


def words(text: str) -> list[str]:
    """Split the options of a command as in a shell."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}; close the quotes") from error
