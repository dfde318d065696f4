"""The same `leapformer train` again: finished, cut off, or in a folder that is in use."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from leapformer_fairseq.cli import fairseq_commands
from leapformer_fairseq.compat.patch import source_has
from leapformer_fairseq.studies import trainings
from leapformer_fairseq.support import files
from tests.commands import leapformer, run
from tests.made import made
from tests.reversed_text import reversed_text
from tests.support.test_files import another_in

OPTIONS = (
    "--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 16 --optimizer adam --lr 2e-3 --cpu "
    "--max-tokens 160 --required-batch-size-multiple 1 --num-workers 0 --seed 1 --save-interval-updates 2"
)
LIMITS = (["--max-update", "5"], ["--max-epoch", "1"])


def command(folder: Path, *more: str) -> list[str]:
    data = made("reversed/small", lambda root: reversed_text(root, train=40, valid=10)) / "lm"
    return leapformer("train", str(data), *OPTIONS.split(), "--save-dir", str(folder), *more)


def train(folder: Path, *more: str) -> Any:
    return run(command(folder, *more))


def trained(root: Path) -> None:
    for number, limit in enumerate(LIMITS):
        assert train(root / str(number), *limit).returncode == 0


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return shutil.copytree(made("training-again", trained), tmp_path / "models")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("number", range(len(LIMITS)))
def test_a_finished_training_does_nothing_and_says_so(finished: Path, number: int) -> None:
    folder = finished / str(number)
    before = contents(folder)
    again = train(folder, *LIMITS[number])
    assert again.returncode == 0 and contents(folder) == before
    assert " is finished: " in again.stdout + again.stderr, again.stderr[-2000:]


@pytest.mark.full
def test_so_do_two_processes(finished: Path) -> None:
    """Of torchrun, of which the first one owns the folder, and of fairseq, whose parent does."""
    folder = finished / "1"  # at the end of an epoch: in its middle, as many processes have to go on
    updates = torch.load(folder / "checkpoint_last.pt", weights_only=False)["optimizer_history"][-1]["num_updates"]
    before, (python, *ours) = contents(folder), command(folder, "--max-update", str(updates))
    cut_off = before["checkpoint_last.pt"][:50_000]
    for words in (
        [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *ours],
        [python, "-X", "utf8", *ours, "--distributed-world-size", "2"],
    ):
        for last in before["checkpoint_last.pt"], cut_off:
            shutil.rmtree(folder)
            shutil.copytree(made("training-again", trained) / "1", folder)
            (folder / "checkpoint_last.pt").write_bytes(last)
            again = run(words)
            assert again.returncode == 0, again.stderr[-3000:]
            if last != cut_off:
                assert contents(folder) == before and " is finished: " in again.stdout + again.stderr
            else:
                assert torch.load(folder / "checkpoint_last.pt", weights_only=False)


def test_more_updates_go_on(finished: Path) -> None:
    assert train(finished / "0", "--max-update", "6").returncode == 0
    last = torch.load(finished / "0/checkpoint_last.pt", weights_only=False)
    assert last["optimizer_history"][-1]["num_updates"] == 6


def test_a_last_checkpoint_that_was_cut_off_is_mended(finished: Path) -> None:
    folder = finished / "0"
    before = contents(folder)
    (folder / "checkpoint_last.pt").write_bytes(before["checkpoint_last.pt"][:50_000])
    again = train(folder, *LIMITS[0])
    assert again.returncode == 0 and "checkpoint_last.pt was cut off; the training goes on from" in again.stderr
    found = (torch.load(folder / name, weights_only=False)["model"] for name in before if name.endswith("last.pt"))
    (folder / "whole.pt").write_bytes(before["checkpoint_last.pt"])
    wanted = torch.load(folder / "whole.pt", weights_only=False)["model"]
    assert all(torch.equal(value, wanted[name]) for model in found for name, value in model.items())


def test_files_that_are_no_checkpoint_of_today_are_not_taken_for_cut_off(tmp_path: Path) -> None:
    last = tmp_path / "checkpoint_last.pt"
    torch.save({"a": torch.ones(3)}, last, _use_new_zipfile_serialization=False)
    before = last.read_bytes()
    trainings.mend_last(tmp_path)
    assert last.read_bytes() == before


def test_two_trainings_in_one_folder(finished: Path) -> None:
    before = contents(finished / "0")
    with another_in(finished / "0"):
        refused = train(finished / "0", "--max-update", "9")
        assert refused.returncode == 2 and f"--save-dir {finished}/0: another process" in refused.stderr
        assert {**contents(finished / "0"), files.LOCK: b""} == {**before, files.LOCK: b""}


def test_the_copy_of_a_checkpoint_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq.file_io import PathManager

    one, last = tmp_path / "one.pt", tmp_path / "checkpoint_last.pt"
    one.write_text("new")
    last.write_text("old")

    def killed(source: Path, target: Path) -> None:
        Path(target).write_text("ne")
        raise KeyboardInterrupt

    assert not source_has("fairseq.file_io:PathManager.copy", "return shutil.copyfile")()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(one), str(last), overwrite=True)
    assert last.read_text() == "old"
    assert PathManager.copy(str(one), str(last), overwrite=True) and last.read_text() == "new"


@pytest.mark.parametrize(
    ("environment", "options", "first"),
    [
        ({}, {}, True),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "RANK": "0"}, {}, True),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "RANK": "1"}, {}, False),
        ({"RANK": "1"}, {}, True),
        ({}, {"distributed_init_method": "tcp://a:1", "distributed_rank": 1}, False),
        ({"SLURM_PROCID": "1"}, {"distributed_port": 9}, False),
        ({"SLURM_PROCID": "1"}, {}, True),
    ],
)
def test_the_first_process_owns_the_folder(
    environment: dict[str, str], options: dict[str, Any], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "WORLD_SIZE", "RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setitem(os.environ, name, value)
    defaults = {"distributed_init_method": None, "distributed_rank": 0, "distributed_port": -1}
    assert fairseq_commands._is_first(argparse.Namespace(**{**defaults, **options})) == first
