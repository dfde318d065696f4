"""Files that are written as a whole, and folders that hold one run.

A command may be interrupted at any moment, and started again with other options: a file must never be half of one, and
a folder never hold the results of two runs. What goes wrong with either is one clear line.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import LeapformerError

LOCK = ".lock"
GRACE_S = 2.0  # for a process that was ended, and what it started, to give a folder back
_MISSING = object()
_log = logging.getLogger(__name__)
_SHOWN = 200  # letters of a value in a message
_HOST = re.sub(r"\W", "", os.uname().nodename)[:20] or "host"
_PARTIAL = re.compile(rf"\..+\.{_HOST}-(\d+)-[0-9a-f]{{8}}\.partial")
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_OWNED = "LEAPFORMER_OWNED"  # variable of the environment: the folders of the command that started this process
_locks = dict[str, int]()  # the descriptors of the locks of this process, by folder


# ---------------------------------------------------------------------------------------------------------- whole files
def partial_of(path: Path) -> Path:
    """A new name beside `path` for what will become it: no other process or thread, on any machine, has the same."""
    name = path.name.encode()[:200].decode(errors="ignore")  # a file system takes 255 bytes
    return path.with_name(f".{name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write instead of `path`; it becomes `path` only when the block ends well, and lies on the disk then."""
    partial = partial_of(path)
    try:
        yield partial
        rename(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def rename(old: Path, new: Path) -> None:
    """Rename a file over another one, with its content on the disk first: a crash leaves the one or the other whole."""
    _sync(old)
    os.replace(old, new)
    with suppress(OSError):  # of folders that may not be read, and file systems without it
        _sync(new.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


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
def made_folder(path: str | Path, option: str = "--out") -> Path:
    """The folder of an option, made before minutes are spent on what goes into it.

    Raises LeapformerError if it cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeapformerError(f"{option} {path} cannot be made: {error.strerror}; choose another folder") from error
    return folder


@contextmanager
def owned(path: str | Path, option: str = "--out", *, waits: bool = False) -> Iterator[Path]:
    """The folder of an option, made if need be, for this process and those that it starts alone.

    What is in the folder is to be looked at inside: until then another process may write it. What a killed process of
    this machine left half written is deleted first. A folder that was made for this and stays empty is removed.

    Raises LeapformerError after GRACE_S while another process works here; a command that `waits` says so and waits, for
    what the other one makes is what it would make. Without locks, as some network file systems are set up, a warning is
    logged, and all goes on. A folder that this process, or the one that started it, owns already is given at once.
    """
    folder = Path(path)
    place, around = str(folder.resolve()), owned_folders()
    if place in around:
        yield made_folder(folder, option)
        return
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    made_folder(folder, option)
    try:
        _locks[place] = _taken_lock(folder, option, waits)
        try:
            os.environ[_OWNED] = json.dumps([*around, place])
            _sweep(folder)
            yield folder
        finally:
            os.environ[_OWNED] = json.dumps([one for one in owned_folders() if one != place])
            _give_back(folder, place)
    finally:
        for one in new:
            with suppress(OSError):
                one.rmdir()


def owned_folders() -> list[str]:
    """The folders that this process, or the one that started it, owns."""
    found: list[str] = json.loads(os.environ.get(_OWNED, "[]"))
    return found


def holds_files(folder: Path) -> bool:
    """Whether a folder holds more than what a command leaves that is killed before its first file is written."""
    return folder.is_dir() and any(
        path.name != LOCK and not (path.name[0] == "." and path.suffix == ".partial") for path in folder.iterdir()
    )


def _taken_lock(folder: Path, option: str, waits: bool) -> int:
    """The descriptor of the folder's lock, which this process has."""
    path, end = folder / LOCK, time.monotonic() + GRACE_S
    while True:
        try:
            # Never through a link, and nothing is written: a file of this name may be somebody's.
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # the folder was removed by the process that had made it
            made_folder(folder, option)
            continue
        except OSError as error:
            reason = "is a link; remove it" if path.is_symlink() else f"cannot be written: {error.strerror}"
            raise LeapformerError(f"{option} {folder}: {path} {reason}, or choose another folder") from error
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            os.close(lock)
            raise LeapformerError(f"{option} {folder}: {path} is no file; remove it, or choose another folder")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                _log.warning(
                    "%s: its file system has no locks (%s); let no other command write to it", folder, error.strerror
                )
                return lock
        else:
            if _is_at(lock, path):  # else its owner has removed it
                os.set_inheritable(lock, True)  # trainings hold it, too, should this process be killed
                return lock
        os.close(lock)
        if time.monotonic() > end and waits:
            _log.warning("%s: another process is making what is needed here; waiting for it", folder)
            end = math.inf
        if time.monotonic() > end:
            raise LeapformerError(
                f"{option} {folder}: another process, or a training that it started, is running here; wait for it or "
                "end it, or choose another folder"
            )
        time.sleep(0.05)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _give_back(folder: Path, place: str) -> None:
    """Close the lock, and remove its file unless a training that was left behind has it still."""
    if (lock := _locks.pop(place, None)) is None:
        return  # this process is a fork
    os.close(lock)
    path = folder / LOCK
    with suppress(OSError):
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, path) and not os.fstat(lock).st_size:
                path.unlink()
        finally:
            os.close(lock)


def _sweep(folder: Path) -> None:
    """Delete what processes of this machine that have ended left half written in a folder and in those in it."""
    for path in [*folder.glob(".*.partial"), *folder.glob("*/.*.partial")]:
        name = _PARTIAL.fullmatch(path.name)
        if name is None or _runs(int(name[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _leave_to_parent() -> None:
    """In a fork, such as a reader of data: do not hold folders should the process that owns them be killed."""
    for lock in _locks.values():
        with suppress(OSError):
            os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


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

    A command calls it in a folder that it owns (see `owned`). The file `record` in the folder keeps `about`, and the
    `signature` if one is given. Values that it lacks are added if it `grows`, else they differ. `what` is the noun for
    such a run. Raises LeapformerError when the record has other values or is damaged, when there is none although the
    folder is not empty, unless the run may lie `among_others` (other files), and when folder or record cannot be
    written.
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
    elif not among_others and holds_files(folder):
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
