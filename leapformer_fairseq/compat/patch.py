"""The description of a patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Patch(NamedTuple):
    """A defect and its patch: `needed` detects the defect itself, `applies_to` names the versions that have it."""

    name: str
    reason: str
    applies_to: str
    needed: Callable[[], bool]
    apply: Callable[[], None]
