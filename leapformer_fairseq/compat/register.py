"""Register our models, criterions, tasks and optimizers with fairseq by importing the modules that define them."""

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
    """Implement `leapformer_fairseq.register`."""
    with _lock:
        prepare_fairseq()
        import_modules(_REGISTERING)


def prepare_fairseq() -> None:
    """Apply the patches and shorten the errors of fairseq's commands; every import of `models/` does this first."""
    apply()
    print_in_one_line()


def import_modules(folders: tuple[str, ...] = _UNKNOWN_TO_FAIRSEQ) -> None:
    """Import every module of these sub-packages; by default of those that fairseq's --user-dir does not import.

    A sub-package must not call this for itself in its `__init__`: one thread would hold the import lock of the package
    and another that of a module, and the two would deadlock.
    """
    for folder in folders:
        for module in sorted(m.name for m in pkgutil.iter_modules([str(PLUGIN_DIR / folder)])):
            if not module.startswith("_"):
                # Import by the name that --user-dir uses: under a second name the module would run again, and fairseq
                # rejects a name that is registered twice.
                importlib.import_module(f"{_PACKAGE}.{folder}.{module}")
