"""Whatever ends a command is one line: by classes of exceptions, of damaged files, and of standard streams."""

from __future__ import annotations

import errno
import gzip
import json
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml

from leapformer_fairseq.cli import main as cli
from leapformer_fairseq.support import ending
from leapformer_fairseq.support.errors import _NUMBERS, TRACEBACK, LeapformerError


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Registers a sub-command `fake` whose `run` can be set; logs of tracebacks go to the test's folder."""
    module = types.ModuleType("leapformer_fairseq.cli.fake")
    module.OPTIONS = "--value VALUE"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "fake", "fake")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(TRACEBACK, raising=False)
    return module


def ends(command, work, *words: str) -> int:
    def run(args):
        if isinstance(work, BaseException):
            raise work
        return work()

    command.run = run
    return cli.main(["fake", *words])


DEFECTS = [
    ZeroDivisionError("division by zero"),
    AssertionError(),
    AssertionError("two\nlines"),
    RuntimeError("shape '[2, 3]' is invalid for input of size 5\nadvice\nand more"),
    KeyError("model"),
    IndexError("list index out of range"),
    TypeError("unhashable type: 'list'"),
    AttributeError("'NoneType' object has no attribute 'size'"),
    RecursionError("maximum recursion depth exceeded"),
    NotImplementedError(),
    Exception("a reason"),
    OSError("of a library, without a number"),
    ValueError("Caught ValueError in DataLoader worker 0.\nOriginal Traceback:\n  File x\nValueError: the last"),
]


@pytest.mark.parametrize("error", DEFECTS, ids=repr)
def test_a_defect_is_one_line_that_names_the_log(error, command, capsys, tmp_path):
    status = ends(command, error, "--value", "a b")
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("leapformer: error: ") and "Traceback" not in err
    lines = str(error).splitlines() or [type(error).__name__]
    assert lines[-1 if "Original Traceback:" in lines else 0] in err
    if isinstance(error, OSError):  # its text is meant for users
        assert status == 2 and not list(tmp_path.iterdir())
        return
    assert status == 1
    log = Path(re.search(r"the traceback is in (\S+), and --traceback prints it", err)[1])
    text = log.read_text()
    assert log.parent == tmp_path and log.stat().st_mode & 0o077 == 0
    assert "leapformer fake --value 'a b'\n" in text and "Traceback (most recent call last):" in text
    assert type(error).__name__ in text


def test_the_place_in_the_code_is_named(command, capsys):
    from leapformer_fairseq.support import lines

    assert ends(command, lambda: lines.write_lines(None, [])) == 1
    err = capsys.readouterr().err
    assert re.search(r"AttributeError: .+ \(leapformer_fairseq/support/files\.py, line \d+\); ", err)


@pytest.mark.parametrize("by", ["the flag", "the variable"])
def test_tracebacks_are_printed_if_asked_for(by, command, capsys, tmp_path, monkeypatch):
    if by == "the variable":
        monkeypatch.setenv(TRACEBACK, "1")
    words = [ending.FLAG] * (by == "the flag")
    for error, status in ((ZeroDivisionError("x"), 1), (LeapformerError("no such plan"), 2)):
        assert ends(command, error, *words) == status
        err = capsys.readouterr().err
        assert err.startswith("Traceback (most recent call last):") and "log" not in err.splitlines()[-1]
        assert err.splitlines()[-1].startswith(f"leapformer: error: {'no such plan' if status == 2 else 'ZeroDiv'}")
    assert not list(tmp_path.iterdir())


