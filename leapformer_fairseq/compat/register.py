"""Registers our models, criterions, tasks and optimizers with fairseq by importing the modules that hold them."""

from __future__ import annotations

import importlib
import pkgutil
import threading

from .. import PLUGIN_DIR
from .errors_explained import print_in_one_line
from .patches import apply

# Sub-packages whose modules register themselves when imported. fairseq's --user-dir imports only tasks/ and models/.
_UNKNOWN_TO_FAIRSEQ = ("criterions", "optim")
_REGISTERING = ("models", *_UNKNOWN_TO_FAIRSEQ, "tasks")
_PACKAGE = __package__.rpartition(".")[0]
_lock = threading.Lock()


def register() -> None:
    """As `leapformer_fairseq.register`."""
    with _lock:
        prepare_fairseq()
        import_modules(_REGISTERING)


def prepare_fairseq() -> None:
    """The patches, and fairseq's errors in one line: what `models/` needs, whichever of its modules is imported."""
    apply()
    print_in_one_line()


def import_modules(folders: tuple[str, ...] = _UNKNOWN_TO_FAIRSEQ) -> None:
    """Import every module of these sub-packages; by default of those that fairseq's --user-dir leaves out.

    No sub-package may import its own modules this way from its `__init__`: of two threads, one would hold the import
    lock of the package, the other that of a module, and each wait for the other.
    """
    for folder in folders:
        for module in sorted(m.name for m in pkgutil.iter_modules([str(PLUGIN_DIR / folder)])):
            if not module.startswith("_"):
                # The name fairseq uses for --user-dir, too: a module is executed, and so registers, only once.
                importlib.import_module(f"{_PACKAGE}.{folder}.{module}")
