"""Processes that train: logs, interrupts, several at a time, and who may work in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leapformer_fairseq.studies import engine, trainings
from leapformer_fairseq.studies.engine import Cell, Command, Engine
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import owned
from tests.studies.ablation.test_running import VALID, checkpoint, python
from tests.studies.recipes.running import Cells
from tests.support.test_files import another_in


def step(code, watch=lambda entry: None, *words):
    """Python code that runs as a training does; `watch` receives the entries of its log."""
    return Command(("-uc", code, *words), "train.log", "python", tell=lambda entry: watch(entry) or "")


def run(out, *cells, **options):
    return Engine(Cells(out, *cells), **options).run()


def test_output_is_added_to_the_log(tmp_path):
    for word in ("first", "second"):
        state = run(tmp_path, Cell("a", (step(f"print('{word}'); raise SystemExit(3)"),)))
        assert state.failed == {"a": f"{word} (exit status 3; see {tmp_path}/a/train.log)"}
    assert (tmp_path / "a/train.log").read_text() == "first\nsecond\n"


def test_the_speed_of_an_empty_log_is_not_known(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f'{VALID}\n| INFO | valid | {{"wps": "7"}}\nINFO:train_inner:{{"wps": "0"}}\n{{"wps": broken\n')
    assert trainings.speed(log, "wps") is None
    log.write_text('2025-01-01 | INFO | train_inner | {"wps": "7.5"}\n')
    assert trainings.speed(log, "wps") == 7.5


WAITING = f"""
import signal, time
print({VALID!r})
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("cleaned up")
"""
DEAF = f"""
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print({VALID!r})
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("code", "cleaned"), [(WAITING, True), (DEAF, False)])
def test_an_interrupt_ends_the_training(tmp_path, monkeypatch, number, code, cleaned):
    monkeypatch.setattr(trainings, "PATIENCE_S", 5.0 if cleaned else 0.2)
    seen, started, start = [], [], subprocess.Popen

    def popen(*args, **options):
        started.append(start(*args, **options))
        return started[-1]

    def watch(entry: dict) -> None:
        seen.append(entry["valid_loss"])
        os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess, "Popen", popen)
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, Cell("a", (step(code, watch),)))
        assert signal.getsignal(number) == signal.SIG_DFL, "as it was"
    finally:
        signal.signal(number, before)
    assert seen == ["4.2"]
    assert started[0].poll() is not None, "it has ended"
    assert ("cleaned up" in (tmp_path / "a/train.log").read_text()) is cleaned


def several(out, names, jobs, monkeypatch):
    """Run cells of two processes each; the beginnings and ends of these in order."""
    events = []

    class Noting(trainings.Running):
        def __init__(self, about):
            self.name = about.log.parent.name
            events.append(("begin", self.name))
            super().__init__(about)

        def close(self):
            events.append(("end", self.name))
            super().close()

    monkeypatch.setattr(trainings, "Running", Noting)
    run(out, *(Cell(name, (step("print('on')"), step("print('on')"))) for name in names), jobs=jobs)
    return events


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(engine, "POLL_S", 0.02)


