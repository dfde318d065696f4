"""Processes that train: logs, interrupts, several at a time, and who may work in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leapformer_fairseq.studies import trainings
from leapformer_fairseq.studies.trainings import Process
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import owned
from tests.commands import carried_out, run_all, status_of
from tests.studies.ablation.test_running import VALID, checkpoint, python, saying
from tests.support.test_files import another_in


def test_output_is_added_to_the_log(tmp_path):
    log = tmp_path / "train.log"
    for word in ("first", "second"):
        assert carried_out(status_of(Process(saying(word, status=3), log))) == 3
    assert log.read_text() == "first\nsecond\n"


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
    seen, started, log, start = [], [], tmp_path / "train.log", subprocess.Popen

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
            carried_out(status_of(Process(python(code), log, watch)))
        assert signal.getsignal(number) == signal.SIG_DFL, "as it was"
    finally:
        signal.signal(number, before)
    assert seen == ["4.2"]
    assert started[0].poll() is not None, "it has ended"
    assert ("cleaned up" in log.read_text()) is cleaned


def several(tmp_path, names, at_once, code="print('on')"):
    """Runs works of two processes each; what each was sent, in order of events."""
    events = []

    def work(name):
        for part in (1, 2):
            events.append(("begin", name, part))
            status = yield Process(python(f"{code}; raise SystemExit({part})"), tmp_path / f"{name}.log")
            events.append(("end", name, status))

    run_all((work(name) for name in names), at_once)
    return events


class TestSeveral:
    def test_all_are_interrupted_before_one_is_waited_for(self, tmp_path, monkeypatch):
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

        def work(name):
            yield Process(
                [*python(code), name], tmp_path / f"{name}.log", lambda entry: os.kill(os.getpid(), signal.SIGINT)
            )

        with pytest.raises(KeyboardInterrupt):
            run_all((work(name) for name in "abc"), 3)
        assert len(list(tmp_path.glob("*.together"))) == 3

    def test_each_goes_on_after_its_own_processes(self, tmp_path, monkeypatch):
        events = several(tmp_path, "abc", 2)
        for name in "abc":
            own = [(kind, number) for kind, one, number in events if one == name]
            assert own == [("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]
            assert (tmp_path / f"{name}.log").read_text() == "on\non\n"

    def test_no_more_than_so_many_at_once(self, tmp_path, monkeypatch):
        running = most = 0
        for kind, _, _ in several(tmp_path, "abcd", 2):
            running += 1 if kind == "begin" else -1
            most = max(most, running)
        assert most == 2
        assert [name for _, name, _ in several(tmp_path, "ab", 1)] == list("aaaabbbb")

    def test_an_interrupt_ends_all(self, tmp_path, monkeypatch):
        started, start = [], subprocess.Popen

        def popen(*args, **options):
            started.append(start(*args, **options))
            return started[-1]

        def watch(entry):
            if len(started) == 2:
                os.kill(os.getpid(), signal.SIGINT)

        def work(name):
            yield Process(python(WAITING), tmp_path / f"{name}.log", watch)
            raise AssertionError("it went on after an interrupt")

        monkeypatch.setattr(subprocess, "Popen", popen)
        with pytest.raises(KeyboardInterrupt):
            run_all((work(name) for name in "abc"), 2)
        assert len(started) == 2 and all(process.poll() is not None for process in started)

    def test_what_a_work_raises_ends_all(self, tmp_path, monkeypatch):

        def works():
            yield (Process(python(WAITING), tmp_path / "a.log") for _ in range(2))
            yield failing()

        def failing():
            yield Process(saying("out", status=3), tmp_path / "b.log")
            raise trainings.failure(tmp_path / "b.log", 0, 3)

        with pytest.raises(LeapformerError, match="out .exit status 3"):
            run_all(works(), 2)


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
            carried_out(status_of(Process(python(held), tmp_path / "train.log")))
        assert str((tmp_path / ".lock").resolve()) in (tmp_path / "train.log").read_text().split()
