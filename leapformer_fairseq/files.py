"""Files that are written as a whole, and folders that hold one run.

A command may be interrupted at any moment, and started again with other options: a file must never be half of one, and
a folder never hold the results of two runs. What goes wrong with either is one clear line.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import LeapformerError

_MISSING = object()
_SHOWN = 200  # letters of a value in a message


# ---------------------------------------------------------------------------------------------------------- whole files
@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write instead of `path`; it becomes `path` only when the block ends well."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str, option: str = "") -> None:
    """Write a file as a whole or not at all; a device, a pipe or a link, such as /dev/stdout, is written into.

    Raises LeapformerError when it cannot be written. `option` is the one that the path comes from, if another value of
    it would help.
    """
    path = Path(path)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
        else:
            with replacing(path) as partial:
                partial.write_text(text, encoding="utf-8")
    except OSError as error:
        name, remedy = (f"{option} {path}", "; choose another file") if option else (f"{path}", "")
        raise LeapformerError(f"{name} cannot be written: {error.strerror}{remedy}") from error


def write_with(path: str | Path, write: Callable[[Path], object], kept: str = "") -> None:
    """Let `write` make a file as a whole or not at all, such as a picture or a file of tensors.

    Raises LeapformerError when it cannot be written. `kept` says what is not lost, and what to do.
    """
    path = Path(path)
    try:
        with replacing(path) as partial:
            write(partial)
    except OSError as error:
        reason = error.strerror or str(error)
    except RuntimeError:  # of PyTorch, whose reason is a page about its own code
        reason = "the disk is full, or a limit of file sizes was reached"
    else:
        return
    raise LeapformerError(f"{path} cannot be written: {reason}; {kept or 'make room, and repeat the command'}")


def write_json(path: str | Path, content: Any, option: str = "") -> None:
    """Write `content` as JSON for people to read, too. Raises LeapformerError as `write_text` does."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", option)


def read_json(
    path: Path, needed: Sequence[str] = (), remedy: str = "delete it, and the same command makes it again"
) -> dict[str, Any]:
    """The JSON object that a command left in a file.

    Raises LeapformerError with the `remedy` when the file cannot be read or is damaged: no JSON, no object, or without
    a `needed` name.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        if missing := [name for name in needed if name not in found]:
            raise ValueError(f"without {missing[0]!r}")
    except OSError as error:
        raise LeapformerError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    except ValueError as error:
        raise LeapformerError(f"{path} is damaged ({error}); {remedy}") from error
    return found


# -------------------------------------------------------------------------------------------------------------- folders
def made_folder(path: str | Path) -> Path:
    """The folder of --out, made before minutes are spent on what goes into it. Raises LeapformerError if it cannot."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeapformerError(f"--out {path} cannot be made: {error.strerror}; choose another folder") from error
    return folder


def locked_folder(
    path: str | Path,
    record: str,
    about: Mapping[str, Any],
    what: str,
    signature: str = "",
    *,
    grows: bool = False,
    among_others: bool = False,
) -> Path:
    """The folder of --out, made that of the one run which `about` describes, or found so: runs are never mixed.

    The file `record` in it keeps `about`, and the `signature` if one is given. Values that it lacks are added if it
    `grows`, else they differ. `what` is the noun for such a run. Raises LeapformerError when the record has other
    values or is damaged, when there is none although the folder is not empty, unless the run may lie `among_others`
    (other files), and when folder or record cannot be written.
    """
    folder, found = Path(path), dict[str, Any]()
    kept = folder / record
    wanted = json.loads(json.dumps(about))  # as it is read again: a tuple becomes a list
    if kept.is_file():
        found = read_json(kept, remedy="choose another folder or delete all of this one")
        for name, ours in wanted.items():
            theirs = found.get(name, ours if grows else _MISSING)
            if theirs != ours:
                raise LeapformerError(
                    f"--out {folder} holds a {what} with another {_difference(name, theirs, ours)}; "
                    "choose another folder or delete it"
                )
    elif not among_others and folder.is_dir() and any(folder.iterdir()):
        raise LeapformerError(f"--out {folder} is not empty and holds no {what}; choose another folder")
    made_folder(path)
    if not wanted.keys() <= found.keys():
        write_json(kept, {**found, **wanted, **({"signature": signature} if signature else {})}, "--out")
    return folder


