"""Trainings in processes of their own: logs, interrupts, what they leave, and who may work in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from leapformer_fairseq.ablation import running
from leapformer_fairseq.errors import LeapformerError

VALID = 'INFO:valid:{"epoch": 1, "valid_loss": "4.2", "valid_ppl": "9"}'


def ignore(value: str) -> None:
    """Nobody watches."""


def python(code: str) -> list[str]:
    return [sys.executable, "-uc", code]


def checkpoint(path: Path, loss: float | None = 4.2, epoch: int = 3) -> Path:
    """A checkpoint that was written at the end of an epoch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": {"weight": torch.zeros(3, 2)},
        "extra_state": {"val_loss": loss, "train_iterator": {"epoch": epoch + 1, "iterations_in_epoch": 0}},
        "optimizer_history": [{"num_updates": 10 * epoch}],
    }
    torch.save(state, path)
    return path


def saying(*lines: str, status: int = 0) -> list[str]:
    """A command that prints these lines."""
    return python(f"print({chr(10).join(lines)!r}); raise SystemExit({status})")


def test_a_finished_training_leaves_its_result(tmp_path):
    run = tmp_path / "run"
    checkpoint(run / "checkpoint_best.pt")
    lines = [f'INFO:train_inner:{{"loss": "5", "wps": "{speed}"}}' for speed in (0, 100, 300, 120)]
    found = running.complete(saying(*lines, VALID), run, "valid_loss", ignore)
    assert (found.loss, found.wps, found.epoch, found.updates, found.parameters) == (4.2, 120.0, 3, 30, 6)
    assert "|commit:" in found.signature
    assert running.finished(run) == found
    assert running.finished(tmp_path / "other") is None


def test_output_is_added_to_the_log(tmp_path):
    log = tmp_path / "train.log"
    for word in ("first", "second"):
        assert running.train(saying(word, status=3), log, "valid_loss", ignore) == 3
    assert log.read_text() == "first\nsecond\n"


def test_the_speed_of_an_empty_log_is_not_known(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f'{VALID}\n| INFO | valid | {{"wps": "7"}}\nINFO:train_inner:{{"wps": "0"}}\n{{"wps": broken\n')
    assert running.words_per_second(log) is None
    log.write_text('2025-01-01 | INFO | train_inner | {"wps": "7.5"}\n')
    assert running.words_per_second(log) == 7.5


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        (["Traceback", "FloatingPointError: gradients are Nan/Inf", "a warning"], 1, "FloatingPointError: gradients"),
        (["leapformer: error: no folder x; make it"], 2, "no folder x; make it (exit status 2; see"),
        (["leapformer train: error: unrecognized arguments: --x"], 2, "leapformer train: error: unrecognized"),
        (["torch.cuda.OutOfMemoryError: CUDA out of memory"], 1, "torch.cuda.OutOfMemoryError: CUDA out"),
        (["some", "words"], 1, "words (exit status 1"),
    ],
)
def test_the_reason_of_a_failure_is_in_its_log(tmp_path, lines, status, reason):
    (tmp_path / "train.log").write_text("ValueError: of an earlier attempt\n")
    with pytest.raises(LeapformerError) as error:
        running.complete(saying(*lines, status=status), tmp_path, "valid_loss", ignore)
    assert str(error.value).startswith(reason) and "\n" not in str(error.value)
    assert running.finished(tmp_path) is None


