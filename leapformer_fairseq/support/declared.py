"""Options that mechanisms and policies declare when they register; command-line flags are generated from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .errors import LeapformerError


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


def enroll(
    noun: str, things: dict[str, Any], options: dict[str, Option], thing: Any, name: str, declared: tuple[Option, ...]
) -> None:
    """Add a class to the registry `things`, and its options to those of all things; it gets `name` and `options`.

    Things may share an option if they declare it identically. Raises LeapformerError if the name is taken or an option
    is declared differently; `noun` says what the things are.
    """
    if name in things:
        raise LeapformerError(f"{noun} {name!r} is already registered by {things[name].__module__}; rename it")
    for option in declared:
        if options.setdefault(option.name, option) != option:
            raise LeapformerError(
                f"option {option.name!r} of {noun} {name!r} differs from its first declaration "
                f"{options[option.name]}; declare it identically or rename it"
            )
    thing.name, thing.options = name, declared
    things[name] = thing


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
