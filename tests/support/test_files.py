"""Files that are written as a whole, and folders that hold one run."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from leapformer_fairseq.cli import bench, curve, maps, prepare, score_speech, simulate, sparsefinder, tts
from leapformer_fairseq.data import prepared
from leapformer_fairseq.support import files
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import (
    LOCK,
    locked_folder,
    make_folder,
    owned,
    partial_of,
    read_json,
    replacing,
    write_json,
    write_text,
)


class Stop(BaseException):
    """As Ctrl-C is, it is no Exception."""


# -- whole files -------------------------------------------------------------------------------------------------------
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(Stop), replacing(path) as partial:
        partial.write_text("ne")
        raise Stop
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half of it, then \udc80")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nobody_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen, write = tmp_path / "table.json", [], Path.write_text
    path.write_text("old")

    def watched(self: Path, *args: object, **kwargs: object) -> int:
        count = write(self, *args, **kwargs)
        seen.append(path.read_text())
        return count

    monkeypatch.setattr(Path, "write_text", watched)
    write_text(path, "new")
    assert seen == ["old"] and path.read_text() == "new"


def test_json_is_for_people_too(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"text": "größer", "rows": [1]})
    lines = ["{", '  "text": "größer",', '  "rows": [', "    1", "  ]", "}", ""]
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "\n".join(lines)
    assert read_json(tmp_path / "a.json") == {"text": "größer", "rows": [1]}


def test_links_and_pipes_are_written_into(tmp_path: Path) -> None:
    """Replaced, /dev/null would be gone."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(link, "new")
    write_text(pipe, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert pipe.is_fifo() and os.read(reader, 9) == b"new"
    os.close(reader)


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "a.json"
    with pytest.raises(LeapformerError) as error:
        write_json(nowhere, {}, "--json")
    assert str(error.value) == f"--json {nowhere} cannot be written: No such file or directory; choose another file"
    with pytest.raises(LeapformerError) as error:
        write_text(nowhere, "")
    assert str(error.value) == f"{nowhere} cannot be written: No such file or directory"
    with pytest.raises(LeapformerError, match="cannot be written: Is a directory"):
        write_text(tmp_path, "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"scores": {"BLEU": 1', "Expecting ',' delimiter"),
        (b'{"scores": "\xff"}', "can't decode byte"),
        (b"[1]", "no JSON object"),
        (b'{"signature": ""}', "without 'scores'"),
    ],
)
def test_damaged_json_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "scores.json"
    path.write_bytes(content)
    with pytest.raises(LeapformerError) as error:
        read_json(path, ["scores"])
    message = str(error.value)
    assert message.startswith(f"{path} is damaged (") and reason in message and "\n" not in message
    assert message.endswith("; delete it, and the same command makes it again")
    with pytest.raises(LeapformerError, match="; score again$"):
        read_json(path, ["scores"], "score again")


# -- folders -----------------------------------------------------------------------------------------------------------
ABOUT = {"options": {"k": 3, "sizes": (1, 2)}, "model": {"updates": 10}}


def lock_run(folder: Path, about: dict | None = None, **settings: object) -> Path:
    return locked_folder(folder, "run.json", ABOUT if about is None else about, "run", **settings)


def refusal(folder: Path, about: dict | None = None, **settings: object) -> str:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(LeapformerError) as error:
        lock_run(folder, about, **settings)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return str(error.value)


def test_a_new_folder_is_made_with_its_record(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert lock_run(out, signature="commit:1") == out
    assert read_json(out / "run.json") == {**json.loads(json.dumps(ABOUT)), "signature": "commit:1"}
    assert "signature" not in read_json(lock_run(tmp_path / "unsigned") / "run.json")


def test_the_same_run_finds_its_folder_as_it_was(tmp_path: Path) -> None:
    lock_run(tmp_path, signature="commit:1")
    (tmp_path / "results").touch()
    before = (tmp_path / "run.json").read_bytes()
    for settings in {}, {"grows": True}, {"among_others": True}:
        assert lock_run(tmp_path, signature="commit:2", **settings) == tmp_path
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("about", "which"),
    [
        ({**ABOUT, "options": {"k": 5, "sizes": (1, 2)}}, "k in options (3, not 5)"),
        ({**ABOUT, "options": {"k": 3, "sizes": (1,)}}, "sizes in options ([1, 2], not [1])"),
        ({**ABOUT, "options": {"k": 3}}, "sizes in options ([1, 2], not nothing)"),
        ({**ABOUT, "options": {**ABOUT["options"], "beam": 1}}, "beam in options (nothing, not 1)"),
        ({**ABOUT, "model": "m.pt"}, 'model ({"updates": 10}, not "m.pt")'),
        ({**ABOUT, "data": None}, "data (nothing, not null)"),
    ],
)
@pytest.mark.parametrize("among_others", [False, True])
def test_another_run_is_refused_and_told_apart(tmp_path: Path, about: dict, which: str, among_others: bool) -> None:
    lock_run(tmp_path)
    (tmp_path / "results").touch()
    expected = f"--out {tmp_path} holds a run with another {which}; choose another folder or delete it"
    assert refusal(tmp_path, about, among_others=among_others) == expected