def test_a_killed_training_says_so(tmp_path):
    command = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(LeapformerError, match="no output .killed by SIGKILL; see"):
        running.complete(command, tmp_path, "valid_loss", ignore)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_training_without_a_validation_loss_has_failed(tmp_path, loss):
    checkpoint(tmp_path / "checkpoint_best.pt", loss)
    with pytest.raises(LeapformerError, match="no validation loss"):
        running.complete(saying("done"), tmp_path, "valid_loss", ignore)
    (tmp_path / "checkpoint_best.pt").unlink()
    with pytest.raises(LeapformerError, match="no validation loss .None. in .*checkpoint_best.pt"):
        running.complete(saying("done"), tmp_path, "valid_loss", ignore)
    assert running.finished(tmp_path) is None


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
    monkeypatch.setattr(running, "POLL_S", 0.05)
    monkeypatch.setattr(running, "PATIENCE_S", 5.0 if cleaned else 0.2)
    seen, started, log, start = [], [], tmp_path / "train.log", subprocess.Popen

    def popen(*args, **options):
        started.append(start(*args, **options))
        return started[-1]

    def watch(value: str) -> None:
        seen.append(value)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess, "Popen", popen)
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            running.train(python(code), log, "valid_loss", watch)
        assert signal.getsignal(number) == signal.SIG_DFL, "as it was"
    finally:
        signal.signal(number, before)
    assert seen == ["4.2"]
    assert started[0].poll() is not None, "it has ended"
    assert ("cleaned up" in log.read_text()) is cleaned


def test_a_copy_that_was_interrupted_is_replaced_by_the_newest_whole_checkpoint(tmp_path):
    for age, name in enumerate(("checkpoint_best.pt", "checkpoint1.pt")):
        checkpoint(tmp_path / name, epoch=5 - age)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    last = tmp_path / "checkpoint_last.pt"
    whole = (tmp_path / "checkpoint_best.pt").read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    running._mend_last(tmp_path)
    assert last.read_bytes() == whole
    checkpoint(last, epoch=9)
    kept = last.read_bytes()
    running._mend_last(tmp_path)
    assert last.read_bytes() == kept, "a whole one stays"


def test_without_a_whole_checkpoint_a_training_begins_anew(tmp_path):
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(b"PK")
    command = python(f"import os; print('broken' if os.path.exists({str(last)!r}) else 'anew'); raise SystemExit(1)")
    with pytest.raises(LeapformerError, match="anew"):
        running.complete(command, tmp_path, "valid_loss", ignore)


def test_a_damaged_mark_is_named(tmp_path):
    for content in ("{", "[]", json.dumps({"loss": 1})):
        (tmp_path / "done").write_text(content)
        with pytest.raises(LeapformerError, match="done is damaged .*; delete it"):
            running.finished(tmp_path)


class TestFolder:
    def test_it_belongs_to_one_command(self, tmp_path):
        for _ in range(2):
            with running.locked(tmp_path, "data --lr 1"):
                pass
        with pytest.raises(LeapformerError, match="another training command .data --lr 1.; choose another folder"):
            running.check_folder(tmp_path, "data --lr 2")

    def test_it_must_not_hold_something_else(self, tmp_path):
        running.check_folder(tmp_path / "new", "data")
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(LeapformerError, match="not empty and holds no ablation"), running.locked(tmp_path, "data"):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_two_processes_cannot_work_in_it(self, tmp_path):
        refused = pytest.raises(LeapformerError, match="is running here")
        with running.locked(tmp_path, "data"), refused, running.locked(tmp_path, "data"):
            pass
        with running.locked(tmp_path, "data"):
            pass

    def test_a_training_that_was_left_behind_keeps_the_folder(self, tmp_path):
        """As after `kill -9` of the ablation: only the lock's own file is closed here, not the training's copy."""
        with running.locked(tmp_path, "data"):
            left = subprocess.Popen(python("input()"), stdin=subprocess.PIPE, close_fds=False)
        with pytest.raises(LeapformerError, match="that it started"), running.locked(tmp_path, "data"):
            pass
        left.communicate(b"\n")
        with running.locked(tmp_path, "data"):
            pass

    def test_every_training_holds_it(self, tmp_path):
        held = "import os; print(*(os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')))"
        with running.locked(tmp_path, "data"):
            running.train(python(held), tmp_path / "train.log", "valid_loss", ignore)
        assert str((tmp_path / ".lock").resolve()) in (tmp_path / "train.log").read_text().split()
