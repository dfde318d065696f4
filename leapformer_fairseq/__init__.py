"""Linear attention for sequence generation, as a plugin (`--user-dir`) for fairseq.

Importing this package costs nothing by itself. As soon as fairseq is imported too, before or after it, fairseq is
mended for today's Python, PyTorch and numpy (`compat`) and knows our tasks, models and criterions.
`leapformer_fairseq.attention` is pure PyTorch and needs no fairseq at all.
"""

from __future__ import annotations

import importlib
import importlib.abc
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__version__ = "0.1.0"

PLUGIN_DIR = Path(__file__).absolute().parent  # what fairseq wants as --user-dir
_REGISTERING = ("tasks", "models", "criterions")  # sub-packages whose modules register themselves when imported
_USING_FAIRSEQ = {"fairseq", *(f"{__name__}.{name}" for name in (*_REGISTERING, "modules", "agents"))}


def register_all() -> None:
    """Mend fairseq and register everything of this package with it; a second call does nothing."""
    from . import compat

    compat.apply()
    for folder in _REGISTERING:
        for module in sorted(m.name for m in pkgutil.iter_modules([str(PLUGIN_DIR / folder)])):
            if not module.startswith("_"):
                # The name fairseq uses for --user-dir, too: a module is executed, and so registers, only once.
                importlib.import_module(f"{__name__}.{folder}.{module}")


class _AfterFirstUse(importlib.abc.MetaPathFinder):
    """Calls `register_all` right after the first import of fairseq, or of a sub-package of ours that imports it.

    Importing fairseq takes seconds; so it is not imported from here, for the sake of `leapformer --help` and of
    everybody who only needs `attention`. Not before the outermost of these imports is complete: our models, which are
    registered then, import `modules`, and may not find it half initialised.
    """

    def __init__(self) -> None:
        self.importing = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self.importing or fullname not in _USING_FAIRSEQ:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._execute_and_register(execute, module)  # type: ignore
        return spec

    def _execute_and_register(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        self.importing = True
        try:
            execute(module)
        finally:
            self.importing = False
        sys.meta_path.remove(self)
        register_all()


if "fairseq" in sys.modules:
    register_all()
else:
    sys.meta_path.insert(0, _AfterFirstUse())
