"""The one exception for what a user can correct, and what the exceptions of Python and its libraries mean to a user.

The command line prints either as a single line.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

TRACEBACK = "LEAPFORMER_TRACEBACK"  # variable of the environment: commands print tracebacks
SHOWN = 300  # letters of a message of somebody else


class LeapformerError(ValueError):
    """A user's value, file or combination of options is wrong.

    The message is one line that names the value, the reason and the remedy.
    """


def one_line(error: LeapformerError) -> str:
    """The message alone: an error from a data loader's worker process comes with its traceback in front."""
    return str(error).strip().splitlines()[-1].rpartition(f"{LeapformerError.__name__}: ")[2]


def suggestion(name: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown name, as part of a message: "did you mean leap or local? ", or nothing."""
    from difflib import get_close_matches  # only here, where time no longer matters

    near = get_close_matches(name, known, n=2, cutoff=0.65)
    return f"did you mean {' or '.join(near)}? " if near else ""


# ------------------------------------------------------------------------------------- exceptions that are not our own
#: what an error number of the operating system means, and the remedy
_NUMBERS = {
    errno.ENOENT: ("no such file or folder", "check the path"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "check the path"),
    errno.EISDIR: ("it is a folder", "give a file"),
    errno.EEXIST: ("it exists already", "delete it or choose another path"),
    errno.EACCES: ("permission denied", "change its permissions or choose another path"),
    errno.EPERM: ("the operation is not permitted", "change its permissions or choose another path"),
    errno.EROFS: ("the file system is read-only", "choose another path"),
    errno.ENOSPC: ("the disk is full", "make room, and repeat the command"),
    errno.EDQUOT: ("the disk quota is used up", "make room, and repeat the command"),
    errno.EFBIG: ("a limit of file sizes was reached", "raise it (`ulimit -f`), and repeat the command"),
    errno.EIO: ("the disk reports an error", "check it, or choose another path"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
    errno.EMFILE: ("too many files are open", "raise the limit (`ulimit -n`)"),
    errno.EADDRINUSE: ("the address is in use", "choose another port"),
}
#: exceptions of what reads files, for a file with another content
_OF_READERS = frozenset(
    (
        *(
            "builtins.UnicodeDecodeError",
            "builtins.EOFError",
            "json.decoder.JSONDecodeError",
            "tomllib.TOMLDecodeError",
        ),
        *("yaml.error.YAMLError", "zlib.error", "lzma.LZMAError", "gzip.BadGzipFile", "zipfile.BadZipFile"),
        *("tarfile.TarError", "_csv.Error", "_pickle.UnpicklingError", "struct.error"),
        *("soundfile.LibsndfileError", "xml.etree.ElementTree.ParseError"),
    )
)
#: packages by the extra that brings each; "": every installation has it
_EXTRAS = {
    **dict.fromkeys(("torch", "fairseq", "fairseq_cli", "hydra", "omegaconf", "PIL", "matplotlib"), "train"),
    **dict.fromkeys(("sacrebleu", "scipy", "sklearn", "tabulate", "tqdm", "yaml"), "train"),
    **{"simuleval": "simul", "entmax": "bench", "onnx": "onnx", "onnxscript": "onnx"},
    **dict.fromkeys(("numpy", "onnxruntime", "sentencepiece", "soundfile", "websockets"), ""),
}
_NAMES_OF_FILES = ("path", "file", "filename", "file_name", "fname", "file_path", "input_file", "local_path", "fn", "f")


def explained(error: BaseException) -> LeapformerError | None:
    """The user's error behind an exception of the operating system, or of what reads files; None for any other."""
    if isinstance(error, LeapformerError):
        return error
    message = _missing_package(error) or _damaged_file(error) or _encoding(error) or _memory(error)
    if message is None and isinstance(error, OSError):
        message = _system(error)
    return LeapformerError(message) if message else None


def first_line(error: BaseException) -> str:
    """What an exception says, on one line; of one from another process, which brings its traceback, the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if any(line.startswith(("Traceback", "Original Traceback")) for line in lines):
        return lines[-1][:SHOWN]
    return f"{type(error).__name__}: {lines[0][:SHOWN]}"


def frames(error: BaseException) -> Iterator[FrameType]:
    """The calls that an exception passed, the innermost first."""
    passed, trace = [], error.__traceback__
    while trace is not None:
        passed.append(trace.tb_frame)
        trace = trace.tb_next
    return reversed(passed)


def _system(error: OSError) -> str | None:
    """Of an error without a number, such as those that libraries raise, the text is all there is."""
    if error.errno is None:
        text = " ".join(str(error).split())
        return text[:SHOWN] or None
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else _file_of(error)
    if name is None and error.errno not in _NUMBERS:
        return None
    reason, remedy = _NUMBERS.get(error.errno, (str(error.strerror or error), "check the path"))
    return f"{f'{name}: ' if name else ''}{reason}; {remedy}"


def _missing_package(error: BaseException) -> str | None:
    """A package that this installation lacks: one of an extra, or of all installations."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in _EXTRAS:
        return None
    if extra := _EXTRAS[name]:
        return f"the package {name} is not installed; pip install 'leapformer-fairseq[{extra}]'"
    return f"{name} is not installed; pip install {name}"


def _damaged_file(error: BaseException) -> str | None:
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    name = _file_of(error) if names & _OF_READERS else None
    return f"{name} cannot be read ({first_line(error)}); check it, or replace it" if name else None


def _encoding(error: BaseException) -> str | None:
    if not isinstance(error, UnicodeEncodeError):
        return None
    letter = error.object[error.start]
    return f"the output takes {error.encoding} only, which has no {letter!r}; set PYTHONIOENCODING=utf-8"


def _memory(error: BaseException) -> str | None:
    """Python's, and those of PyTorch for a CPU and a GPU."""
    said = re.search(r"(CUDA |)out of memory[^\n]*?(Tried to allocate [\d.]+ \w+)?|can't allocate memory", str(error))
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and said):
        return None
    where = "the GPU" if said and said[1] else "this machine"
    return f"{where} is out of memory; give smaller batches (--max-tokens, --batch-size), or use fewer processes"


def _file_of(error: BaseException) -> str | None:
    """The file that the innermost call was at work on: an open one, or an existing one under a usual name."""
    for frame in frames(error):
        variables = frame.f_locals
        for value in variables.values():
            name = getattr(value, "name", None) if callable(getattr(value, "read", None)) else None
            if isinstance(name, str) and not name.startswith("<"):
                return name
        for name in _NAMES_OF_FILES:
            if _exists(value := variables.get(name)):
                return str(value)
    return None


def _exists(value: Any) -> bool:
    try:
        return isinstance(value, (str, Path)) and bool(str(value)) and Path(value).exists()
    except (OSError, ValueError):  # a text, not a path
        return False
