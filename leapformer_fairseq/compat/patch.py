"""How patches are declared: with the decorator `patch`, often on a function declared with `wrapping`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """A defect and its patch: `needed` detects the defect itself, `applies_to` names the versions that have it."""

    name: str
    reason: str
    applies_to: str
    needed: Callable[[], bool]
    apply: Callable[[], None]


ALL: list[Patch] = []  # filled as modules are imported


def patch(
    name: str, reason: str, needed: Callable[[], bool], applies_to: str = "fairseq 0.12"
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorator that adds a patch, which the decorated function applies, to `ALL`."""

    def add(apply: Callable[[], None]) -> Callable[[], None]:
        ALL.append(Patch(name, reason, applies_to, needed, apply))
        return apply

    return add


def wrapping(place: str) -> Callable[[Callable[..., Any]], Callable[[], None]]:
    """Decorator for a function that replaces that at `place` (`module:name` or `module:Class.name`).

    The replacement gets the original as its first argument. What is returned applies it.
    """

    def decorate(replacement: Callable[..., Any]) -> Callable[[], None]:
        def apply() -> None:
            owner, name = _owner(place)
            original = getattr(owner, name)

            @functools.wraps(original)
            def wrapped(*args: Any, **options: Any) -> Any:
                return replacement(original, *args, **options)

            wrapped.is_ours = True  # type: ignore[attr-defined]
            is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
            setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)

        return apply

    return decorate


def source_has(place: str, text: str, *, not_yet: bool = False) -> Callable[[], bool]:
    """A test whether the function at `place` is fairseq's and its source has this text, or with `not_yet` lacks it.

    For code that must not be run to see what it does.
    """

    def needed() -> bool:
        function = resolve_name(place)
        return not hasattr(function, "is_ours") and (text in inspect.getsource(function)) != not_yet

    return needed


def _owner(place: str) -> tuple[Any, str]:
    """The module or class at `place`, and the name in it."""
    module, _, name = place.partition(":")
    of, _, last = name.rpartition(".")
    return resolve_name(f"{module}:{of}" if of else module), last
