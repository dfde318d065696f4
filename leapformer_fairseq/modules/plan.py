"""Attention plans: the mechanism of each layer of a block.

"leap" is for all layers; "softmax,leap*4,softmax" names one mechanism per layer, where `*4` stands for four layers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..attention import OPTIONS, Mask, Option, find
from ..attention.registry import create
from ..support.errors import LeapformerError

# Sizes of the instances whose capabilities are checked; capabilities do not depend on sizes.
_HEAD_DIM, _HEADS, _WIDTH = 64, 2, 128


def expand_plan(plan: str, layers: int) -> list[str]:
    """One registered mechanism name per layer.

    Raises LeapformerError for an unknown mechanism, a bad repeat or a plan that does not fit `layers`.
    """
    names = names_in(plan)
    if len(names) == 1 and "*" not in plan:
        names *= layers
    if len(names) != layers:
        raise LeapformerError(
            f"attention plan {plan!r} names {len(names)} layers but the stack has {layers}; "
            f"name one mechanism for all, or one per layer, e.g. {names[0]}*{layers}"
        )
    return names


def names_in(plan: str) -> list[str]:
    """The mechanisms in a plan, with repeats. Raises LeapformerError for an unknown mechanism or a bad repeat."""
    names: list[str] = []
    for part in plan.split(","):
        name, star, times = (piece.strip() for piece in part.partition("*"))
        if star and not (times.isdigit() and int(times) > 0):
            raise LeapformerError(
                f"attention plan {plan!r}: {part.strip()!r} needs a positive number after '*', e.g. leap*4"
            )
        find(name)
        names += [name] * (int(times) if star else 1)
    return names


def check_plans(
    plans: Mapping[str, str],
    options: Iterable[tuple[str, str | None]],
    masks: Mapping[str, Mask],
    others: Callable[[], Collection[str]] = tuple,
) -> None:
    """Raise LeapformerError, before a model is built, if no model can be built with these plans and options.

    plans:   the plan of each block.
    options: names, without leading dashes, and values; None for a flag.
    masks:   the mask of each block; None if all tokens are seen.
    others:  returns the names of further options that a model has; called only if one is given that no mechanism has.
    """
    given = {name.replace("-", "_"): _value(name, text, others) for name, text in options}
    for block, plan in plans.items():
        for name in dict.fromkeys(names_in(plan)):
            values = {option.name: given[option.name] for option in find(name).options if option.name in given}
            try:
                mechanism = create(name, _HEAD_DIM, _HEADS, block=block, input_dim=_WIDTH, **values)
            except LeapformerError as error:
                if "head dimension" in str(error):  # unknown until the model is built
                    continue
                raise
            reason = mechanism.capabilities.unsupported_reason(block, masks.get(block))
            if reason is not None:
                raise LeapformerError(f"{block} attention: {name} cannot be used: {reason}")


def _value(name: str, text: str | None, others: Callable[[], Collection[str]]) -> Any:
    """The value of a mechanism's option, or the text of another model option. Raises LeapformerError for others."""
    option = OPTIONS.get(name.replace("-", "_"))
    if option is None and name not in (models := others()):
        known = sorted({known_option.flag[2:] for known_option in OPTIONS.values()} | {*models})
        close = difflib.get_close_matches(name, known, 3) or ["encoder-chunk-ms", "leap-factor", "luna-length"]
        raise LeapformerError(f"there is no option {name} of a mechanism; did you mean {' or '.join(close)}?")
    return text if option is None else _parsed(option, text)


def _parsed(option: Option, text: str | None) -> Any:
    """The value that the option's flag would have. Raises LeapformerError if the text is not a valid value."""
    kind = type(option.default)
    if kind is bool:
        if text is not None:
            raise LeapformerError(f"{option.flag} {text}: it takes no value; leave it out")
        return True
    try:
        value = kind(text if text is not None else "")
    except ValueError:
        value = ""
    if value == "":
        raise LeapformerError(f"{option.flag} {text or ''}: give a value, as in {option.flag} {option.default}")
    option.check(value)
    return value