def test_without_room_for_a_log(command, capsys, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert ends(command, ZeroDivisionError("x")) == 1
    assert capsys.readouterr().err.endswith("; repeat it with --traceback for the traceback\n")


@pytest.mark.parametrize("number", [*_NUMBERS, errno.ELOOP])
def test_the_operating_system(number, command, capsys):
    named = OSError(number, "text of the system", "/some/where.txt")
    assert ends(command, named) == 2
    reason, remedy = _NUMBERS.get(number, ("text of the system", "check the path"))
    assert capsys.readouterr().err == f"leapformer: error: /some/where.txt: {reason}; {remedy}\n"
    if number in _NUMBERS:
        assert ends(command, OSError(number, "x")) == 2
        assert capsys.readouterr().err == f"leapformer: error: {reason}; {remedy}\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has\nmore"),
    ],
)
def test_memory(error, command, capsys):
    assert ends(command, error) == 2
    where = "the GPU" if "CUDA" in str(error) else "this machine"
    assert capsys.readouterr().err.startswith(f"leapformer: error: {where} is out of memory; give smaller batches")


def unzipped(path):
    with zipfile.ZipFile(path):
        pass


READERS = {
    "json": lambda path: json.loads(path.read_text()),
    "yaml": lambda path: yaml.safe_load(path.read_text()),
    "gzip": lambda path: gzip.decompress(path.read_bytes()),
    "zip": unzipped,
    "npz": lambda path: np.load(path)["x"],
    "pickle": lambda path: pickle.loads(path.read_bytes()),
    "audio": lambda path: soundfile.read(path),
    "struct": lambda path: struct.unpack("<Q", path.read_bytes()),
    "text": lambda path: path.read_bytes().decode("utf-8"),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_damaged_file_is_named(kind, command, capsys, tmp_path):
    path = tmp_path / "damaged"
    path.write_bytes(b"{\xff]: \x00 not a file of any kind")
    assert ends(command, lambda: READERS[kind](path)) in (1, 2)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    if kind != "npz":  # numpy raises a mere ValueError
        assert err.startswith(f"leapformer: error: {path} cannot be read (") or f"'{path}'" in err


# -------------------------------------------------------------------------------------------------------------- streams
def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = f"{sys.executable} -m leapformer_fairseq.cli.main"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("leapformer", program)],
        capture_output=True, text=True, timeout=120, env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip


class TestStreams:
    def test_a_reader_who_has_seen_enough(self):
        done = shell("leapformer recipe | head -n 1")
        assert done.stdout.count("\n") == 1 and done.stderr == ""

    def test_a_reader_who_is_gone_before(self):
        done = shell("leapformer recipe | true")
        assert done.returncode in (0, 141) and done.stderr == ""

    def test_a_help_text_that_nobody_reads(self):
        done = shell("leapformer --help | true")
        assert done.returncode in (0, 141) and done.stderr == ""

    def test_a_full_disk(self):
        done = shell("leapformer recipe > /dev/full")
        assert done.returncode == 2 and done.stderr == (
            "leapformer: error: standard output cannot be written (No space left on device); send it to another file\n"
        )

    def test_a_closed_output(self):
        done = shell("leapformer recipe >&-")
        assert (done.returncode, done.stderr) == (
            2,
            "leapformer: error: standard output is closed; send it to a file, or to /dev/null\n",
        )

    def test_other_closed_streams(self, tmp_path):
        assert shell("leapformer recipe <&-").returncode == 0
        done = shell("leapformer recipe 2>&-")
        assert done.returncode == 0 and "quickstart" in done.stdout
        assert shell("leapformer nothing 2>&-").returncode == 2

    def test_an_ascii_terminal_gets_utf8(self, tmp_path):
        (tmp_path / "a.json").write_text("{}")
        code = "import sys; from leapformer_fairseq.support import ending\n"
        code += "sys.exit(ending.status_of(lambda: print('für') or 0, lambda e: None, [], False, 'x'))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=60, env={"PYTHONIOENCODING": "ascii"}
        )
        assert (done.returncode, done.stdout) == (0, "für\n".encode())

    def test_an_output_that_lacks_a_letter(self, tmp_path):
        code = "import sys; from leapformer_fairseq.support import ending\n"
        code += "from leapformer_fairseq.support.errors import explained\n"
        code += "sys.exit(ending.status_of(lambda: print('字'), explained, [], False, 'x'))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=60, env={"PYTHONIOENCODING": "latin-1"}
        )
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"the output takes latin-1 only" in done.stderr and b"set PYTHONIOENCODING=utf-8" in done.stderr
