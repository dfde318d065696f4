"""Kernels in C, compiled into the user's cache on first use. Everything works without them, only slower.

Without a compiler, with a read-only cache or on another platform, the functions below return None and everything runs
in PyTorch. `LEAPFORMER_NATIVE=0` turns the kernels off.
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
from contextvars import ContextVar
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = tuple(FOLDER / name for name in ("linear_step.c", "recurrent_step.c", "slot_step.c", "scan.c"))
HEADERS = (FOLDER / "scan_body.h",)
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu99", "-pthread")
SWITCH = "LEAPFORMER_NATIVE"
MAX_DIM = 1024  # as in linear_step.c and recurrent_step.c
MAX_SLOTS = 1024  # as in slot_step.c
_off: ContextVar[bool] = ContextVar("kernels in C are turned off", default=False)


class Sizes(ctypes.Structure):
    """`Sizes` of linear_step.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "heads", "dim", "values", "shared", "update")),
        *((name, ctypes.c_int32) for name in ("activation", "reweighted", "hidden", "network_stride", "pairs")),
        *((name, ctypes.c_int32) for name in ("raw", "gate")),
        ("floor", ctypes.c_float),
    ]


class RecurrentSizes(ctypes.Structure):
    """`RecurrentSizes` of recurrent_step.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "heads", "dim", "values", "shared", "update")),
        *((name, ctypes.c_int32) for name in ("features", "gate", "strength", "output", "gates", "swish")),
        *((name, ctypes.c_float) for name in ("scale", "floor", "most")),
    ]


class SlotSizes(ctypes.Structure):
    """`SlotSizes` of slot_step.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "heads", "dim", "value_dim", "slots", "shared")),
        *((name, ctypes.c_int32) for name in ("key", "value", "summed", "normalized", "masked")),
        *((name, ctypes.c_float) for name in ("floor", "scale")),
    ]


class Scan(ctypes.Structure):
    """`Scan` of scan.c."""

    STRIDES = ("q", "k", "v", "out", "to_q", "to_k", "to_v", "to_out", "query_turns", "key_turns")
    TENSORS = (
        *("q", "k", "v", "query_turns", "key_turns", "query_network", "key_network", "decay", "strength"),
        *("keep", "first"),
        *("out", "normalizer", "last", "states", "to_out", "to_last", "to_q", "to_k", "to_v"),
        *("to_query_network", "to_key_network", "to_decay", "to_strength", "to_first"),
    )
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "dim", "values")),
        *((name, ctypes.c_int64) for name in ("shared", "growing", "unit", "gain", "ahead", "block", "activation")),
        *((name, ctypes.c_int64) for name in ("turned", "hidden", "per_head", "raw", "normalizes", "segments")),
        ("threads", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("floor", "query_scale")),
        *((f"{name}_strides", ctypes.c_int64 * 3) for name in STRIDES),
        *((name, ctypes.c_void_p) for name in TENSORS),
    ]


_POINTER, _STRIDE = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "leapformer_step": (ctypes.POINTER(Sizes), _POINTER, _STRIDE, *[_POINTER] * 6),
    "leapformer_recurrent_step": (ctypes.POINTER(RecurrentSizes), _POINTER, _STRIDE, *[_POINTER] * 3),
    "leapformer_slot_step": (ctypes.POINTER(SlotSizes), _POINTER, _STRIDE, _POINTER, *[_STRIDE] * 2, *[_POINTER] * 4),
    "leapformer_scan": (ctypes.POINTER(Scan), ctypes.c_int, ctypes.c_int),
}
_FAILS = ("leapformer_scan",)  # these return a number other than 0 if there is not enough memory


def step() -> Callable[..., None] | None:
    """`leapformer_step` of linear_step.c, or None if it is unavailable or turned off."""
    return _function("leapformer_step")


def recurrent_step() -> Callable[..., None] | None:
    """`leapformer_recurrent_step` of recurrent_step.c, or None if it is unavailable or turned off."""
    return _function("leapformer_recurrent_step")


def slot_step() -> Callable[..., None] | None:
    """`leapformer_slot_step` of slot_step.c, or None if it is unavailable or turned off."""
    return _function("leapformer_slot_step")


def scan() -> Callable[..., int] | None:
    """`leapformer_scan` of scan.c, or None if it is unavailable or turned off."""
    return _function("leapformer_scan")


def _function(name: str) -> Callable[..., Any] | None:
    library = None if _off.get() or os.environ.get(SWITCH) == "0" else load()
    return None if library is None else getattr(library, name)


@contextmanager
def turned_off() -> Iterator[None]:
    """Run everything in PyTorch inside this context, in this thread, for comparisons."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, compiled if the cache has none for this processor; None if that fails, which is logged once."""
    try:
        library = ctypes.CDLL(str(_compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: no home directory
        logger.info("attention in PyTorch, since its kernels in C could not be compiled: %s", error)
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int if name in _FAILS else None
    return library


def _compiled() -> Path:
    """The path of the shared library for these sources and this processor; compiles it if it does not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leapformer_fairseq"
    parts = [*(source.read_text() for source in (*SOURCES, *HEADERS)), *FLAGS, _processor()]
    identity = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    library = cache / f"kernels-{identity}.so"
    if not library.exists():
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise OSError("there is no C compiler (install gcc or clang, or name one by CC)")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            built = Path(folder) / library.name
            command = [compiler, *FLAGS, *map(str, SOURCES), "-o", str(built), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            built.replace(library)  # atomically: another process may be doing the same
    return library


def _processor() -> str:
    """What -march=native depends on; part of the library's name, since different machines may share a cache."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"
