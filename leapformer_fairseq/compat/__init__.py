"""What makes fairseq 0.12.3 run on today's Python, PyTorch and numpy: one small patch per defect, each with its reason.

`apply` is called as soon as fairseq is imported together with this package. A patch is applied only where the defect is
found; `leapformer doctor` lists what was done. No patch weakens a protection: checkpoints are still loaded with
`weights_only=True`, only the few harmless types that fairseq stores are allowed in addition.
"""

from __future__ import annotations

from . import checkpoints, data, running
from .checkpoints import checkpoint_types
from .patch import Patch

PATCHES = (*checkpoints.PATCHES, *data.PATCHES, *running.PATCHES)

_applied: dict[str, bool] = {}  # name of a patch -> whether it was needed, filled by the first `apply`


def apply() -> list[Patch]:
    """Mend what is broken, once per process; returns the patches that are in force."""
    import fairseq  # noqa: F401  (calls this function, the first time: so not from within the loop)

    for patch in PATCHES:
        if patch.name not in _applied:
            _applied[patch.name] = patch.needed()
            if _applied[patch.name]:
                patch.mend()
    return [patch for patch in PATCHES if _applied[patch.name]]


__all__ = ["PATCHES", "Patch", "apply", "checkpoint_types"]
