"""What recipes run their commands with: logs, progress, what is finished, launchers, the script that runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies import launching, trainings
from leapformer_fairseq.studies.engine import Cell, Engine, State
from leapformer_fairseq.studies.launching import COMMANDS, Launcher, Losses
from leapformer_fairseq.studies.recipes import catalog, configuration
from leapformer_fairseq.studies.recipes.recipe import logged, ours, training
from leapformer_fairseq.support import files
from leapformer_fairseq.support.errors import LeapformerError
from tests.studies.recipes.running import Cells
from tests.support.test_files import another_in

SCRIPTS = PLUGIN_DIR.parent / "scripts"


def run(out: Path, *cells: Cell, **options: Any) -> tuple[State, list[str], list[list[str]]]:
    """What is known at the end, what was said, and which commands were called."""
    said: list[str] = []
    called: list[list[str]] = []
    engine = Engine(Cells(out, *cells), say=said.append, call=lambda words: called.append(list(words)), **options)
    return engine.run(), said, called


def test_what_is_finished_is_not_run_again(tmp_path):
    data = Cell("data", (ours("score", 1), ours("table", tmp_path)))
    assert run(tmp_path, data)[2] == [["score", "1"], ["table", str(tmp_path)]]
    _, said, called = run(tmp_path, data)
    assert not called and f"{tmp_path}/data is finished, skipped" in said[-1]
    commands = (tmp_path / COMMANDS).read_text().splitlines()
    assert commands[-2:] == ["leapformer score 1", f"leapformer table {tmp_path}"]


def test_what_fails_is_not_finished(tmp_path):
    log = tmp_path / "data/log"
    for _ in range(2):
        state, *_ = run(tmp_path, Cell("data", (logged("doctor", "--nonsense"),)))
        assert re.search(r"unrecognized arguments: --nonsense; .*; see .*/data/log", state.failed["data"])
    assert (
        not (tmp_path / "data/done").exists()
        and log.read_text().count("leapformer: error: unrecognized arguments") == 2
    )


def test_nothing_is_done_dry(tmp_path):
    steps = (ours("score", "a b"), logged("generate"), training(tmp_path, tmp_path))
    cell = Cell("run", steps, records={"run": "--seed 1"})
    _, (said,), called = run(tmp_path / "out", cell, dry=True)
    lines = said.splitlines()
    assert lines[:3] == ["# run", "leapformer score 'a b'", "leapformer generate"]
    assert lines[3].startswith("leapformer train ")
    assert not called and not any(tmp_path.iterdir())


def test_a_run_of_other_options_and_one_that_is_running_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "GRACE_S", 0.05)

    def reason(name: str, *options: str) -> str:
        return run(tmp_path, Cell(name, (), records={"run": " ".join(options)}))[0].failed.get(name, "")

    assert not reason("a", "--lr", "1")
    assert "holds the run of another command (--lr 1); choose another" in reason("b", "--lr", "2")
    with another_in(tmp_path / "run"):
        assert "is running here" in reason("c", "--lr", "1")


def test_losses_come_with_the_time_that_is_left(monkeypatch):
    said: list[str] = []
    now = iter([100.0, 130.0, 160.0])
    monkeypatch.setattr(launching.time, "monotonic", lambda: next(now))
    watch = Losses(["train", "--max-update", "9", "--max-epoch", "10", "--max-update", "300"], said.append)
    for update in (100, 150):
        watch({"loss": "4.5", "l1_loss": "0.5", "num_updates": str(update), "update": update / 100})
    watch({"epoch": 1, "valid_loss": "4.1", "valid_ppl": "17", "valid_num_updates": "150"})
    watch({"epoch": 1, "dev_st_loss": "3", "dev_st_accuracy": "80", "dev_st_num_updates": "150"})
    watch({"epoch": 1, "train_loss": "4.1", "train_num_updates": "150"})
    watch({"loss": "4", "num_updates": "240", "update": 2.4})
    assert said == [
        "update 100: loss 4.5, L1 0.5",
        "update 150: loss 4.5, L1 0.5, 90 s left",
        "update 150: valid loss 4.1, perplexity 17",
        "update 150: valid loss 3, accuracy 80",
        "update 240: loss 4, 26 s left",
    ]


@pytest.mark.parametrize(
    ("limit", "losses", "told"),
    [
        (["--max-update", "100"], [9, 8, 7, 6, 5, 5, 5, 5, 5, 4.5], '10.0% in the last .*"--max-update 200"'),
        (["--max-update", "900", "--max-epoch", "10"], [9, 8, 7, 6, 5, 5, 5, 5, 5, 4.5], '10.0% .*"--max-epoch 20"'),
        (["--max-update", "100"], [9, 8, 7, 6, 5, 5, 5, 5, 5, 4.96], None),
        (["--max-update", "100"], [9, 8, 7, 6, 4, 5, 5, 5, 5, 4.5], None),  # the best was earlier
        (["--max-update", "30"], [9, 6, 5.7], "1.5% in the last"),  # three validations: a third of the training is 5 %
        (["--max-update", "10"], [9], None),
        (["--max-update", "10"], [], None),
    ],
)
def test_a_training_that_was_too_short_is_told(limit, losses, told):
    said: list[str] = []
    watch = Losses(["train", *limit], said.append)
    for number, loss in enumerate(losses, 1):
        watch({"dev_st_loss": str(loss), "dev_st_num_updates": str(10 * number)})
    said.clear()
    watch.end("--st-options")
    assert bool(told) == bool(said) and (not told or re.search(told, said[0]))
    assert not said or "more updates would help, with another --out: --st-options " in said[0]


def test_a_process_gets_the_allocator_of_trainings_unless_the_user_has_another(monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    found = trainings.environment()
    assert found["GOMP_SPINCOUNT"] == "20000" and "MALLOC_TOP_PAD_" not in found
    assert found["OMP_NUM_THREADS"] == str(os.cpu_count())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert trainings.environment()["OMP_NUM_THREADS"] == "3" and trainings.environment(1)["OMP_NUM_THREADS"] == "1"


def test_torchrun_stands_before_a_training():
    words = Launcher("torchrun", processes=4).prefix()
    assert words[1:] == [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "-m", "leapformer_fairseq.cli.main"
    ]  # fmt: skip


@pytest.mark.parametrize(("restarts", "leaves", "attempts"), [(0, True, 1), (1, True, 2), (5, False, 1)])
def test_a_training_that_dies_goes_on_if_it_came_further(tmp_path, monkeypatch, restarts, leaves, attempts):
    script = tmp_path / "training"
    save = tmp_path / "run"
    script.write_text(
        f"#!/bin/bash\necho attempt\n[[ -f {save}/checkpoint_last.pt ]] && exit 0\n"
        f"{f'touch {save}/checkpoint_last.pt' if leaves else ':'}\nkill -KILL $$\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(Launcher, "prefix", lambda self: [str(script)])
    state, said, _ = run(tmp_path, Cell("run", (training(tmp_path, save),)), launcher=Launcher(restarts=restarts))
    if attempts == 1:
        assert state.failed["run"].startswith("attempt (killed by SIGKILL; see ")
    else:
        assert "run goes on from its last checkpoint, it died: attempt (killed by SIGKILL" in said[-1]
    assert (save / "train.log").read_text().count("attempt") == attempts


def test_slurm_starts_torchrun_on_each_machine(tmp_path):
    """A stand-in for srun runs the command for each of two nodes, as SLURM does."""
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/bash\nwhile [[ $1 == --* ]]; do echo "srun $1"; shift; done\n'
        'export SLURM_NNODES=2 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-2]\nfor node in 1 2; do "$@" || exit; done\n'
    )
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/bash\nprintf 'n1\\nn2\\n'\n")
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "torchrun $*"\n')
    for file in (srun, scontrol, python):
        file.chmod(0o755)
    launcher = Launcher("slurm", processes=8, machines=2, slurm_options=["--gpus-per-node=8"])
    words = [word.replace(shlex.quote(sys.executable), str(python)) for word in launcher.prefix()]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*words, "train", "a b"], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    on_each = (
        "torchrun -m torch.distributed.run --nnodes 2 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint n1:29400 "
        "--nproc-per-node=8 -m leapformer_fairseq.cli.main train a b"
    )
    options = ["srun --nodes=2", "srun --ntasks-per-node=1", "srun --gpus-per-node=8"]
    assert done.stdout.splitlines() == [*options, on_each, on_each]


def test_configurations_are_text_and_merged_with_their_base(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "tables.yaml").write_text("")
    (tmp_path / "data/one.yaml").write_text("epochs: 3\ntrain:\n  lr: 5e-4\n  fp16:\n  warmup-updates: 010\n")
    (tmp_path / "data/two.yaml").write_text("base: one\ntrain:\n  lr: 1\n")
    (tmp_path / "data/bad.yaml").write_text("train: [")
    monkeypatch.setattr(configuration, "configs", lambda: tmp_path)
    two = configuration.load("data", "two")
    assert two["epochs"] == "3"
    assert configuration.flags(two["train"]) == ["--lr", "1", "--fp16", "--warmup-updates", "010"]
    with pytest.raises(LeapformerError, match="no configs/data/three.yaml; choose from bad, one, two"):
        configuration.load("data", "three")
    with pytest.raises(LeapformerError, match="bad.yaml is not valid YAML"):
        configuration.load("data", "bad")


@pytest.mark.parametrize("script", [["recipe.sh", "wikitext2"], ["quickstart.sh"]])
def test_a_script_runs_its_recipe(tmp_path, script):
    if not SCRIPTS.is_dir():
        pytest.skip("the installed package has no scripts beside it")
    environment = {**os.environ, "LEAPFORMER_VENV": sys.prefix}
    command = ["bash", str(SCRIPTS / script[0]), *script[1:], "train", "--out", str(tmp_path), "--dry-run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("leapformer train ") == (18 if script[1:] else 2), done.stderr


def test_the_list_of_recipes_names_all(capsys):
    assert main(["recipe"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == catalog.known_names()
