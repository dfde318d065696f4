"""Commands as data: a table of text, a line for each option, and the function that is called with their values.

    data DATA                  folder that fairseq-preprocess wrote
    --path FILE!               the model
    --segment N:int            tokens read at once (default: as in training)
    --seeds N...:int = 1 2 3   of the trainings
    --unit, --level (word|char) = word
                               what has a delay
    --last N:int!              the last N epochs
    | --best N:int!            or the best N

A line has the option and, after two spaces, its help, which may go on in indented lines. Without dashes, it is a
positional argument. Then comes the value as the help shows it, or (the|choices), but none for a flag; `--[no-]live` can
be switched on and off. `FILE...` takes one or more values, `[FILE...]` any number, `[FILE]` one or none, which means
the same as X in `[FILE=X]`, `LOW HIGH` two, and `...` all that follow; `FILE*` may be repeated. Behind it stand
`:type`, a name in `TYPES` or in the module with the table; `!` if it is required; `-> name` if it is stored under
another name; `= default`, which is added to the help. `|` before an option excludes it together with the one above it,
and `title:` alone on a line begins a group.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol

from .ending import Parser
from .errors import LeapformerError

# lines that several commands share
DEVICE = "--device DEVICE = cpu  cpu, cuda or cuda:N"
TOKENIZE = "--tokenize TOKENIZE = 13a  sacreBLEU tokenizer: 13a, zh, ja-mecab, ..."


def float_or_off(text: str) -> float | None:
    """A number, or None for `off`."""
    return None if text == "off" else float(text)


TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "path": Path,
    "float_or_off": float_or_off,
}


class Step(NamedTuple):
    """A sub-command: its help, the table of its options, and the function that is called with their values."""

    help: str
    options: str
    run: Callable[..., Any]


class TakesOptions(Protocol):
    """An argparse parser or group, or an object that forwards to one."""

    def add_argument(self, option: str, /, **settings: Any) -> Any: ...


def add_command(parser: argparse.ArgumentParser, module: ModuleType, words: Sequence[str] = ()) -> None:
    """Add the options of a module of a command, or of its steps, to the parser.

    The module has `OPTIONS` and `run`, or `STEPS`, {name: step}, whose metavar is `STEP`. Its docstring, which begins
    with the name of the command and a colon, describes it. `more_options`, if it has this function, returns a table of
    options that depend on the `words` of the command. Raises LeapformerError for one that the command has already.
    """
    parser.description = described(module.__doc__ or "")
    parser.usage, parser.epilog = getattr(module, "USAGE", None), getattr(module, "EPILOG", None)
    if not hasattr(module, "STEPS"):
        add_options(parser, module.OPTIONS, vars(module))
        if hasattr(module, "more_options"):
            add_more_options(parser, module.more_options(words))
        parser.set_defaults(run=module.run)
        return
    actions = parser.add_subparsers(metavar=module.STEP, dest="step", required=True)
    for name, step in module.STEPS.items():
        action = actions.add_parser(name, help=step.help, description=step.help)
        add_options(action, step.options, vars(module))
        action.set_defaults(run=step.run)


def described(docstring: str) -> str:
    """The first paragraph of a command's docstring, without its name and the last full stop."""
    paragraph, _, _ = inspect.cleandoc(docstring).partition("\n\n")
    return " ".join(paragraph.partition("`: ")[2].split()).removesuffix(".")


def parse(module: ModuleType, words: list[str], program: str | None = None) -> argparse.Namespace:
    """The options of a module's command that `words` give; `program` is its name in the help."""
    parser = Parser(prog=program)
    add_command(parser, module, words)
    return parser.parse_args(words)


def call(args: argparse.Namespace) -> int:
    """Call the function of a parsed command, `args.run`, with each option that it takes, or all of them as `args`.

    Returns its exit status, 0 if it returns none.
    """
    names = inspect.signature(args.run).parameters
    if "args" in names:
        return args.run(args) or 0
    return args.run(**{name: value for name, value in vars(args).items() if name in names}) or 0


