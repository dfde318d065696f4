"""Kernels in C, compiled into the user's cache on first use. Everything works without them, only slower.

Without a compiler, with a read-only cache or on another platform, the functions below return None and everything runs
in PyTorch; `reason` says why, as does `leapformer doctor`. `LEAPFORMER_NATIVE=0` turns the kernels off.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = tuple(
    FOLDER / name for name in ("linear_step.c", "recurrent_step.c", "slot_step.c", "scan.c", "scan_double.c")
)
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu99", "-pthread")
SWITCH = "LEAPFORMER_NATIVE"
OFF = ("0", "false", "no", "off")  # its values that turn kernels off, in any case
PATIENCE_S = 120  # a compiler that takes longer hangs; not tried again for a day, see `_library`
OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH  # rights to write
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


class Scan(NamedTuple):
    """The numbers of `Scan` of scan.c, before its tensors. Packed as bytes, which takes less time than a structure."""

    batch: int
    heads: int
    queries: int
    keys: int
    dim: int
    values: int
    shared: int
    growing: int
    unit: int
    gain: int
    ahead: int
    block: int
    activation: int
    turned: bool
    hidden: int
    gates: int
    raw: bool
    normalizes: bool
    threads: int
    floor: float
    query_scale: float

    def packed(self, tensors: Mapping[str, tuple[int, ...]]) -> bytes:
        """With the address and three strides of each tensor that there is."""
        return _SCAN.pack(*self, *chain.from_iterable({**_NO_TENSORS, **tensors}.values()))


_SCAN_TENSORS = (
    *("q", "query_turns", "query_network", "to_q", "to_query_network"),  # `Tokens`
    *("k", "key_turns", "key_network", "to_k", "to_key_network"),
    *("v", "to_v", "decay", "to_decay", "strength", "to_strength", "keep", "first", "to_first"),
    *("last", "to_last", "out", "to_out", "normalizer", "states"),
)
_NO_TENSORS = dict.fromkeys(_SCAN_TENSORS, (0, 0, 0, 0))
_SCAN = struct.Struct(f"19q2d{4 * len(_SCAN_TENSORS)}q")

_POINTER, _STRIDE = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "leapformer_step": (ctypes.POINTER(Sizes), _POINTER, _STRIDE, *[_POINTER] * 6),
    "leapformer_recurrent_step": (ctypes.POINTER(RecurrentSizes), _POINTER, _STRIDE, *[_POINTER] * 3),
    "leapformer_slot_step": (ctypes.POINTER(SlotSizes), _POINTER, _STRIDE, _POINTER, *[_STRIDE] * 2, *[_POINTER] * 4),
    "leapformer_scan_float": (ctypes.c_char_p, ctypes.c_int),
    "leapformer_scan_double": (ctypes.c_char_p, ctypes.c_int),
}
_FAILS = ("leapformer_scan_float", "leapformer_scan_double")  # they return 1 if there is not enough memory


def _are_off() -> bool:
    """Whether the environment, or `turned_off` in this thread, turns kernels off."""
    return _off.get() or os.environ.get(SWITCH, "").lower() in OFF


def _function(name: str) -> Callable[..., Any] | None:
    library = None if _are_off() else load()
    return None if library is None else getattr(library, name)


# Each gives its function of the library, or None if kernels are unavailable or turned off.
step = functools.partial(_function, "leapformer_step")
recurrent_step = functools.partial(_function, "leapformer_recurrent_step")
slot_step = functools.partial(_function, "leapformer_slot_step")
scan = functools.partial(_function, "leapformer_scan_float")  # there with the one for float64, or not


@contextmanager
def turned_off() -> Iterator[None]:
    """Run everything in PyTorch inside this context, in this thread, for comparisons."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def load() -> ctypes.CDLL | None:
    """The library, compiled if the cache has none for this processor; None if that fails, which is said once."""
    loaded = _loaded()
    return None if isinstance(loaded, str) else loaded


def reason() -> str | None:
    """Why kernels in C do not run here, in one line; None if they do."""
    if _are_off():
        return "turned off in this thread" if _off.get() else f"{SWITCH}={os.environ[SWITCH]}"
    loaded = _loaded()
    return loaded if isinstance(loaded, str) else None


@functools.cache
def _loaded() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    try:
        return _library()
    except RuntimeError:  # of Path.home
        problem = "there is no home directory; name a cache by XDG_CACHE_HOME"
    except (OSError, ValueError) as error:  # ValueError: what should be text is none
        problem = " ".join(str(error).split())
    logger.warning("attention runs in PyTorch, which is slower: %s (%s=0 silences this)", problem, SWITCH)
    return problem


_one_at_a_time = threading.Lock()


class _Lasting(OSError):
    """A failure that takes long: this compiler is not tried again for a day."""


