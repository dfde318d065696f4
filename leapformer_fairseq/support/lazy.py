"""Imports without the slow modules that they rarely need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """A stand-in for a module; its functions import the real module when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # the import system asks for __path__ and __spec__, which must be absent
            raise AttributeError(name)

        def function(*args: Any, **options: Any) -> Any:
            return getattr(importlib.import_module(self.__name__), name)(*args, **options)

        return function


@contextmanager
def lazily_imported(*modules: str) -> Iterator[None]:
    """What is imported in this block gets stand-ins for `modules`, such as "scipy.stats", of packages not loaded yet.

    Everybody else gets the real modules.
    """
    stand_ins: dict[str, ModuleType] = {}
    for module in modules:
        package, _, attribute = module.partition(".")
        if package not in sys.modules:
            parent, lazy = ModuleType(package), _LazyModule(module)
            setattr(parent, attribute, lazy)
            stand_ins |= {package: parent, module: lazy}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]
