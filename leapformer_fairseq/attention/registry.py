"""The register of attention mechanisms and of their options; command-line flags, tests and docs are read off it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..support.errors import LeapformerError, suggestion
from .capabilities import BLOCKS

if TYPE_CHECKING:
    from .mechanism import Mechanism

MECHANISMS: dict[str, type[Mechanism]] = {}
OPTIONS: dict[str, Option] = {}


class Option(NamedTuple):
    """One option of a mechanism: the Python name (`leap_factor` becomes the flag `--leap-factor`), default and help.

    `choices` lists the values of an option that has only some; a number is `least` or more, or is greater than `above`.
    `without_encoder` is the default in a model that has no encoder, where that differs.
    """

    name: str
    default: bool | int | float | str
    help: str
    choices: tuple[str, ...] = ()
    without_encoder: bool | int | float | str | None = None
    least: int | None = None
    above: int | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: Any) -> None:
        """Raise LeapformerError for a value that is none of the choices, or no number that the option takes."""
        if self.choices and value not in self.choices:
            raise LeapformerError(f"{self.flag} {value!r}: choose from: {', '.join(self.choices)}")
        if isinstance(self.default, (int, float)) and (not isinstance(value, (int, float)) or math.isnan(value)):
            raise LeapformerError(f"{self.flag} {value!r}: give a number, as in {self.flag} {self.default}")
        if self.least is not None and not value >= self.least:
            raise LeapformerError(f"{self.flag} {value}: give at least {self.least}")
        if self.above is not None and not self.above < value < math.inf:
            raise LeapformerError(f"{self.flag} {value}: give a number above {self.above}")


def per_block(flag: str, value: str | int, block: str | None, least: int) -> int:
    """The number that holds in `block` (without one: the first) of an option such as 8 or 32/8/32."""
    try:
        numbers = [int(number) for number in str(value).split("/")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, len(BLOCKS)) or min(numbers) < least:
        raise LeapformerError(
            f"{flag} {value!r}: give a whole number of at least {least}, or one each for {'/'.join(BLOCKS)}, as in "
            "32/8/32"
        )
    return numbers[0] if len(numbers) == 1 or block is None else numbers[BLOCKS.index(block)]


M = TypeVar("M", bound="type[Mechanism]")


def register(name: str, *options: Option) -> Callable[[M], M]:
    """Class decorator that makes a mechanism known under `name` with its `options`.

    Two mechanisms may share an option only if they declare it identically. Raises LeapformerError when the name is
    taken or an option is declared differently.
    """

    def add(cls: M) -> M:
        if name in MECHANISMS:
            raise LeapformerError(
                f"mechanism {name!r} is already registered by {MECHANISMS[name].__module__}; rename it"
            )
        for option in options:
            if OPTIONS.setdefault(option.name, option) != option:
                raise LeapformerError(
                    f"option {option.name!r} of mechanism {name!r} differs from its first declaration "
                    f"{OPTIONS[option.name]}; declare it identically or rename it"
                )
        cls.name, cls.options = name, tuple(options)
        MECHANISMS[name] = cls
        return cls

    return add


def find(name: str) -> type[Mechanism]:
    """The class of a mechanism; an unknown name raises LeapformerError with those like it."""
    if name not in MECHANISMS:
        near = suggestion(name, MECHANISMS)
        raise LeapformerError(f"unknown attention mechanism {name!r}; {near}`leapformer list` shows all")
    return MECHANISMS[name]


def build(
    name: str,
    head_dim: int,
    num_heads: int,
    *,
    dropout: float = 0.0,
    block: str | None = None,
    input_dim: int | None = None,
    **options: Any,
) -> Mechanism:
    """A mechanism by name. Options not given take their defaults; an unknown one or block raises LeapformerError."""
    cls = find(name)
    if block is not None and block not in BLOCKS:
        raise LeapformerError(f"block {block!r} is unknown; choose from: {', '.join(BLOCKS)}, or None")
    known = {option.name: option.default for option in cls.options}
    unknown = sorted(set(options) - set(known))
    if unknown:
        allowed = ", ".join(known) or "none"
        raise LeapformerError(f"mechanism {name!r} has no option {unknown[0]!r}; its options: {allowed}")
    for option in cls.options:
        option.check(options.get(option.name, option.default))
    return cls(head_dim, num_heads, dropout=dropout, block=block, input_dim=input_dim, **options)
