"""Atomic file writes, and folders that one process owns and that hold one run.

A command may be interrupted at any moment and started again with other options: no file may be left half written, and
no folder may mix the results of two runs. Failures are reported as a LeapformerError.
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
GRACE_S = 2.0  # seconds that a terminated process and its children have to release a folder
_MISSING = object()
_log = logging.getLogger(__name__)
_SHOWN = 200  # characters of a value in a message
_HOST = re.sub(r"\W", "", os.uname().nodename)[:20] or "host"
_PARTIAL = re.compile(rf"\..+\.{_HOST}-(\d+)-[0-9a-f]{{8}}\.partial")
#: errors of file systems without locks or fsync, as some network file systems are set up
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_OWNED = "LEAPFORMER_OWNED"  # environment variable: folders owned by the command that started this process, as JSON
_locks = dict[str, int]()  # folder -> descriptor of the lock that this process holds


# ---------------------------------------------------------------------------------------------------------- whole files
def partial_of(path: Path) -> Path:
    """Return a temporary name beside `path`, unique among threads, processes and machines."""
    name = path.name.encode()[:200].decode(errors="ignore")  # names are limited to 255 bytes
    return path.with_name(f".{name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path`, synced to disk, if the block ends without an exception."""
    partial = partial_of(path)
    try:
        yield partial
        rename(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def rename(old: Path, new: Path) -> None:
    """Replace `new` with `old`, synced to disk first: after a crash, `new` is complete with either content."""
    _sync(old)
    os.replace(old, new)
    with suppress(OSError):  # a folder without read permission, or a file system that cannot sync folders
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
    """Write a file atomically; a device, pipe or link, such as /dev/stdout, is written directly.

    Raises LeapformerError if it cannot be written. `option` is the flag that set the path, if another value would help.
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
    """Write a file atomically with the function `write`, such as a picture or a file of tensors.

    Raises LeapformerError if it cannot be written; `kept` replaces the remedy and says what is not lost.
    """
    path = Path(path)
    try:
        with replacing(path) as partial:
            write(partial)
    except OSError as error:
        reason = error.strerror or str(error)
    except RuntimeError:  # torch.save hides the errno behind a long C++ message
        reason = "the disk is full, or a limit of file sizes was reached"
    else:
        return
    raise LeapformerError(f"{path} cannot be written: {reason}; {kept or 'free some space, and repeat the command'}")


def write_json(path: str | Path, content: Any, option: str = "") -> None:
    """Write indented JSON atomically. Raises LeapformerError like `write_text`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", option)


def read_json(
    path: Path, needed: Sequence[str] = (), remedy: str = "delete it, and the same command makes it again"
) -> dict[str, Any]:
    """Read a JSON object that a command has written.

    Raises LeapformerError with the `remedy` if the file cannot be read, is not a JSON object, or lacks a `needed` key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
        if missing := [name for name in needed if name not in content]:
            raise ValueError(f"without {missing[0]!r}")
    except OSError as error:
        raise LeapformerError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    except ValueError as error:
        raise LeapformerError(f"{path} is damaged ({error}); {remedy}") from error
    return content


# -------------------------------------------------------------------------------------------------------------- folders
def make_folder(path: str | Path, option: str = "--out") -> Path:
    """Create an option's folder, if necessary, before time is spent on its contents.

    Raises LeapformerError if it cannot be created.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeapformerError(f"{option} {path} cannot be created: {error.strerror}; choose another folder") from error
    return folder


class InUse(LeapformerError):
    """Another process holds a folder."""


@contextmanager
def owned(
    path: str | Path, option: str = "--out", *, waits: bool = False, grace_s: float | None = None
) -> Iterator[Path]:
    """Create an option's folder, if necessary, and lock it for this process and its children while the block runs.

    Inspect the folder only inside the block: before that, another process may be writing to it. Partial files left by
    killed processes of this machine are deleted first. A folder that was created here and stays empty is removed.
    Nested calls for a folder that this process or its parent already owns do nothing.

    Raises InUse if another process still holds the folder after `grace_s`, by default GRACE_S; with `waits`, logs a
    warning and waits, for commands that would produce the same files. On file systems without locks, logs a warning and
    goes on. Raises LeapformerError if the folder cannot be created or locked.
    """
    folder = Path(path)
    place, around = str(folder.resolve()), owned_folders()
    if place in around:
        yield make_folder(folder, option)
        return
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    make_folder(folder, option)
    try:
        _locks[place] = _acquire(folder, option, waits, GRACE_S if grace_s is None else grace_s)
        try:
            os.environ[_OWNED] = json.dumps([*around, place])
            sweep(folder)
            yield folder
        finally:
            os.environ[_OWNED] = json.dumps([other for other in owned_folders() if other != place])
            _release(folder, place)
    finally:
        for parent in created:  # innermost first
            with suppress(OSError):  # it is not empty
                parent.rmdir()


def owned_folders() -> list[str]:
    """The folders that this process or its parent owns."""
    folders: list[str] = json.loads(os.environ.get(_OWNED, "[]"))
    return folders


def holds_files(folder: Path, but: str = LOCK) -> bool:
    """Whether a folder holds anything but a lock, partial files, which a killed command leaves behind, and `but`."""
    return folder.is_dir() and any(
        path.name not in (LOCK, but) and not (path.name[0] == "." and path.suffix == ".partial")
        for path in folder.iterdir()
    )


def _acquire(folder: Path, option: str, waits: bool, grace_s: float) -> int:
    """Lock a folder and return the descriptor of its lock file."""
    path, end = folder / LOCK, time.monotonic() + grace_s
    while True:
        try:
            # Links are not followed and nothing is written: a file of this name may belong to the user.
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # the folder was removed by the process that had created it
            make_folder(folder, option)
            continue
        except OSError as error:
            reason = "is a link; remove it" if path.is_symlink() else f"cannot be written: {error.strerror}"
            raise LeapformerError(f"{option} {folder}: {path} {reason}, or choose another folder") from error
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            os.close(lock)
            raise LeapformerError(f"{option} {folder}: {path} is not a file; remove it, or choose another folder")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                _log.warning(
                    "%s: its file system has no locks (%s); let no other command write to it", folder, error.strerror
                )
                return lock
        else:
            # A previous owner may have unlinked the file between open and flock: then others lock a new file.
            if _is_at(lock, path):
                # Trainings inherit the lock, so that it holds for as long as they run if this process is killed.
                os.set_inheritable(lock, True)
                return lock
        os.close(lock)
        if time.monotonic() > end and waits:
            _log.warning("%s: another process is creating what is needed here; waiting for it", folder)
            end = math.inf
        if time.monotonic() > end:
            raise InUse(
                f"{option} {folder}: another process, or a training that it started, is running here; wait for it or "
                "end it, or choose another folder"
            )
        time.sleep(0.05)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _release(folder: Path, place: str) -> None:
    """Close the lock, and remove its file unless a training that outlives this process still holds it."""
    if (lock := _locks.pop(place, None)) is None:
        return  # a fork of the owner, which keeps the lock
    os.close(lock)
    path = folder / LOCK
    with suppress(OSError):
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, path) and not os.fstat(lock).st_size:  # a file with content belongs to the user
                path.unlink()
        finally:
            os.close(lock)