def test_a_run_that_came_to_nothing_holds_no_folder(tmp_path: Path) -> None:
    lock_run(tmp_path, {"k": 3, "beam": 1})
    (tmp_path / LOCK).touch()
    lock_run(tmp_path, {"k": 5})
    assert read_json(tmp_path / "run.json") == {"k": 5}
    (tmp_path / "results").touch()
    assert "holds a run with another k (5, not 3)" in refusal(tmp_path, {"k": 3})


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    lock_run(tmp_path, {"text": "a" * 1000})
    (tmp_path / "results").touch()
    assert len(refusal(tmp_path, {"text": "b"}).removeprefix(f"--out {tmp_path}")) < 300


def test_a_growing_record_takes_what_it_lacks_and_keeps_the_rest(tmp_path: Path) -> None:
    lock_run(tmp_path, {"limit": 3, "checkpoint a": 1}, grows=True)
    lock_run(tmp_path, {"limit": 3, "checkpoint b": 2}, grows=True)
    assert read_json(tmp_path / "run.json") == {"limit": 3, "checkpoint a": 1, "checkpoint b": 2}
    assert "another limit (3, not 4)" in refusal(tmp_path, {"limit": 4, "checkpoint c": 5}, grows=True)


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for settings in {}, {"grows": True}:
        expected = f"--out {tmp_path} is not empty and holds no run; choose another folder"
        assert refusal(tmp_path, **settings) == expected
    lock_run(tmp_path, among_others=True)
    assert (tmp_path / "run.json").is_file() and (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_damaged_record_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    (tmp_path / "results").touch()
    for settings in {}, {"grows": True}, {"among_others": True}:
        message = refusal(tmp_path, **settings)
        assert message.startswith(f"{tmp_path / 'run.json'} is damaged (") and "choose another folder" in message


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = "--out .*file(/out)? cannot be created: .*; choose another folder"
    for out in tmp_path / "file", tmp_path / "file" / "out":
        with pytest.raises(LeapformerError, match=message):
            make_folder(str(out))
        with pytest.raises(LeapformerError, match=message):
            lock_run(out)
    assert make_folder(str(tmp_path / "a" / "b")).is_dir()


# -- owned folders -----------------------------------------------------------------------------------------------------
@contextmanager
def another_in(folder: Path, code: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that owns the folder, started by nobody who does."""
    begin = f"from leapformer_fairseq.support.files import *\nwith owned({str(folder)!r}):\n "
    code = f"{begin}{code or 'pass'}\n print(1, flush=True)\n input()"
    environment = {name: value for name, value in os.environ.items() if name != "LEAPFORMER_OWNED"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, env=environment) as other:
        assert other.stdout is not None and other.stdout.readline()
        yield other
        with suppress(BrokenPipeError):
            other.communicate("\n")


def left_by(process: int, path: Path) -> Path:
    """What a process leaves that is killed while it writes the file."""
    name = partial_of(path).name.replace(f"-{os.getpid()}-", f"-{process}-")
    path.with_name(name).write_text("half")
    return path.with_name(name)


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as other:
        other.wait()
    return other.pid


def test_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """Threads here, as processes and machines: each writes half, waits for the others, and writes the rest."""
    together, path, texts = threading.Barrier(4), tmp_path / "table.md", [f"{n}\n" * 999 for n in range(4)]
    errors: list[BaseException] = []

    def write(text: str) -> None:
        try:
            with replacing(path) as partial:
                for half in text[:999], text[999:]:
                    with partial.open("a") as file:
                        file.write(half)
                    together.wait(9)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not errors and path.read_text() in texts and [one.name for one in tmp_path.iterdir()] == ["table.md"]


def test_a_name_of_the_greatest_length_is_written(tmp_path: Path) -> None:
    for name in "a" * 255, "\u00e4" * 127:
        write_text(tmp_path / name, "all")
        assert (tmp_path / name).read_text() == "all"


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("name"), replace(old, new)))
    write_text(tmp_path / "table.md", "all")
    assert done == ["file", "name", "folder"]


def test_a_folder_is_one_process_s_and_what_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GRACE_S", 0.2)
    message = f"--out {tmp_path}: another process, or .* wait for it or end it, or choose another folder"
    with another_in(tmp_path) as other:
        with pytest.raises(LeapformerError, match=message), owned(tmp_path):
            pass
        other.kill()  # its lock ends with it
        other.wait()
        with owned(tmp_path), owned(tmp_path):
            child = f"from leapformer_fairseq.support.files import *\nwith owned({str(tmp_path)!r}): pass"
            subprocess.run([sys.executable, "-c", child], check=True)
            assert [one.name for one in tmp_path.iterdir()] == [LOCK], "and it still is"
    assert not list(tmp_path.iterdir()) and "LEAPFORMER_OWNED" in os.environ and not files.owned_folders()


def test_a_command_waits_for_what_another_one_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(files, "GRACE_S", 0.1)
    with another_in(tmp_path) as other:
        threading.Timer(0.5, other.kill).start()
        with owned(tmp_path, waits=True):
            assert other.wait() and f"{tmp_path}: another process is creating what is needed here" in caplog.text


def test_one_that_waited_sees_what_the_other_one_made(tmp_path: Path) -> None:
    """Options are compared once the folder is its own."""
    code = f"locked_folder({str(tmp_path)!r}, 'run.json', {{'k': 1}}, 'run'), open({str(tmp_path / 'results')!r}, 'w')"
    with another_in(tmp_path, code) as other:
        threading.Timer(0.3, other.kill).start()
        refused = pytest.raises(LeapformerError, match=r"another k \(1, not 2\)")
        with owned(tmp_path, waits=True), refused:
            lock_run(tmp_path, {"k": 2})


def test_a_lock_is_neither_followed_nor_changed(tmp_path: Path) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    out.mkdir()
    mine.write_text("years of work")
    (out / LOCK).symlink_to(mine)
    with pytest.raises(LeapformerError, match="is a link; remove it"), owned(out):
        pass
    (out / LOCK).unlink()
    os.link(mine, out / LOCK)
    with owned(out):
        assert mine.read_text() == "years of work"
    assert (out / LOCK).read_text() == "years of work", "which no command of ours has written"
    (out / LOCK).unlink()
    (out / LOCK).mkdir()
    with pytest.raises(LeapformerError, match=r"out/\.lock (is not a file|cannot be written)"), owned(out):
        pass


def test_a_file_system_without_locks_is_said_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", unsupported)
    with owned(tmp_path / "out") as folder:
        write_text(folder / "table.md", "all")
    assert caplog.text.count("its file system has no locks (No locks available); let no other command") == 1


def test_what_killed_processes_left_is_deleted_and_never_in_the_way(tmp_path: Path, gone: int) -> None:
    (tmp_path / "runs").mkdir()
    left = [left_by(gone, tmp_path / "run.json"), left_by(gone, tmp_path / "runs" / "1.json")]
    kept = left_by(os.getppid(), tmp_path / "table.md"), tmp_path / ".mine.partial", tmp_path / "runs" / "half"
    for path in kept[1:]:
        path.touch()
    with owned(tmp_path):
        assert not any(path.exists() for path in left) and all(path.exists() for path in kept)


def test_a_folder_whose_command_was_killed_before_its_record_is_taken_up(tmp_path: Path, gone: int) -> None:
    (tmp_path / LOCK).touch()
    left_by(gone, tmp_path / "run.json")
    lock_run(tmp_path)
    assert (tmp_path / "run.json").is_file()
    out = tmp_path / "other"
    out.mkdir()
    (out / LOCK).touch()
    left_by(gone, out / "prepared.json")
    assert prepared.begin(out, {"k": 1}) is None


def test_a_new_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with pytest.raises(LeapformerError, match="wrong options"), owned(tmp_path / "a" / "b"):
        raise LeapformerError("wrong options")
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with owned(tmp_path / "mine"):
        pass
    assert not list((tmp_path / "mine").iterdir())


def test_a_fork_does_not_hold_the_folder_of_a_killed_process(tmp_path: Path) -> None:
    """A reader of data lives on for seconds."""
    with another_in(tmp_path, "if not os.fork(): time.sleep(3), os._exit(0)") as other:
        other.kill()
        other.wait()
        with owned(tmp_path):
            pass


@pytest.mark.parametrize("command", [bench, curve, maps, prepare, score_speech, simulate, sparsefinder, tts])
def test_each_command_owns_its_folder_before_it_looks_at_anything(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "GRACE_S", 0.0)

    class Waits(Exception):
        pass

    def waits(seconds: float) -> None:
        raise Waits

    monkeypatch.setattr(files.time, "sleep", waits)
    with another_in(tmp_path), pytest.raises(Waits if command is prepare else LeapformerError) as ended:
        run = next(iter(command.STEPS.values())).run if hasattr(command, "STEPS") else command.run
        run(argparse.Namespace(out=tmp_path))
    assert command is prepare or "is running here" in str(ended.value)
