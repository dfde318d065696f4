"""What makes fairseq 0.12.3 run on today's Python, PyTorch and numpy: one small patch per defect, each with its reason.

`leapformer_fairseq.register` calls `apply`. A patch is applied only where its defect is found; `leapformer doctor`
lists what was done. Only defects belong here: what our models need beyond them is in `models/task.py`, and what
fairseq's errors mean in `fairseq_errors.py`. No patch weakens a protection: checkpoints are still loaded with
`weights_only=True`, only the few harmless types that fairseq stores are allowed in addition, and what options say is
never executed (`trust.py`).
"""

from __future__ import annotations

import threading

from . import averages, checkpoints, configurations, data, distributed, imports, noise, options, trust
from .checkpoints import checkpoint_types
from .patch import Patch
from .trust import check_options

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


__all__ = ["PATCHES", "Patch", "apply", "check_options", "checkpoint_types"]