def sweep(folder: Path) -> None:
    """Delete partial files of dead processes of this machine in a folder and its direct subfolders."""
    for path in [*folder.glob(".*.partial"), *folder.glob("*/.*.partial")]:
        name = _PARTIAL.fullmatch(path.name)
        if name is None or _is_alive(int(name[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    return True


def _close_in_fork() -> None:
    """Close the locks in a fork, such as a data loader's worker, so that it cannot hold them longer than the owner."""
    for lock in _locks.values():
        with suppress(OSError):
            os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_close_in_fork)


def locked_folder(
    path: str | Path,
    record: str,
    about: Mapping[str, Any],
    what: str,
    signature: str = "",
    *,
    grows: bool = False,
    among_others: bool = False,
    write: bool = True,
) -> Path:
    """Reserve the folder of --out for the run that `about` describes, or check that it holds this run already.

    Call it in a folder that the process owns (see `owned`). The JSON file `record` in the folder keeps `about` and the
    `signature`, if given. With `grows`, keys that the record lacks are added; without, they count as a difference.
    `among_others` allows a folder that holds other files but no record; without `write`, it is only checked. A record
    that is alone in its folder is of a run that came to nothing: without `grows` and `among_others` it is replaced.
    `what` is the noun for such a run in messages.

    Raises LeapformerError if the record differs or is damaged, if a folder without a record is not empty, or if the
    folder or the record cannot be written.
    """
    folder, recorded = Path(path), dict[str, Any]()
    file = folder / record
    wanted = json.loads(json.dumps(about))  # in the form in which it is read back: a tuple becomes a list
    holds_others = holds_files(folder, but=record)
    if file.is_file() and (holds_others or among_others or grows):
        recorded = read_json(file, remedy="choose another folder or delete all of this one")
        for name, ours in wanted.items():
            theirs = recorded.get(name, ours if grows else _MISSING)
            if theirs != ours:
                raise LeapformerError(
                    f"--out {folder} holds a {what} with another {_difference(name, theirs, ours)}; "
                    "choose another folder or delete it"
                )
    elif holds_others and not among_others:
        raise LeapformerError(f"--out {folder} is not empty and holds no {what}; choose another folder")
    if not write:
        return folder
    make_folder(path)
    if not wanted.keys() <= recorded.keys():
        write_json(file, {**recorded, **wanted, **({"signature": signature} if signature else {})}, "--out")
    return folder


@contextmanager
def replacing_folder(path: str | Path, record: str, names: Container[str], what: str) -> Iterator[Path]:
    """Yield a temporary folder that replaces the folder of --out if the block ends without an exception.

    Only a folder of the same kind is replaced: one with a file `record` and otherwise only files in `names`. `what` is
    the noun for it in messages. The old folder stays until it is replaced, in one step if the system can exchange
    folders. Raises LeapformerError if anything else is in the way, or if the folder cannot be written.
    """
    folder = Path(path).resolve()
    _check_replaced(path, folder, record, names, what)
    partial = folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.partial")
    try:
        with _write_errors(path):
            partial.mkdir(parents=True)
        yield partial
        with _write_errors(path):
            for file in partial.iterdir():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
            _check_replaced(path, folder, record, names, what)  # again: the block may have taken minutes
            _replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _write_errors(path: str | Path) -> Iterator[None]:
    """Raise a LeapformerError for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise LeapformerError(f"--out {path} cannot be written: {error.strerror}; choose another folder") from error


def _check_replaced(path: str | Path, folder: Path, record: str, names: Container[str], what: str) -> None:
    """Raise a LeapformerError if replacing `folder` would delete files that no command of this kind has written."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise LeapformerError(f"--out {path} is a file; choose another folder")
    content = sorted(entry.name for entry in folder.iterdir())
    if content and not (folder / record).is_file():
        raise LeapformerError(f"--out {path} is not empty and holds no {what}; choose another folder")
    foreign = next((name for name in content if name not in names or not (folder / name).is_file()), None)
    if foreign is not None:
        raise LeapformerError(
            f"--out {path} has {foreign} in it, which is no part of the {what} and would be lost; choose another folder"
        )


def _replace(new: Path, old: Path) -> None:
    """Rename folder `new` to `old`; a former `old` that is not empty is afterwards called `new`."""
    try:
        os.rename(new, old)  # works if `old` does not exist or is empty
    except OSError:
        if not old.is_dir():
            raise
        if not _exchange(new, old):
            aside = new.with_suffix(".old")
            os.rename(old, aside)
            try:
                os.rename(new, old)
            except OSError:
                os.rename(aside, old)
                raise
            os.rename(aside, new)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step, and return whether the system could: Linux can on most file systems."""
    import ctypes

    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


def _difference(name: str, theirs: Any, ours: Any) -> str:
    """Describe two values that differ; for dictionaries, their first entry that differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in {**ours, **theirs}:
            their_value, our_value = theirs.get(key, _MISSING), ours.get(key, _MISSING)
            if their_value != our_value:
                return _difference(f"{key} in {name}", their_value, our_value)
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        place = next(i for i, value in enumerate(theirs) if value != ours[i])
        return _difference(name, theirs[place], ours[place])
    texts = ["nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False) for value in (theirs, ours)]
    begin = max(0, len(os.path.commonprefix(texts)) - _SHOWN // 2) if max(map(len, texts)) >= _SHOWN else 0
    return f"{name} ({_short(texts[0], begin)}, not {_short(texts[1], begin)})"


def _short(text: str, begin: int) -> str:
    """The text without what is equal before `begin`, shortened."""
    text = f"...{text[begin:]}" if begin else text
    return text if len(text) < _SHOWN else text[: _SHOWN - 3] + "..."


# ------------------------------------------------------------------------------------------------------- moved folders
def paths_beside(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the paths in a data configuration of `folder`, which may have been moved since it was written.

    Relative paths of audio and CMVN statistics are looked up in the folder. For an absolute path that no longer
    exists, the longest ending of it that exists in the folder is used. If the audio root was the folder of the
    statistics, it was the data folder itself, so `folder` replaces it.
    """
    statistics = config.get("global_cmvn")
    old_folder = str(Path(str(statistics.get("stats_npz_path"))).parent) if isinstance(statistics, Mapping) else None

    def resolved(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return paths_beside(value, folder)
        if not isinstance(value, str) or not value:
            return value
        if not Path(value).is_absolute():
            beside = folder / value
            return str(beside) if name in ("audio_root", "stats_npz_path") and beside.exists() else value
        path = moved(value, folder)
        return str(folder if name == "audio_root" and value == old_folder and not path.exists() else path)

    return {name: resolved(name, value) for name, value in config.items()}


def moved(path: str | Path, folder: Path) -> Path:
    """Return the path, or for an absolute one that no longer exists its longest ending that exists in `folder`."""
    path = Path(path)
    if not path.is_absolute() or path.exists():
        return path
    candidates = (folder.joinpath(*path.parts[i:]) for i in range(1, len(path.parts)))
    return next((candidate for candidate in candidates if candidate.exists()), path)
