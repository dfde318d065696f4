"""Tables of options: every form of a line, and the function that is called with the values."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import add_options, at_least, call, defaults, described, parse

TABLE = """
data DATA               the data
more [FILE...]          files
--path FILE!            needed
--at NAME=COLUMN...     several, 5 % of them
--seeds N...:int = 1 2  numbers
--unit, --level (word|char) = word  a choice,
                        over two lines
--pair LOW HIGH:float = 0.5 2
--note TEXT*            again and again
--[no-]live             on or off
--quick                 a flag
--empty TEXT =
--global (a|b) -> ends = a
a group:
--last N:int!           one
| --best N:int!         or the other
--size N:even = 4       of its own type
"""


def even(text: str) -> int:
    if int(text) % 2:
        raise argparse.ArgumentTypeError(f"{text} is odd")
    return int(text)


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    add_options(made, TABLE, {"even": even})
    return made


NEEDED = ["d", "--path", "p", "--last", "3"]


def test_defaults(parser: argparse.ArgumentParser) -> None:
    assert vars(parser.parse_args(NEEDED)) == {
        "data": "d", "more": [], "path": "p", "at": None, "seeds": [1, 2], "unit": "word", "pair": [0.5, 2.0],
        "note": [], "live": None, "quick": False, "empty": "", "ends": "a", "last": 3, "best": None, "size": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--at", "a=b", "c=d"], "at", ["a=b", "c=d"]),
        (["--seeds", "5"], "seeds", [5]),
        (["--level", "char"], "unit", "char"),
        (["--pair", "1", "3"], "pair", [1.0, 3.0]),
        (["--note", "x", "--note", "y"], "note", ["x", "y"]),
        (["--no-live"], "live", False),
        (["--quick"], "quick", True),
        (["--global", "b"], "ends", "b"),
        (["--size", "8"], "size", 8),
    ],
)
def test_values(parser: argparse.ArgumentParser, words: list[str], name: str, value: Any) -> None:
    assert getattr(parser.parse_args([*NEEDED, *words]), name) == value


@pytest.mark.parametrize(
    "words",
    [NEEDED[:3], ["d", "--last", "3"], [*NEEDED, "--best", "2"], [*NEEDED, "--unit", "x"], [*NEEDED, "--size", "3"]],
)
def test_refused(parser: argparse.ArgumentParser, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parser.parse_args(words)


def test_the_help_has_the_defaults(parser: argparse.ArgumentParser) -> None:
    text = " ".join(parser.format_help().split())
    assert "numbers (default: 1 2)" in text and "a choice, over two lines (default: word)" in text
    assert "several, 5 % of them" in text and "a group:" in text and "--note TEXT again and again" in text
    assert defaults("--a N:int = 3") == {"a": 3}


def test_a_function_gets_what_it_takes() -> None:
    def run(value: int, more: str = "x") -> int:
        return value

    def whole(args: argparse.Namespace) -> None:
        assert args.value == 3

    assert call(argparse.Namespace(run=run, value=3, more="y")) == 3
    assert call(argparse.Namespace(run=whole, value=3)) == 0


def test_a_module_is_described_by_its_docstring(tmp_path: Path) -> None:
    module: Any = SimpleNamespace(__doc__="`x y`: do\nthis: it.\n\nMore.", OPTIONS="--value N:int", run=print)
    assert described(module.__doc__) == "do this: it"
    assert parse(module, ["--value", "2"]).value == 2
    with pytest.raises(LeapformerError, match="invalid int value: 'z'"):
        parse(module, ["--value", "z"])


def test_at_least() -> None:
    at_least(1, some_jobs=1, none=None)
    with pytest.raises(LeapformerError, match="--some-jobs 0: give at least 1"):
        at_least(1, some_jobs=0)