def _library() -> ctypes.CDLL:
    """The shared library for these sources and this processor; compiles it if the cache has none that can be loaded.

    Its name holds a digest of its content: a file that was cut off, as by a full disk, ends a process that loads it, so
    that another process loads a new one first. Raises OSError with the reason.
    """
    cache = _cache()
    parts = [*(source.read_text() for source in SOURCES), *FLAGS, _processor()]
    name = f"kernels-{_digest(chr(0).join(parts).encode())}"
    with _one_at_a_time:
        for library in cache.glob(f"{name}-*.so"):
            with suppress(OSError, AttributeError):
                if _is_ours(library.stat()) and library.stem == f"{name}-{_digest(library.read_bytes())}":
                    return _opened(library)
        compiler = _compiler()
        failed = cache / f"{name}-{_digest(chr(0).join(compiler).encode())}.failed"
        if failed.exists() and time.time() - failed.stat().st_mtime < 24 * 3600:
            raise OSError(f"{failed.read_text('utf-8')}; to try again within a day, delete {failed}")
        with _folder_in(cache) as folder:
            built = Path(folder) / "kernels.so"
            command = [*compiler, *FLAGS, *map(str, SOURCES), "-o", str(built), "-lm"]
            loads = [sys.executable or "python3", "-I", "-S", "-c", _LOADS, str(built), *_ARGUMENTS]
            try:
                _run(command, f"the C compiler {compiler[0]} failed")
                _run(loads, f"what the C compiler {compiler[0]} wrote cannot be loaded", _Lasting)
            except _Lasting as error:
                failed.write_text(str(error), "utf-8", "replace")
                raise
            built.chmod(0o755)
            # Atomically: another process may be doing the same.
            return _opened(built.replace(cache / f"{name}-{_digest(built.read_bytes())}.so"))


_LOADS = "import ctypes, sys; [ctypes.CDLL(sys.argv[1])[name] for name in sys.argv[2:]]"


def _opened(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int if name in _FAILS else None
    return library


def _cache() -> Path:
    """The folder of libraries. Raises OSError if there is none, or if others may write to it: what is in it is run.

    To yours others lose that right (a umask of 002 gives it to a group); libraries of theirs in it are not loaded.
    """
    if os.name != "posix":
        raise OSError(f"kernels in C need a POSIX system, and this is {platform.system()}; run it there, or without")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leapformer_fairseq"
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = cache.stat()
        if found.st_uid == os.geteuid() and found.st_mode & OF_OTHERS:
            cache.chmod(stat.S_IMODE(found.st_mode) & ~OF_OTHERS)
            found = cache.stat()
    except OSError as error:
        raise _unwritable(cache, error) from error
    if not _is_ours(found):
        raise OSError(f"others may write to {cache}; take the right from them, or name another cache by XDG_CACHE_HOME")
    return cache


def _is_ours(found: os.stat_result) -> bool:
    """Whether only the user who runs this, or root, may write to a file or folder."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & OF_OTHERS


def _folder_in(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """A new folder in the cache, removed with its content. Raises OSError if the cache cannot be written."""
    try:
        return tempfile.TemporaryDirectory(dir=cache)
    except OSError as error:
        raise _unwritable(cache, error) from error


def _unwritable(cache: Path, error: OSError) -> OSError:
    return OSError(f"{cache} cannot be written ({error.strerror}); name another cache by XDG_CACHE_HOME")


def _compiler() -> list[str]:
    """The command of the C compiler. Raises OSError if there is none."""
    given = os.environ.get("CC", "")
    try:
        command = shlex.split(given) or ["cc"]
    except ValueError:  # a quote that does not close
        command = [given]
    program = shutil.which(command[0])
    if program is None:
        raise OSError(f"there is no C compiler {command[0]!r}; install gcc or clang, or name it by CC")
    return [program, *command[1:]]


def _run(command: list[str], problem: str, kind: type[OSError] = OSError) -> None:
    """Run a command. Raises OSError of this kind, with the problem and its reason, if it fails, and _Lasting, after it
    was ended, if it takes too long."""
    remedy = "name another compiler by CC, or another cache by XDG_CACHE_HOME"
    pipes: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        # In a session of its own, so that the programs that it has started can be ended with it.
        process = subprocess.Popen(command, start_new_session=True, text=True, errors="replace", **pipes)
    except OSError as error:
        raise OSError(f"{problem}: {error.strerror}; {remedy}") from error
    with process:
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _Lasting(f"{problem}: it took longer than {PATIENCE_S} s; {remedy}") from None
            raise
    if process.returncode:
        lines = said.splitlines()
        first = next(filter(_ERROR.search, lines), next(iter(lines), "it said nothing"))
        raise kind(f"{problem} (status {process.returncode}): {first}; {remedy}")


_ERROR = re.compile("error: (?!ld returned|linker command)", re.IGNORECASE)  # the linker's error is in a line before


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _processor() -> str:
    """What a library depends on besides its sources; part of its name, since different machines may share a cache.

    That are the instructions that -march=native finds, or, if the system does not tell them, the machine; and the C
    library.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.node())
    return f"{platform.system()} {platform.machine()} {platform.processor()} {platform.libc_ver()} {flags}"
