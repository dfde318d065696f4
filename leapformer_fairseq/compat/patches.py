"""The list of all patches, and `apply`, which applies those that are needed."""

from __future__ import annotations

import threading

from . import averages, checkpoints, configurations, data, distributed, imports, noise, options, trust
from .patch import Patch

# `imports` must come first: it is the patch that imports fairseq, and the others would import it before its stand-ins.
PATCHES = (
    *imports.PATCHES, *checkpoints.PATCHES, *trust.PATCHES, *data.PATCHES, *distributed.PATCHES, *options.PATCHES,
    *averages.PATCHES, *noise.PATCHES, *configurations.PATCHES
)  # fmt: skip

_applied: dict[str, bool] = {}  # name of a patch -> whether it was needed, filled by the first `apply`
_lock = threading.Lock()


def apply() -> list[Patch]:
    """Apply each patch whose defect is present, once per process; return the patches in force."""
    with _lock:
        for patch in PATCHES:
            if patch.name not in _applied:
                needed = patch.needed()
                if needed:
                    patch.apply()
                _applied[patch.name] = needed
    return [patch for patch in PATCHES if _applied[patch.name]]
