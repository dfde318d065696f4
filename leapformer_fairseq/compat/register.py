"""Register our models, criterions, tasks and optimizers with fairseq by importing the modules that define them.

What a user's own folder (`--user-dir`) registers comes after them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import threading
from pathlib import Path

from .. import PLUGIN_DIR
from ..support import user_dir
from ..support.errors import LeapformerError, first_line, place_in
from .errors_explained import print_in_one_line
from .patches import apply

# Sub-packages whose modules register themselves when imported. fairseq's --user-dir imports only tasks/ and models/.
_UNKNOWN_TO_FAIRSEQ = ("criterions", "optim")
_REGISTERING = ("models", *_UNKNOWN_TO_FAIRSEQ, "tasks")
_PACKAGE = __package__.rpartition(".")[0]
_FOUND = ("__init__.py", "models", "tasks")  # what fairseq imports of a --user-dir
_lock = threading.RLock()  # a user's folder may call `register`, too


def register() -> None:
    """Implement `leapformer_fairseq.register`."""
    with _lock:
        prepare_fairseq()
        import_modules(_REGISTERING)
        if user_dir.given():
            _import_folder(user_dir.given())


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


def _import_folder(folder: str) -> None:
    """Import a user's folder as fairseq's --user-dir does; a second call does nothing.

    Raises LeapformerError, with file, line and reason, if it cannot be imported.
    """
    from fairseq.utils import import_user_module

    path = Path(folder)
    if path.exists() and not any((path / name).exists() for name in _FOUND):
        what = "has no __init__.py, so nothing in it is imported" if path.is_dir() else "is no folder"
        raise LeapformerError(f"{user_dir.FLAG} {folder} {what}; give a folder whose __init__.py registers mechanisms")
    try:
        import_user_module(argparse.Namespace(user_dir=folder))
    except (Exception, SystemExit) as error:
        getattr(import_user_module, "memo", set()).discard(os.path.abspath(folder))  # or it would not try again
        raise LeapformerError(f"{user_dir.FLAG} {folder} cannot be imported: {_reason(error, path)}") from error


def _reason(error: BaseException, folder: Path) -> str:
    """Why a folder cannot be imported, with the innermost line of its own files."""
    if isinstance(error, FileNotFoundError) and not folder.exists():
        return "there is no such folder; check the path"
    other = sys.modules.get(folder.name)
    if other is not None and str(folder) not in getattr(other, "__path__", ()):
        return f"another module is called {folder.name}, of {getattr(other, '__file__', 'Python')}; rename the folder"
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    return place_in(folder, error) + (str(error) if isinstance(error, LeapformerError) else first_line(error))