def add_options(target: TakesOptions, table: str, names: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Add the options of a table to a parser; `names` has the types that are not in `TYPES`."""
    parser: Any = target
    group: Any = None
    rows = list(_rows(table))
    for rank, (spec, text) in enumerate(rows):
        if spec.endswith(":") and not text:
            target = parser.add_argument_group(spec.removesuffix(":"))
            continue
        option, settings = _settings(spec.removeprefix("| "), text, {**names, **TYPES})
        if not spec.startswith("| "):
            excludes, needed = any(row.startswith("| ") for row, _ in rows[rank + 1 : rank + 2]), "required" in settings
            group = parser.add_mutually_exclusive_group(required=needed) if excludes else None
        if group is not None:
            settings.pop("required", None)
        (group or target).add_argument(*option, **settings)


def add_more_options(target: TakesOptions, table: str) -> None:
    """Add the options of a table that a user's code declares. Raises LeapformerError for one that is taken."""
    try:
        add_options(target, table)
    except argparse.ArgumentError as error:
        raise LeapformerError(f"{error.message}: the command has such an option already; rename yours") from error


def choice(values: Iterable[object]) -> str:
    """These values as a table has them."""
    return f"({'|'.join(map(str, values))})"


def without(table: str, names: Iterable[str]) -> str:
    """The table without these options, each by its first name."""
    rows = ((re.split(r", | ", spec)[0], f"{spec}  {text}") for spec, text in _rows(table))
    return "\n".join(row for name, row in rows if name not in set(names))


def defaults(table: str) -> dict[str, Any]:
    """The defaults of the options in a table, by the names under which they are stored."""
    parser = argparse.ArgumentParser()
    add_options(parser, table)
    return vars(parser.parse_args([]))


def flag(name: str) -> str:
    """The option whose value is stored as `name`."""
    return f"--{name.replace('_', '-')}"


def at_least(least: int, **values: float | None) -> None:
    """Raise LeapformerError for an option, by the name under which it is stored, below `least`."""
    for name, value in values.items():
        if value is not None and not value >= least:  # NaN is refused, too
            raise LeapformerError(f"{flag(name)} {value}: give at least {least}")


def _rows(table: str) -> Iterator[tuple[str, str]]:
    """(option, help) of each line with those that go on with it."""
    lines: list[str] = []
    for line in inspect.cleandoc(table).splitlines():
        if line.startswith(" "):
            lines[-1] += (" " if "  " in lines[-1] else "  ") + line.strip()
        elif line:
            lines.append(line)
    for line in lines:
        spec, _, text = line.partition("  ")
        yield spec, text.strip()


def _settings(spec: str, text: str, types: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The names of an option, and the other arguments of `add_argument`."""
    settings: dict[str, Any] = {}
    spec, equals, default = spec.partition(" =")
    spec, _, stored = spec.partition(" -> ")
    if stored:
        settings["dest"] = stored
    if spec.endswith("!"):
        spec, settings["required"] = spec[:-1], True
    convert: Callable[[str], Any] = str
    if kind := re.search(r":(\w+)$", spec):
        spec = spec[: kind.start()]
        convert = settings["type"] = types[kind[1]]
    if spec.endswith("*"):
        spec, settings["action"], settings["default"] = spec[:-1], "append", []
    names, value = re.fullmatch(r"((?:\S+, )*\S+)(?: (.+))?", spec).groups()  # type: ignore[union-attr]
    if names.startswith("--[no-]"):
        names, settings["action"] = names.replace("[no-]", ""), argparse.BooleanOptionalAction
    elif value is None:
        settings["action"] = "store_true"
    else:
        settings |= _value(value)
    if equals:
        several = settings.get("nargs") in ("+", "*", 2)
        words = default.split() if several else [default.strip(' "')]
        settings["default"] = [convert(word) for word in words] if several else convert(words[0])
        if any(words) and "default:" not in text:
            text += f" (default: {' '.join(words)})"
    settings["help"] = text.replace("%", "%%").strip()
    return names.split(", "), settings


def _value(value: str) -> dict[str, Any]:
    """The arguments of `add_argument` for a value as the help shows it."""
    settings: dict[str, Any] = {}
    if value == "...":
        return {"nargs": argparse.REMAINDER, "metavar": value}
    if value.endswith("...]"):
        value, settings["nargs"] = value[1:-1], "*"
    elif value.startswith("["):
        value, _, alone = value[1:-1].partition("=")
        settings |= {"nargs": "?", "const": alone or None}
    elif value.endswith("..."):
        settings["nargs"] = "+"
    value = value.removesuffix("...")
    if value.startswith("("):
        return settings | {"choices": value[1:-1].split("|")}
    return settings | ({"nargs": 2, "metavar": tuple(value.split())} if " " in value else {"metavar": value})
