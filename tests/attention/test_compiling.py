"""Where kernels in C come from, and what happens where they cannot be had: one line, and PyTorch."""

from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from leapformer_fairseq.attention import CAUSAL
from leapformer_fairseq.attention.ops import cpu

from ..compiler import COMPILER, NO_COMPILER, needs_compiler
from .cases import DIM, HEADS, build

KERNELS = (cpu.step, cpu.recurrent_step, cpu.slot_step, cpu.scan)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache without libraries, and what this process knows of them forgotten."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(cpu.SWITCH, raising=False)
    cpu._loaded.cache_clear()
    yield tmp_path / "cache" / "leapformer_fairseq"
    cpu._loaded.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes CC of a shell script, which writes to `out`; `library` is a real one."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    cpu._loaded.cache_clear()
    library = cpu.load()
    assert library is not None

    def make(script: str, name: str = "compiler") -> Path:
        path = tmp_path / name
        find = 'while [ "$1" != -o ]; do shift; done; out="$2"'
        path.write_text(f"#!/bin/sh\necho called >> {tmp_path}/calls\nlibrary={library._name}\n{find}\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        return path

    return make


COPY = 'cp "$library" "$out"'
LIBM = 'cp /lib/x86_64-linux-gnu/libm.so.6 "$out"'  # has none of our functions


def calls(folder: Path) -> int:
    path = folder / "calls"
    return path.read_text().count("called") if path.exists() else 0


def pytorch_runs() -> bool:
    out = build("leap", DIM, HEADS)(*torch.randn(3, 2, HEADS, 20, DIM), mask=CAUSAL)
    return bool(out.isfinite().all()) and all(kernel() is None for kernel in KERNELS)


def again() -> None:
    """As in another process."""
    cpu._loaded.cache_clear()


@pytest.fixture
def failure(cache, caplog):
    """Checks that PyTorch runs, and that one line with these words says why."""

    def check(*words: str) -> None:
        caplog.clear()
        assert pytorch_runs() and cpu.load() is None
        (message,) = [record.getMessage() for record in caplog.records if record.name == cpu.__name__]
        assert "\n" not in message and "attention runs in PyTorch" in message
        assert all(word in message for word in words), message
        assert cpu.reason() is not None and cpu.reason() in message

    return check


class TestACompilerThatWorks:
    def test_is_called_once(self, compiler, cache, tmp_path):
        compiler(COPY)
        assert all(kernel() is not None for kernel in KERNELS) and cpu.reason() is None
        again()
        assert cpu.load() is not None and calls(tmp_path) == 1
        assert [path.suffix for path in cache.iterdir()] == [".so"]

    def test_is_called_once_by_many_threads(self, compiler, cache, tmp_path):
        compiler(f"sleep 0.1; {COPY}")
        with ThreadPoolExecutor(4) as pool:
            assert None not in list(pool.map(lambda _: cpu.load(), range(4)))
        assert calls(tmp_path) == 1

    def test_may_have_options(self, compiler, cache, monkeypatch, tmp_path):
        monkeypatch.setenv("CC", f"env LEAPFORMER=1 '{compiler(COPY)}'")
        assert cpu.load() is not None and calls(tmp_path) == 1

    @pytest.mark.parametrize("change", ["FLAGS", "SOURCES", "instructions", "C library"])
    def test_is_called_for_other_sources_and_processors(self, compiler, cache, change, monkeypatch, tmp_path):
        """Instructions of another processor would end the process."""
        compiler(COPY)
        assert cpu.load() is not None
        again()
        if change == "instructions" and " sse2" not in Path("/proc/cpuinfo").read_text():
            pytest.skip("this processor has other instructions")
        if change == "SOURCES":
            (tmp_path / "other.c").write_text("/* other */")
            monkeypatch.setattr(cpu, "SOURCES", (*cpu.SOURCES[1:], tmp_path / "other.c"))
        elif change == "FLAGS":
            monkeypatch.setattr(cpu, "FLAGS", (*cpu.FLAGS, "-g"))
        elif change == "C library":
            monkeypatch.setattr(cpu.platform, "libc_ver", lambda: ("glibc", "9.9"))
        else:
            read = Path.read_text
            monkeypatch.setattr(Path, "read_text", lambda path: read(path).replace(" sse2", " sse2 avx99"))
        assert cpu.load() is not None and calls(tmp_path) == 2 and len(list(cache.iterdir())) == 2

    def test_a_machine_that_tells_no_instructions_is_known_by_name(self, monkeypatch):
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path: str(path) != "/proc/cpuinfo" and exists(path))
        monkeypatch.setattr(cpu.platform, "node", lambda: "one")
        one = cpu._processor()
        monkeypatch.setattr(cpu.platform, "node", lambda: "other")
        assert cpu._processor() != one

    @pytest.mark.parametrize("damage", ["cut off", "empty", "another", "one byte"])
    def test_a_damaged_library_is_compiled_again(self, compiler, cache, damage, tmp_path):
        """To load one that was cut off ends the process."""
        compiler(COPY)
        assert cpu.load() is not None
        again()
        (library,) = cache.iterdir()
        content = library.read_bytes()
        replaced = tmp_path / "replaced"  # what is loaded must not change
        replaced.write_bytes(
            {
                "cut off": content[: len(content) // 2],
                "empty": b"",
                "another": Path("/bin/sh").read_bytes(),
                "one byte": content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
            }[damage]
        )
        replaced.replace(library)
        assert cpu.load() is not None and calls(tmp_path) == 2
        assert library.read_bytes() == content

    @pytest.mark.parametrize("content", ["nonsense", "/bin/sh", "a folder"])
    def test_what_cannot_be_loaded_is_compiled_again(self, compiler, cache, content, tmp_path):
        """An intact file, as far as its name says, from a compiler that wrote no library for this machine."""
        compiler(COPY)
        assert cpu.load() is not None
        again()
        (library,) = cache.iterdir()
        library.unlink()
        written = Path(content).read_bytes() if content == "/bin/sh" else content.encode()
        other = cache / f"{library.stem.rpartition('-')[0]}-{cpu._digest(written)}.so"
        other.mkdir() if content == "a folder" else other.write_bytes(written)
        assert cpu.load() is not None and calls(tmp_path) == 2
        again()
        assert cpu.load() is not None and calls(tmp_path) == 2

    def test_only_its_owner_may_write_to_a_new_cache(self, compiler, cache):
        compiler(COPY)
        before = os.umask(0)
        try:
            assert cpu.load() is not None
        finally:
            os.umask(before)
        assert stat.S_IMODE(cache.stat().st_mode) == 0o755  # others may read what an administrator compiled

    @pytest.mark.parametrize("mode", [0o777, 0o775])
    def test_others_may_no_longer_write_to_your_cache(self, compiler, cache, tmp_path, mode):
        compiler(COPY)
        assert cpu.load() is not None
        cache.chmod(mode)
        again()
        assert cpu.load() is not None and calls(tmp_path) == 1
        assert stat.S_IMODE(cache.stat().st_mode) == 0o755

    def test_a_library_that_others_may_write_is_compiled_again(self, compiler, cache, tmp_path):
        compiler(COPY)
        assert cpu.load() is not None
        (library,) = cache.glob("*.so")
        library.chmod(0o775)
        again()
        assert cpu.load() is not None and calls(tmp_path) == 2
        again()
        assert cpu.load() is not None and calls(tmp_path) == 2
        assert stat.S_IMODE(library.stat().st_mode) == 0o755

    def test_a_library_of_another_system(self, failure, monkeypatch):
        monkeypatch.setattr(os, "name", "nt")
        failure("need a POSIX system", "or without")


class TestWithoutKernels:
    def test_no_compiler(self, failure, monkeypatch):
        monkeypatch.setenv("CC", "no-such-compiler -m64")
        failure("no C compiler 'no-such-compiler'", "install gcc")

    def test_quotes_that_do_not_close(self, failure, monkeypatch):
        monkeypatch.setenv("CC", "gcc '")
        failure('no C compiler "gcc \'"', "name it by CC")

    @pytest.mark.parametrize("content", [b"\x7fELF of another processor", b"#!/no/such/shell\n"])
    def test_a_file_that_is_no_program(self, failure, monkeypatch, tmp_path, content):
        path = tmp_path / "compiler"
        path.write_bytes(content)
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        failure(f"the C compiler {path} failed: ", "another compiler by CC")

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            (
                "echo nothing good >&2; echo 'a.c:1: error: no stdint.h' >&2; exit 3",
                ("status 3", "a.c:1: error: no stdint.h"),
            ),
            ("echo bad flag; exit 1", ("status 1", "bad flag")),
            ("exit 1", ("status 1", "it said nothing")),
            ("kill -9 $$", ("status -9",)),
            (
                "echo 'ld: No space left on device'; echo 'collect2: error: ld returned 1 exit status'; exit 1",
                ("No space left on device",),
            ),
            (
                "echo 'a.s: Assembler messages:'; echo 'a.s:1: Error: no such instruction'; exit 1",
                ("no such instruction",),
            ),
        ],
    )
    def test_a_compiler_that_fails(self, compiler, failure, script, words):
        path = compiler(script)
        failure(f"the C compiler {path} failed", *words, "another compiler by CC")

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            ("exit 0", ("No such file",)),
            ('mkdir "$out"', ("Is a directory",)),
            (': > "$out"', ("file too short",)),
            ('head -c 20000 "$library" > "$out"', ()),  # to load it ends a process
            ('cp /bin/sh "$out"', ()),
            (LIBM, ("undefined symbol: leapformer_step",)),
        ],
    )
    def test_a_compiler_that_writes_no_library(self, compiler, failure, cache, script, words, tmp_path):
        """Nothing is kept of it, and this compiler is not called again for a day; another one is."""
        if script == LIBM and not Path(LIBM.split()[1]).exists():
            pytest.skip("another system")
        path = compiler(script)
        failure(f"what the C compiler {path} wrote cannot be loaded", *words, "another compiler by CC")
        (failed,) = cache.iterdir()
        again()
        failure(f"what the C compiler {path} wrote cannot be loaded", *words, f"delete {failed}")
        assert calls(tmp_path) == 1
        compiler(COPY, "another")
        again()
        assert cpu.load() is not None

    def test_a_compiler_that_hangs(self, compiler, failure, cache, monkeypatch, tmp_path):
        """It is ended with what it has started, and is not waited for again."""
        monkeypatch.setattr(cpu, "PATIENCE_S", 0.3)
        compiler(f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
        failure("took longer than 0.3 s")
        stopped = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
        deadline = time.monotonic() + 5
        while stopped.exists() and stopped.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, "what the compiler has started still runs"
            time.sleep(0.01)
        again()
        (failed,) = cache.iterdir()
        failure("took longer than 0.3 s", f"delete {failed}")
        assert calls(tmp_path) == 1
        os.utime(failed, (0, time.time() - 25 * 3600))
        compiler(COPY)
        again()
        assert cpu.load() is not None

    @needs_compiler
    @pytest.mark.parametrize("folder", ["/proc/no/such/folder", "a file"])
    def test_a_cache_that_cannot_be_written(self, failure, folder, monkeypatch, tmp_path):
        if folder == "a file":
            folder = tmp_path / "file"
            folder.write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        failure(str(folder), "cannot be written", "XDG_CACHE_HOME")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
    def test_a_read_only_cache(self, failure, cache):
        cache.mkdir(parents=True)
        cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
        failure(str(cache), "cannot be written")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
    def test_the_cache_of_another_user(self, compiler, failure, cache, tmp_path):
        """What is in it is run: nothing of it is loaded, and nothing is compiled into it."""
        compiler(COPY)
        assert cpu.load() is not None
        os.chown(cache, 4321, -1)
        for library in cache.iterdir():
            again()
            failure(f"others may write to {cache}", "XDG_CACHE_HOME")
            library.unlink()
        again()
        failure(f"others may write to {cache}", "XDG_CACHE_HOME")
        assert calls(tmp_path) == 1

    def test_no_home(self, failure, monkeypatch):
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no entry")))
        failure("no home directory", "XDG_CACHE_HOME")

    @pytest.mark.parametrize("word", ["0", "false", "Off", "no"])
    def test_they_can_be_turned_off(self, monkeypatch, caplog, word):
        monkeypatch.setenv(cpu.SWITCH, word)
        assert pytorch_runs() and cpu.reason() == f"LEAPFORMER_NATIVE={word}" and not caplog.records

    @needs_compiler
    def test_they_are_turned_off_in_one_thread(self):
        with cpu.turned_off(), ThreadPoolExecutor(1) as other:
            assert pytorch_runs() and cpu.reason() == "turned off in this thread"
            assert other.submit(cpu.step).result() is not None
        assert cpu.step() is not None
