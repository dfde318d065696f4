"""Trainings in processes of their own: logs, interrupts, what they leave, and who may work in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from leapformer_fairseq.studies.ablation import running
from leapformer_fairseq.studies.ablation.search import Result
from leapformer_fairseq.studies.engine import Cell, Command, Engine, State, Study
from leapformer_fairseq.support.errors import LeapformerError

VALID = 'INFO:valid:{"epoch": 1, "valid_loss": "4.2", "valid_ppl": "9"}'


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


class One(Study):
    """A run in a folder."""

    def __init__(self, folder: Path, command: Sequence[str] = ("python",)) -> None:
        steps = (Command(tuple(command[1:]), running.LOG, program=Path(command[0]).name),)
        collect = partial(running.collect, threads=None)
        self.out, self.cell = folder, Cell("run", steps, running.DONE, collect=collect, fields=running.FIELDS)

    def cells(self, state: State) -> list[Cell]:
        return [self.cell]


def complete(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """The result of a run."""
    state = Engine(One(folder, command)).run()
    if state.failed:
        raise LeapformerError(state.failed["run"])
    return state.results["run"]


def finished(folder: Path) -> Any:
    """The result that is there, if there is one."""
    cell = One(folder).cell
    return cell.read(folder) if cell.path(folder).is_file() else None


def test_a_finished_training_leaves_its_result(tmp_path):
    run = tmp_path / "run"
    checkpoint(run / "checkpoint_best.pt")
    lines = [f'INFO:train_inner:{{"loss": "5", "wps": "{speed}"}}' for speed in (0, 100, 300, 120)]
    found = Result(**complete(saying(*lines, VALID), run))
    assert (found.loss, found.wps, found.epoch, found.updates, found.parameters) == (4.2, 120.0, 3, 30, 6)
    assert "|commit:" in found.signature
    assert finished(run) == asdict(found)
    assert finished(tmp_path / "other") is None


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
        complete(saying(*lines, status=status), tmp_path)
    assert str(error.value).startswith(reason) and "\n" not in str(error.value)
    assert finished(tmp_path) is None


def test_a_killed_training_says_so(tmp_path):
    command = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(LeapformerError, match="no output .killed by SIGKILL; see"):
        complete(command, tmp_path)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_training_without_a_validation_loss_has_failed(tmp_path, loss):
    checkpoint(tmp_path / "checkpoint_best.pt", loss)
    with pytest.raises(LeapformerError, match="no validation loss"):
        complete(saying("done"), tmp_path)
    (tmp_path / "checkpoint_best.pt").unlink()
    with pytest.raises(LeapformerError, match="no validation loss .None. in .*checkpoint_best.pt"):
        complete(saying("done"), tmp_path)
    assert finished(tmp_path) is None


def test_a_damaged_mark_is_named(tmp_path):
    for content in ("{", "[]", json.dumps({"loss": 1})):
        (tmp_path / "done").write_text(content)
        with pytest.raises(LeapformerError, match="done is damaged .*; delete it"):
            finished(tmp_path)
