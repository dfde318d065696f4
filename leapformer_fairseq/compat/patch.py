"""What a patch is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Patch(NamedTuple):
    """One defect and its patch; `needed` looks for the defect itself, `applies_to` says in words where it is found."""

    name: str
    reason: str
    applies_to: str
    needed: Callable[[], bool]
    apply: Callable[[], None]
