"""All patches, and `apply`, which carries out those that are needed."""

from __future__ import annotations

import threading

from . import averages, checkpoints, configurations, data, distributed, imports, noise, options, trust
from .patch import Patch

# the one that imports fairseq first
PATCHES = (
    *imports.PATCHES, *checkpoints.PATCHES, *trust.PATCHES, *data.PATCHES, *distributed.PATCHES, *options.PATCHES,
    *averages.PATCHES, *noise.PATCHES, *configurations.PATCHES
)  # fmt: skip

_applied: dict[str, bool] = {}  # name of a patch -> whether it was needed, filled by the first `apply`
_lock = threading.Lock()


def apply() -> list[Patch]:
    """Patch what is defective, once per process; returns the patches that are in force."""
    with _lock:
        for patch in PATCHES:
            if patch.name not in _applied:
                needed = patch.needed()
                if needed:
                    patch.apply()
                _applied[patch.name] = needed
    return [patch for patch in PATCHES if _applied[patch.name]]
