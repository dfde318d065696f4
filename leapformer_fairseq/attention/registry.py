"""The registry of attention mechanisms and their options; command-line flags, tests and docs are generated from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..support.errors import LeapformerError, suggestion
from .capabilities import BLOCKS
from .mechanism import Mechanism
from .options import Option, in_library

MECHANISMS: dict[str, type[Mechanism]] = {}
OPTIONS: dict[str, Option] = {}


M = TypeVar("M", bound=type[Mechanism])


def register(name: str, *options: Option) -> Callable[[M], M]:
    """Class decorator that registers a mechanism under `name` with its `options`.

    Mechanisms may share an option if they declare it identically. Raises LeapformerError if the name is taken or an
    option is declared differently.
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
    """The class of the mechanism `name`. Raises LeapformerError, with similar names, if there is none."""
    if name not in MECHANISMS:
        near = suggestion(name, MECHANISMS)
        raise LeapformerError(
            f"unknown attention mechanism {name!r}; {near}`leapformer list` shows all; --user-dir FOLDER adds your own"
        )
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
    """Create the mechanism `name` with `num_heads` heads of width `head_dim`.

    `dropout` is the probability of dropping a weight in training, for mechanisms that have dropout. `block`, one of
    `BLOCKS`, is where the mechanism will be used; None: as a library. `input_dim` is the width of the keys' inputs
    (default: that of all heads). `options` that are not given take their defaults. Raises LeapformerError for an
    unknown name, block or option, and for a value that is not allowed.
    """
    try:
        return create(name, head_dim, num_heads, dropout=dropout, block=block, input_dim=input_dim, **options)
    except LeapformerError as error:
        raise LeapformerError(in_library(str(error), OPTIONS.values())) from error


def create(name: str, head_dim: int, num_heads: int, *, block: str | None = None, **given: Any) -> Mechanism:
    """`build` for a model of fairseq: messages name options by their flags."""
    cls = find(name)
    if block is not None and block not in BLOCKS:
        raise LeapformerError(f"block {block!r} is unknown; choose from: {', '.join(BLOCKS)}, or None")
    known = {option.name: option.default for option in cls.options}
    unknown = sorted(set(given) - set(known) - {"dropout", "input_dim"})
    if unknown:
        allowed = ", ".join(known) or "none"
        raise LeapformerError(f"mechanism {name!r} has no option {unknown[0]!r}; its options: {allowed}")
    for option in cls.options:
        option.check(given.get(option.name, option.default))
    return cls(head_dim, num_heads, block=block, **given)
