"""Artefacts that several tests read, made once for all workers of a run: tiny models, exported folders, corpora."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = "LEAPFORMER_TESTS_MADE"  # variable of the environment: the folder of this run, set by conftest.py


def made(name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` of this run, which `make(folder)` has filled in whichever worker asked first.

    Other workers wait for it. Its readers must not change it; `shutil.copytree` gives them one that they may. The
    content must depend on nothing but `name`: seeds are set by `make`.
    """
    root = Path(os.environ[ROOT])
    folder = root / name
    with (root / f"{name.replace('/', '+')}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not lock.read():
            shutil.rmtree(folder, ignore_errors=True)  # of a test that failed
            folder.mkdir(parents=True)
            make(folder)  # in its place: checkpoints and manifests have paths in them
            lock.write("made")
    return folder


def begin() -> Callable[[], None]:
    """Choose the folder of this run in the process that starts the workers; the function returned removes it."""
    if ROOT in os.environ:
        return lambda: None
    os.environ[ROOT] = tempfile.mkdtemp(prefix="leapformer-tests-")
    return lambda: shutil.rmtree(os.environ.pop(ROOT))
