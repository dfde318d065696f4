"""Import fairseq without the slow packages that it needs only for a few metrics."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .patch import Patch


class _LazyModule(ModuleType):
    """A stand-in for a module; its functions import the real module when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # the import system asks for __path__ and __spec__, which must be absent
            raise AttributeError(name)

        def function(*args: Any, **options: Any) -> Any:
            return getattr(importlib.import_module(self.__name__), name)(*args, **options)

        return function


def _not_imported() -> bool:
    return "fairseq" not in sys.modules


def _import_fairseq() -> None:
    stand_ins: dict[str, ModuleType] = {}
    for name, module in (("sklearn", "metrics"), ("scipy", "stats")):
        if name not in sys.modules:
            package, lazy = ModuleType(name), _LazyModule(f"{name}.{module}")
            setattr(package, module, lazy)
            stand_ins |= {name: package, lazy.__name__: lazy}
    sys.modules.update(stand_ins)
    try:
        importlib.import_module("fairseq")
    finally:
        for name in stand_ins:  # everybody else must get the real packages
            del sys.modules[name]


PATCHES = (
    Patch(
        "imports",
        "fairseq imports scikit-learn, scipy and pandas for a few metrics of two tasks, a third of the time that a "
        "command takes to start; here they are imported when these metrics are asked for",
        "every fairseq",
        _not_imported,
        _import_fairseq,
    ),
)
