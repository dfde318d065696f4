"""Linear attention for sequence generation, as a plugin (`--user-dir`) for fairseq.

Importing this package changes nothing and imports neither torch nor fairseq. `register` patches fairseq for today's
Python, PyTorch and numpy (`compat`) and registers our models, criterions, tasks and optimizers with it; fairseq's
`--user-dir` does the same; the `leapformer` command, `load_model` and the SimulEval agent call it.
`leapformer_fairseq.attention` is pure PyTorch.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from pathlib import Path

__version__ = "0.1.0"

PLUGIN_DIR = Path(__file__).absolute().parent  # what fairseq wants as --user-dir
# Sub-packages whose modules register themselves when imported. fairseq's --user-dir imports only tasks/ and models/.
_UNKNOWN_TO_FAIRSEQ = ("criterions", "optimizers")
_REGISTERING = ("models", *_UNKNOWN_TO_FAIRSEQ, "tasks")
_lock = threading.Lock()


def register() -> None:
    """Patch fairseq where it is defective and register what is ours with it; a second call does nothing.

    Needed before a checkpoint is loaded with fairseq's own functions; `import fairseq, leapformer_fairseq` alone does
    not do it. Several threads may call it at once.
    """
    with _lock:
        prepare_fairseq()
        import_modules(_REGISTERING)


def prepare_fairseq() -> None:
    """The patches, and fairseq's errors in one line: what `models/` needs, whichever of its modules is imported."""
    from . import compat, fairseq_errors

    compat.apply()
    fairseq_errors.print_in_one_line()


def import_modules(folders: tuple[str, ...] = _UNKNOWN_TO_FAIRSEQ) -> None:
    """Import every module of these sub-packages; by default of those that fairseq's --user-dir leaves out.

    No sub-package may import its own modules this way from its `__init__`: of two threads, one would hold the import
    lock of the package, the other that of a module, and each wait for the other.
    """
    for folder in folders:
        for module in sorted(m.name for m in pkgutil.iter_modules([str(PLUGIN_DIR / folder)])):
            if not module.startswith("_"):
                # The name fairseq uses for --user-dir, too: a module is executed, and so registers, only once.
                importlib.import_module(f"{__name__}.{folder}.{module}")
