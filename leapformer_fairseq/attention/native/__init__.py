"""The decoding step in C, compiled on first use into the user's cache; everything works without it, slower.

No compiler, a read-only cache, another platform: then `step` is None and the step in PyTorch serves.
`LEAPFORMER_NATIVE=0` turns it off.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("step.c")
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=c99")
SWITCH = "LEAPFORMER_NATIVE"
MAX_DIM = 1024  # as in step.c


class Sizes(ctypes.Structure):
    """`Sizes` of step.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "heads", "dim", "values", "shared", "update")),
        *((name, ctypes.c_int32) for name in ("activation", "reweighted", "hidden", "network_stride", "pairs")),
        ("floor", ctypes.c_float),
    ]


def step() -> Callable[..., None] | None:
    """`leapformer_step` of step.c, or None where it cannot be had or is turned off."""
    return None if os.environ.get(SWITCH) == "0" else load()


@contextmanager
def turned_off() -> Iterator[None]:
    """The step in PyTorch for a while, to compare."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before


@functools.cache
def load() -> Callable[..., None] | None:
    """Compile, if this processor has not, and load; where that fails, the reason is logged once."""
    try:
        function = ctypes.CDLL(str(_compiled())).leapformer_step
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("decoding step in PyTorch, since the one in C could not be compiled: %s", error)
        return None
    pointer = ctypes.c_void_p
    function.argtypes = (ctypes.POINTER(Sizes), pointer, ctypes.c_int64, *[pointer] * 6)
    function.restype = None
    return function


def _compiled() -> Path:
    """The shared library for this source and this processor."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leapformer_fairseq"
    identity = hashlib.sha256("\0".join([SOURCE.read_text(), *FLAGS, _processor()]).encode()).hexdigest()[:16]
    library = cache / f"step-{identity}.so"
    if not library.exists():
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise OSError("there is no C compiler (install gcc or clang, or name one by CC)")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            built = Path(folder) / library.name
            subprocess.run(
                [compiler, *FLAGS, str(SOURCE), "-o", str(built), "-lm"], check=True, capture_output=True, timeout=60
            )
            built.replace(library)  # in one step: another process may be doing the same
    return library


def _processor() -> str:
    """What -march=native looks at, since a cache may be shared by different machines."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"
