"""LeapformerError, for what a user can correct, and explanations of exceptions raised by Python and its libraries.

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

TRACEBACK = "LEAPFORMER_TRACEBACK"  # environment variable: commands print tracebacks
SHOWN = 300  # characters quoted from another library's message


class LeapformerError(ValueError):
    """An error that the user can correct: a wrong value, file or combination of options.

    The message is one line that names the value, the reason and the remedy.
    """


def one_line(error: LeapformerError) -> str:
    """Return the message without the traceback that precedes it if the error comes from a data loader's worker."""
    return str(error).strip().splitlines()[-1].rpartition(f"{LeapformerError.__name__}: ")[2]


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Suggest up to two choices close to a mistyped name ("did you mean leap or local? "), or return ""."""
    from difflib import get_close_matches  # imported here: only a failing command pays for it

    near = get_close_matches(name, choices, n=2, cutoff=0.65)
    return f"did you mean {' or '.join(near)}? " if near else ""


# ------------------------------------------------------------------------------------- exceptions of other libraries
#: errno -> reason, remedy
_NUMBERS = {
    errno.ENOENT: ("no such file or folder", "check the path"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "check the path"),
    errno.EISDIR: ("it is a folder", "give a file"),
    errno.EEXIST: ("it already exists", "delete it or choose another path"),
    errno.EACCES: ("permission denied", "change its permissions or choose another path"),
    errno.EPERM: ("the operation is not permitted", "change its permissions or choose another path"),
    errno.EROFS: ("the file system is read-only", "choose another path"),
    errno.ENOSPC: ("the disk is full", "free some space, and repeat the command"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, and repeat the command"),
    errno.EFBIG: ("a limit of file sizes was reached", "raise it (`ulimit -f`), and repeat the command"),
    errno.EIO: ("the disk reports an error", "check it, or choose another path"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
    errno.EMFILE: ("too many files are open", "raise the limit (`ulimit -n`)"),
    errno.EADDRINUSE: ("the address is in use", "choose another port"),
}
# By name, so that explaining an error imports none of these libraries.
#: exceptions that parsers raise for a damaged file or one of another format
_PARSER_ERRORS = frozenset(
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
    **dict.fromkeys(("praatio", "sacrebleu", "scipy", "sklearn", "tqdm", "yaml"), "train"),
    **{"simuleval": "simul", "entmax": "bench", "onnx": "onnx", "onnxscript": "onnx"},
    **dict.fromkeys(("numpy", "onnxruntime", "sentencepiece", "soundfile", "websockets"), ""),
}
#: names of local variables, in our code and in libraries, that hold the path of the file being read
_PATH_VARIABLES = ("path", "file", "filename", "file_name", "fname", "file_path", "input_file", "local_path", "fn", "f")


def explained(error: BaseException) -> LeapformerError | None:
    """Translate an exception of the operating system or of a file parser; None if it is not the user's to correct."""
    if isinstance(error, LeapformerError):
        return error
    message = _missing_package(error) or _damaged_file(error) or _encoding(error) or _memory(error)
    if message is None and isinstance(error, OSError):
        message = _system(error)
    return LeapformerError(message) if message else None


def first_line(error: BaseException) -> str:
    """Summarise an exception in one line: its type and first line, or the last line of a traceback in its message.

    Exceptions from other processes carry their traceback in the message.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if any(line.startswith(("Traceback", "Original Traceback")) for line in lines):
        return lines[-1][:SHOWN]
    return f"{type(error).__name__}: {lines[0][:SHOWN]}"


def frames(error: BaseException) -> Iterator[FrameType]:
    """Iterate over the stack frames that an exception passed through, innermost first."""
    stack, trace = [], error.__traceback__
    while trace is not None:
        stack.append(trace.tb_frame)
        trace = trace.tb_next
    return reversed(stack)


def place_in(folder: Path, error: BaseException) -> str:
    """The innermost file and line in a folder that an exception passed through, with a colon; "" if there is none."""
    inside = [frame for frame in frames(error) if Path(frame.f_code.co_filename).is_relative_to(folder)]
    return f"{inside[0].f_code.co_filename}, line {inside[0].f_lineno}: " if inside else ""


def _system(error: OSError) -> str | None:
    if error.errno is None:  # raised by a library with nothing but a text
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
    name = _file_of(error) if names & _PARSER_ERRORS else None
    return f"{name} cannot be read ({first_line(error)}); check it, or replace it" if name else None


def _encoding(error: BaseException) -> str | None:
    if not isinstance(error, UnicodeEncodeError):
        return None
    letter = error.object[error.start]
    return f"the output takes {error.encoding} only, which has no {letter!r}; set PYTHONIOENCODING=utf-8"


def _memory(error: BaseException) -> str | None:
    """Explain Python's MemoryError and PyTorch's RuntimeError for a CPU or a GPU."""
    match = re.search(r"(CUDA |)out of memory[^\n]*?(Tried to allocate [\d.]+ \w+)?|can't allocate memory", str(error))
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and match):
        return None
    where = "the GPU" if match and match[1] else "this machine"
    return f"{where} is out of memory; give smaller batches (--max-tokens, --batch-size), or use fewer processes"


def _file_of(error: BaseException) -> str | None:
    """The file that was being read, from the local variables of the stack: an open file, or an existing path.

    Parsers are given a stream or a string and their exceptions do not name the file.
    """
    for frame in frames(error):
        variables = frame.f_locals
        for value in variables.values():
            name = getattr(value, "name", None) if callable(getattr(value, "read", None)) else None
            if isinstance(name, str) and not name.startswith("<"):
                return name
        for name in _PATH_VARIABLES:
            if _exists(value := variables.get(name)):
                return str(value)
    return None


def _exists(value: Any) -> bool:
    try:
        return isinstance(value, (str, Path)) and bool(str(value)) and Path(value).exists()
    except (OSError, ValueError):  # a text, too long for a path or with a null character
        return False