@contextmanager
def replacing_folder(path: str | Path, record: str, names: Container[str], what: str) -> Iterator[Path]:
    """A folder to make instead of that of --out; it becomes --out as a whole, when the block ends well.

    What is replaced must be such a folder, `what` it is called: with a `record` and other files of these `names` only.
    It keeps its place until another takes it, at once where the system can exchange folders. Raises LeapformerError
    for anything else in the way, and where nothing can be written.
    """
    folder = Path(path).resolve()
    _check_replaced(path, folder, record, names, what)
    partial = folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.partial")
    try:
        with _written(path):
            partial.mkdir(parents=True)
        yield partial
        with _written(path):
            for file in partial.iterdir():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
            _check_replaced(path, folder, record, names, what)
            _take_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _written(path: str | Path) -> Iterator[None]:
    """Raises LeapformerError where the system cannot write beside --out."""
    try:
        yield
    except OSError as error:
        raise LeapformerError(f"--out {path} cannot be written: {error.strerror}; choose another folder") from error


def _check_replaced(path: str | Path, folder: Path, record: str, names: Container[str], what: str) -> None:
    """Raises LeapformerError where files would be lost that no command like this one made."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise LeapformerError(f"--out {path} is a file; choose another folder")
    found = sorted(one.name for one in folder.iterdir())
    if found and not (folder / record).is_file():
        raise LeapformerError(f"--out {path} is not empty and holds no {what}; choose another folder")
    foreign = next((name for name in found if name not in names or not (folder / name).is_file()), None)
    if foreign is not None:
        raise LeapformerError(
            f"--out {path} has {foreign} in it, which is of no {what} and would be lost; choose another folder"
        )


def _take_place(new: Path, old: Path) -> None:
    """Rename a folder; what had the name has that of the new one then, if it had anything in it."""
    try:
        os.rename(new, old)  # where there is none, or an empty one
    except OSError:
        if not old.is_dir():
            raise
        if not _exchanged(new, old):
            aside = new.with_suffix(".old")
            os.rename(old, aside)
            try:
                os.rename(new, old)
            except OSError:
                os.rename(aside, old)
                raise
            os.rename(aside, new)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two names were exchanged at once, which Linux can on most file systems."""
    import ctypes

    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _difference(name: str, theirs: Any, ours: Any) -> str:
    """In words, two values that differ; of two dictionaries the first values in them that do."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for inner in {**ours, **theirs}:
            one, other = theirs.get(inner, _MISSING), ours.get(inner, _MISSING)
            if one != other:
                return _difference(f"{inner} in {name}", one, other)
    return f"{name} ({_short(theirs)}, not {_short(ours)})"


def _short(value: Any) -> str:
    """Some of the value, on one line."""
    text = "nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) < _SHOWN else text[: _SHOWN - 3] + "..."


# ------------------------------------------------------------------------------------------------------- moved folders
def paths_beside(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A data configuration of `folder` with the paths in it as they are now, wherever the folder is.

    Relative ones of the audio and the statistics are looked for in the folder. Of an absolute one that is gone, what is
    found in the folder by the end of the path is taken; an audio root that held the statistics was the folder itself.
    """
    statistics = config.get("global_cmvn")
    held = str(Path(str(statistics.get("stats_npz_path"))).parent) if isinstance(statistics, Mapping) else None

    def now(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return paths_beside(value, folder)
        if not isinstance(value, str) or not value:
            return value
        if not Path(value).is_absolute():
            beside = folder / value
            return str(beside) if name in ("audio_root", "stats_npz_path") and beside.exists() else value
        found = moved(value, folder)
        return str(folder if name == "audio_root" and value == held and not found.exists() else found)

    return {name: now(name, value) for name, value in config.items()}


def moved(path: str | Path, folder: Path) -> Path:
    """The path, or if it is absolute and gone, what is found in `folder` by its end."""
    path = Path(path)
    if not path.is_absolute() or path.exists():
        return path
    ends = (folder.joinpath(*path.parts[i:]) for i in range(1, len(path.parts)))
    return next((end for end in ends if end.exists()), path)
