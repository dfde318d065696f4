"""`apply`, which applies all patches that are needed."""

from __future__ import annotations

import importlib
import threading

from ..support.lazy import lazily_imported
from . import checkpoints, data, distributed, generation, training, trust  # noqa: F401  (they add their patches)
from .patch import ALL, Patch

PATCHES = tuple(ALL)

_applied: dict[str, bool] = {}  # name of a patch -> whether it was needed, filled by the first `apply`
_lock = threading.Lock()


def apply() -> list[Patch]:
    """Apply each patch whose defect is present, once per process; return the patches in force."""
    with _lock:
        # For a few metrics of two tasks: a third of the time that a command takes to start.
        with lazily_imported("sklearn.metrics", "scipy.stats"):
            importlib.import_module("fairseq")
        for patch in PATCHES:
            if patch.name not in _applied:
                needed = patch.needed()
                if needed:
                    patch.apply()
                _applied[patch.name] = needed
    return [patch for patch in PATCHES if _applied[patch.name]]
