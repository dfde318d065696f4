"""The registry of attention mechanisms and their options; command-line flags, tests and docs are generated from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..support.declared import checked, enrolled
from ..support.errors import LeapformerError, suggestion
from .capabilities import BLOCKS
from .mechanism import Mechanism
from .options import Option, in_library

MECHANISMS: dict[str, type[Mechanism]] = {}
OPTIONS: dict[str, Option] = {}


M = TypeVar("M", bound=type[Mechanism])


def register(name: str, *options: Option) -> Callable[[M], M]:
    """Class decorator that registers a mechanism under `name` with its `options`.

    Mechanisms may share an option if they declare it identically. Raises LeapformerError if the name is taken or no
    plan can hold it, an option is declared differently, or the class is no mechanism, leaves a method abstract, or does
    not take the arguments of a mechanism.
    """
    return enrolled("mechanism", Mechanism, MECHANISMS, OPTIONS, name, options)


def find(name: str) -> type[Mechanism]:
    """The class of the mechanism `name`. Raises LeapformerError, with similar names, if there is none."""
    if name not in MECHANISMS:
        near = suggestion(name, MECHANISMS)
        raise LeapformerError(
            f"unknown attention mechanism {name!r}; {near}`leapformer list` shows all; --user-dir FOLDER adds those "
            "that its __init__.py imports"
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
        mechanism = create(name, head_dim, num_heads, dropout=dropout, block=block, input_dim=input_dim, **options)
    except LeapformerError as error:
        raise LeapformerError(in_library(str(error), OPTIONS.values())) from error
    mechanism.in_python = True
    return mechanism


def create(name: str, head_dim: int, num_heads: int, *, block: str | None = None, **given: Any) -> Mechanism:
    """`build` for a model of fairseq: messages name options by their flags."""
    cls = find(name)
    if block is not None and block not in BLOCKS:
        raise LeapformerError(f"block {block!r} is unknown; choose from: {', '.join(BLOCKS)}, or None")
    ours = {option: value for option, value in given.items() if option not in ("dropout", "input_dim")}
    checked("mechanism", name, cls.options, ours)
    mechanism = cls(head_dim, num_heads, block=block, **given)
    if mechanism.block != block or any(vars(mechanism.chosen).get(option) is not ours[option] for option in ours):
        raise LeapformerError(
            f"mechanism {name!r}: class {cls.__name__} drops options; write `super().__init__(head_dim, num_heads, "
            "**options)` in its __init__"
        )
    return mechanism
