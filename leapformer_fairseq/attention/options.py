"""Options of mechanisms; command-line flags and their help are generated from them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..support.declared import Option as Option
from ..support.errors import LeapformerError
from .capabilities import BLOCKS


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


# What a message says to a model of fairseq, and what it says to a layer or a mechanism in Python.
OF_MODELS = {
    "leave --encoder-causal and --encoder-chunk-ms out": "leave the mask out",
    "give --waitk-lagging offline": "leave the mask out",
    " or, where the model has it, --length-predictor": "",
}


def in_library(text: str, options: Iterable[Option]) -> str:
    """A message that names options by their flags, with their names in Python instead: gate_init for --gate-init."""
    for option in sorted(options, key=lambda option: -len(option.flag)):
        text = re.sub(rf"{option.flag}(?![\w-])", option.name, text)
    for phrase, other in OF_MODELS.items():
        text = text.replace(phrase, other)
    return text
