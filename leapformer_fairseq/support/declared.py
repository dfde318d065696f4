"""Options that mechanisms and policies declare when they register; command-line flags are generated from them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from .errors import LeapformerError, suggestion

C = TypeVar("C", bound=type)
SHOWN = 40  # characters of a value in a message
KINDS = bool, int, float, str  # types that the values of an option can have


def with_known_fields(cls: C) -> C:
    """Decorator of a data class or a named tuple: a misspelt field is a LeapformerError that names similar ones."""
    method = "__new__" if issubclass(cls, tuple) else "__init__"
    build, fields = getattr(cls, method), list(inspect.signature(cls).parameters)

    @wraps(build)
    def checked_build(self: Any, *values: Any, **named: Any) -> Any:
        for name in named:
            if name not in fields:
                near = suggestion(name, fields) or f"choose from {', '.join(fields)}"
                raise LeapformerError(f"{cls.__name__}({name}=...): there is no such field; {near}".rstrip())
        return build(self, *values, **named)

    setattr(cls, method, checked_build)
    return cls


@with_known_fields
class Option(NamedTuple):
    """A declared option: its Python name (`leap_factor` becomes the flag `--leap-factor`), default and help.

    `choices` lists the allowed values; empty: any. A number must be at least `least`, greater than `above` and at most
    `most`, where these are given. `without_encoder` is the default in models without an encoder, where it differs.
    `kind`: the type of the values, if the default is None, which stands for the model's own. `long`: the flag, if it is
    not that of the name.
    """

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    without_encoder: bool | int | float | str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    kind: type | None = None
    long: str = ""

    @property
    def flag(self) -> str:
        return self.long or "--" + self.name.replace("_", "-")

    @property
    def type(self) -> type:
        """That of its values: bool, int, float or str."""
        return type(self.default) if self.kind is None else self.kind

    def check(self, value: Any) -> None:
        """Raise LeapformerError for a value that is not among the choices, not a number, or outside the bounds."""
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices:
            raise LeapformerError(f"{self.flag} {value!r}: choose from: {', '.join(self.choices)}")
        number = self.type in (bool, int, float)
        if number and (not isinstance(value, (int, float)) or math.isnan(value)):
            example = "" if self.default is None else f", as in {self.flag} {self.default}"
            raise LeapformerError(f"{self.flag} {value!r}: give a number{example}")
        if self.least is not None and not value >= self.least:
            raise LeapformerError(f"{self.flag} {value}: give at least {self.least}")
        if self.above is not None and not self.above < value < math.inf:
            raise LeapformerError(f"{self.flag} {value}: give a number above {self.above}")
        if self.most is not None and not value <= self.most:
            raise LeapformerError(f"{self.flag} {value}: give at most {self.most}")


def enrolled(
    noun: str,
    base: type,
    things: dict[str, Any],
    options: dict[str, Option],
    name: str,
    declared: tuple[Option, ...],
) -> Callable[[C], C]:
    """Class decorator that adds a class to the registry `things`, and its options to `options`, those of all things.

    The class gets `name` and, as `options`, what it `declared`. `noun` says what the things are. Things may share an
    option if they declare it identically. Raises LeapformerError for a name that commands cannot read, for an option
    that no flag can have or whose default it would refuse; and, when it is applied, if the name is taken, if an option
    is declared differently, or if the class is not derived from `base`, leaves a method of it abstract, or cannot be
    built with the arguments of its constructor.
    """
    if isinstance(name, type):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.__name__).lower()
        raise LeapformerError(f'@register above class {name.__name__} has no name; write @register("{words}")')
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name)):
        raise LeapformerError(
            f"{noun} {name!r}: commands cannot read this name; take letters, digits, - and _, and begin with a letter "
            "or a digit"
        )

    for option in declared:
        _check_option(noun, name, option)

    def add(thing: C) -> C:
        if name in things:
            raise LeapformerError(f"{noun} {name!r} is already registered by {place(things[name])}; rename it")
        _check_class(noun, name, base, thing, declared)
        for option in declared:
            before = options.get(option.name, option)
            if before != option:
                others = (place(other) for other in things.values() if before in other.options)
                raise LeapformerError(
                    f"option {option.name!r} of {noun} {name!r} has {_difference(option, before)} in its first "
                    f"declaration{next((f' ({other})' for other in others), '')}; declare it identically or rename it"
                )
        options.update({option.name: option for option in declared})
        things[name] = thing
        things[name].name, things[name].options = name, declared
        return thing

    return add


def _check_option(noun: str, name: str, option: object) -> None:
    """Raise LeapformerError for what cannot become a flag, or has a default that the flag would refuse."""
    if not isinstance(option, Option):
        raise LeapformerError(f"{noun} {name!r}: {option!r} is no Option; write Option(NAME, DEFAULT, HELP)")
    which = f"option {option.name!r} of {noun} {name!r}"
    if not option.name.isidentifier():  # it is read as `self.chosen.NAME`
        python = re.sub(r"\W+", "_", option.name.lstrip("-"))
        remedy = f"write {python!r}, " if python else ""
        raise LeapformerError(f"{which} is no Python name; {remedy}whose flag has hyphens")
    if option.type not in KINDS:
        raise LeapformerError(
            f"{which}: its default {_short(option.default)} does not tell what a flag takes; give a bool, a number or "
            "a text, or None with kind=int, float or str"
        )
    try:
        option.check(option.default)
    except LeapformerError as error:
        raise LeapformerError(f"{which}: its default is refused: {error}") from error


def _check_class(noun: str, name: str, base: type, thing: Any, declared: Iterable[Option]) -> None:
    """Raise LeapformerError for a class that is not derived from `base`, is abstract, or cannot be built as `base` is.

    `noun` and `name` say what it is to be.
    """
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise LeapformerError(
            f"{noun} {name!r}: {getattr(thing, '__name__', thing)} is no {base.__name__}; write `class "
            f"{name.title().replace('-', '')}({base.__name__})`"
        )
    if lacking := dict(_abstract(thing)):
        first, *more = lacking
        raise LeapformerError(
            f"{noun} {name!r}: class {thing.__name__} has no method {' and no '.join(lacking)}; "
            f"{suggestion(first, vars(thing))}define {'them' if more else 'it'} as in {lacking[first]}"
        )
    if problem := _unbuildable(thing, base, declared):
        raise LeapformerError(f"{noun} {name!r}: __init__ of class {thing.__name__} {problem}")


def place(thing: Any) -> str:
    """The file and line of a class, as far as they are known, or else its module."""
    found: str = thing.__module__
    with suppress(OSError, TypeError):  # it was not made by a class statement, or not in a file
        found = inspect.getfile(thing)
        found += f", line {inspect.getsourcelines(thing)[1]}"
    return found


def _abstract(thing: type) -> Iterator[tuple[str, str]]:
    """The methods that a class leaves abstract, each with the class that declares it."""
    for kind in thing.__mro__:
        for name, value in vars(kind).items():
            if getattr(value, "__isabstractmethod__", False) and getattr(thing, name) is value:
                yield name, kind.__name__


def _unbuildable(thing: type, base: type, declared: Iterable[Option]) -> str | None:
    """Why a class does not take the arguments that its base takes, with the remedy; None if it does."""
    ours = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
    positional = [one.name for one in ours if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty]
    named = [one.name for one in ours if one.kind is one.KEYWORD_ONLY]
    others = [one.name for one in ours if one.kind is one.VAR_KEYWORD]
    named += [option.name for option in declared] if others else []
    try:
        inspect.signature(thing.__init__).bind(*positional, **dict.fromkeys(named))  # type: ignore[misc]
    except TypeError as error:
        taken = ", ".join(positional + [f"**{name}" for name in others])
        passed = taken.removeprefix("self, ")
        return f"does not fit ({error}); write `def __init__({taken})`, and `super().__init__({passed})` in it"
    return None


def _difference(option: Option, first: Option) -> str:
    """How an option differs from its first declaration: `default 3, but 2 (and another help)`."""
    field, *more = (field for field in Option._fields if getattr(option, field) != getattr(first, field))
    value, before = (_short(getattr(one, field)) for one in (option, first))
    return f"{field} {value}, but {before}" + (f" (and another {', '.join(more)})" if more else "")


def _short(value: Any) -> str:
    """A value as Python writes it, cut."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def checked(noun: str, name: str, declared: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all options, given or default. Raises LeapformerError for unknown options and wrong values."""
    known = {option.name: option for option in declared}
    for option in given:
        if option not in known:
            names = ", ".join(known) or "none"
            raise LeapformerError(f"{noun} {name!r} has no option {option!r}; its options: {names}")
    values = {option.name: given.get(option.name, option.default) for option in known.values()}
    for option_name, value in values.items():
        known[option_name].check(value)
    return values