class TestSeveral:
    def test_all_are_interrupted_before_one_is_waited_for(self, tmp_path):
        """Each ends when it sees that all were interrupted, or alone after five seconds."""
        code = f"""
import pathlib, sys, time
folder, name = pathlib.Path({str(tmp_path)!r}), sys.argv[1]
try:
    (folder / f"{{name}}.begun").touch()
    if len(list(folder.glob("*.begun"))) == 3:
        print({VALID!r}, flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    (folder / f"{{name}}.interrupted").touch()
    for _ in range(500):
        if len(list(folder.glob("*.interrupted"))) == 3:
            (folder / f"{{name}}.together").touch()
            break
        time.sleep(0.01)
"""

        def interrupt(entry):
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "o", *(Cell(name, (step(code, interrupt, name),)) for name in "abc"), jobs=3)
        assert len(list(tmp_path.glob("*.together"))) == 3

    def test_each_goes_on_after_its_own_processes(self, tmp_path, monkeypatch):
        events = several(tmp_path, "abc", 2, monkeypatch)
        for name in "abc":
            assert [kind for kind, one in events if one == name] == ["begin", "end", "begin", "end"]
            assert (tmp_path / name / "train.log").read_text() == "on\non\n"

    def test_no_more_than_so_many_at_once(self, tmp_path, monkeypatch):
        running = most = 0
        for kind, _ in several(tmp_path / "two", "abcd", 2, monkeypatch):
            running += 1 if kind == "begin" else -1
            most = max(most, running)
        assert most == 2
        assert [name for _, name in several(tmp_path / "one", "ab", 1, monkeypatch)] == list("aaaabbbb")

    def test_an_interrupt_ends_all(self, tmp_path, monkeypatch):
        started, start = [], subprocess.Popen

        def popen(*args, **options):
            started.append(start(*args, **options))
            return started[-1]

        def watch(entry):
            if len(started) == 2:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(subprocess, "Popen", popen)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, *(Cell(name, (step(WAITING, watch), step("print(1)"))) for name in "abc"), jobs=2)
        assert len(started) == 2 and all(process.poll() is not None for process in started)

    def test_a_vital_failure_ends_all(self, tmp_path):
        cells = Cell("a", (step(WAITING),)), Cell("b", (step("print('out'); raise SystemExit(3)"),), vital=True)
        with pytest.raises(LeapformerError, match="b failed: out .exit status 3"):
            run(tmp_path, *cells, jobs=2)
        assert not (tmp_path / "a/done").exists()


def test_a_copy_that_was_interrupted_is_replaced_by_the_newest_whole_checkpoint(tmp_path):
    for age, name in enumerate(("checkpoint_best.pt", "checkpoint1.pt")):
        checkpoint(tmp_path / name, epoch=5 - age)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    last = tmp_path / "checkpoint_last.pt"
    whole = (tmp_path / "checkpoint_best.pt").read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    trainings.mend_last(tmp_path)
    assert last.read_bytes() == whole
    checkpoint(last, epoch=9)
    kept = last.read_bytes()
    trainings.mend_last(tmp_path)
    assert last.read_bytes() == kept, "a whole one stays"


def test_without_a_whole_checkpoint_a_training_begins_again(tmp_path):
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        (tmp_path / name).write_bytes(b"PK")
    trainings.mend_last(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_best.pt"]


@contextmanager
def reserved(folder: Path, record: str, study: str) -> Iterator[None]:
    with owned(folder):
        trainings.reserve(folder, record, study)
        yield


class TestFolder:
    def test_it_belongs_to_one_command(self, tmp_path):
        for _ in range(2):
            with reserved(tmp_path, "data --lr 1", "ablation"):
                pass
        with pytest.raises(LeapformerError, match="another command .data --lr 1.; choose another folder"):
            trainings.check_folder(tmp_path, "data --lr 2", "ablation")

    def test_it_must_not_hold_something_else(self, tmp_path):
        trainings.check_folder(tmp_path / "new", "data", "ablation")
        (tmp_path / "thesis.tex").touch()
        with (
            pytest.raises(LeapformerError, match="not empty and holds no ablation"),
            reserved(tmp_path, "data", "ablation"),
        ):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_two_processes_cannot_work_in_it(self, tmp_path):
        refused = pytest.raises(LeapformerError, match="is running here")
        with another_in(tmp_path), refused, reserved(tmp_path, "data", "ablation"):
            pass
        with reserved(tmp_path, "data", "ablation"):
            pass

    def test_a_training_that_was_left_behind_keeps_the_folder(self, tmp_path):
        """As after `kill -9` of the ablation: only the lock's own file is closed here, not the training's copy."""
        with reserved(tmp_path, "data", "ablation"):
            left = subprocess.Popen(python("input()"), stdin=subprocess.PIPE, close_fds=False)
        with pytest.raises(LeapformerError, match="that it started"), reserved(tmp_path, "data", "ablation"):
            pass
        left.communicate(b"\n")
        with reserved(tmp_path, "data", "ablation"):
            pass

    def test_every_training_holds_it(self, tmp_path):
        held = "import os; print(*(os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')))"
        with reserved(tmp_path, "data", "ablation"):
            run(tmp_path, Cell("a", (step(held),)))
        assert str((tmp_path / ".lock").resolve()) in (tmp_path / "a/train.log").read_text().split()
