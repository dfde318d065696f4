"""Options of mechanisms; command-line flags and their help are generated from them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..support.errors import LeapformerError
from .capabilities import BLOCKS


class Option(NamedTuple):
    """An option of a mechanism: its Python name (`leap_factor` becomes the flag `--leap-factor`), default and help.

    `choices` lists the allowed values; empty: any. A number must be at least `least` and greater than `above`, where
    these are given. `without_encoder` is the default in models without an encoder, where it differs.
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
        """Raise LeapformerError for a value that is not among the choices, not a number, or too small."""
        if self.choices and value not in self.choices:
            raise LeapformerError(f"{self.flag} {value!r}: choose from: {', '.join(self.choices)}")
        if isinstance(self.default, (int, float)) and (not isinstance(value, (int, float)) or math.isnan(value)):
            raise LeapformerError(f"{self.flag} {value!r}: give a number, as in {self.flag} {self.default}")
        if self.least is not None and not value >= self.least:
            raise LeapformerError(f"{self.flag} {value}: give at least {self.least}")
        if self.above is not None and not self.above < value < math.inf:
            raise LeapformerError(f"{self.flag} {value}: give a number above {self.above}")


def per_block(flag: str, value: str | int, block: str | None, least: int) -> int:
    """The number for `block` in an option such as 8 or 32/8/32; without a block, the first.

    Raises LeapformerError unless there are one or three whole numbers, each at least `least`.
    """
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


def in_library(text: str, options: Iterable[Option]) -> str:
    """A message that names options by their flags, with their names in Python instead: gate_init for --gate-init."""
    for option in sorted(options, key=lambda option: -len(option.flag)):
        text = re.sub(rf"{option.flag}(?![\w-])", option.name, text)
    return text
