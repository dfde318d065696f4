"""Linear attention for sequence generation, as a plugin (`--user-dir`) for fairseq.

Importing this package changes nothing and imports neither torch nor fairseq. `register` patches fairseq for today's
Python, PyTorch and numpy (`compat`) and registers our models, criterions, tasks and optimizers with it; fairseq's
`--user-dir`, the `leapformer` command, the SimulEval agent and `leapformer_fairseq.models` call it.
`leapformer_fairseq.attention` is pure PyTorch.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

__version__ = "0.1.0"

PLUGIN_DIR = Path(__file__).absolute().parent  # what fairseq wants as --user-dir
_REGISTERING = (
    "models",
    "criterions",
    "tasks",
    "optimizers",
)  # sub-packages whose modules register themselves when imported


def register() -> None:
    """Patch fairseq where it is defective and register what is ours with it; a second call does nothing.

    Needed before a checkpoint is loaded with fairseq's own functions; `import fairseq, leapformer_fairseq` alone does
    not do it. Importing `leapformer_fairseq.models` calls it too, so a call may come from within another.
    """
    from . import compat, fairseq_errors

    compat.apply()
    fairseq_errors.print_in_one_line()
    for folder in _REGISTERING:
        for module in sorted(m.name for m in pkgutil.iter_modules([str(PLUGIN_DIR / folder)])):
            if not module.startswith("_"):
                # The name fairseq uses for --user-dir, too: a module is executed, and so registers, only once.
                importlib.import_module(f"{__name__}.{folder}.{module}")
