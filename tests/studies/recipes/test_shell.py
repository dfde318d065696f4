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
from leapformer_fairseq.studies.recipes.recipe import launcher_of, logged, ours, training
from leapformer_fairseq.studies.recipes.sparsefinder import Sparsefinder
from leapformer_fairseq.support import files
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import kept
from tests.studies.recipes.running import Cells, dry_run
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


def test_what_is_shown_and_recorded_is_the_line_that_starts_the_training(tmp_path, monkeypatch):
    """With the programs' names in place of paths of this environment."""
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/bash\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
    launcher = Launcher("slurm", processes=4, machines=2, slurm_options=["--gpus-per-node", "4"])
    cell = Cell("run", (training(tmp_path / "a b", tmp_path / "out/run"),))
    _, (shown,), _ = run(tmp_path / "out", cell, launcher=launcher, dry=True)
    run(tmp_path / "out", cell, launcher=launcher)
    line = shown.splitlines()[1]
    assert line in (tmp_path / "out/commands.sh").read_text().splitlines()
    words, started = shlex.split(line), [*launcher.prefix(), *cell.steps[0].words]
    assert words[:6] == started[:6] == [*["srun", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node", "4"], "bash"]
    assert words[7].replace("torchrun", shlex.join([sys.executable, "-m", "torch.distributed.run"])) == started[7]
    assert words[8:] == started[8:]
    assert Launcher("torchrun", 4).prefix(typed=True)[:3] == ["torchrun", "--standalone", "--nproc-per-node=4"]
    assert Launcher().prefix(typed=True) == ["leapformer"]


CONFIGURED = ["--max-tokens", "30000", "--update-freq", "2"]  # of each of two processes


@pytest.mark.parametrize(
    ("launcher", "own", "kept"),
    [
        (Launcher("torchrun", 2), [], []),
        (Launcher("torchrun", 1), [], ["--update-freq", "4"]),
        (Launcher("torchrun", 4), [], ["--update-freq", "1"]),
        (Launcher("slurm", 2, 2), [], ["--update-freq", "1"]),
        (Launcher("torchrun", 3), ["--update-freq=1"], []),  # a batch of the user's
        (Launcher("torchrun", 1), ["--max-tokens", "9"], ["--update-freq", "4"]),
        (Launcher(), [], ["--update-freq", "4", "--distributed-world-size", "1"]),
        (Launcher(), ["--update-freq", "7"], ["--distributed-world-size", "1"]),
        (Launcher(), ["--distributed-world-size", "4"], ["--update-freq", "1"]),
    ],
)
def test_other_processes_have_the_same_batch(launcher, own, kept, monkeypatch):
    monkeypatch.setattr(launching, "gpus", lambda: 0)
    assert launcher.keep_batch(2, [*CONFIGURED, *own], own, "--st-options") == kept


@pytest.mark.parametrize(("gpus", "used", "frequency"), [(1, 1, 4), (2, 2, 2), (3, 2, 2), (8, 4, 1)])
def test_as_many_gpus_are_used_as_can_share_the_batch(gpus, used, frequency, monkeypatch):
    monkeypatch.setattr(launching, "gpus", lambda: gpus)
    words = Launcher().keep_batch(2, CONFIGURED, [], "--st-options")
    assert launching.value_of(words, "--distributed-world-size") == str(used)
    assert int(launching.value_of([*CONFIGURED, *words], "--update-freq")) == frequency
    assert Launcher().keep_batch(2, [*CONFIGURED, "--cpu"], [], "--st-options")[-1] == "1"


def test_processes_that_cannot_share_a_batch_are_told_which_can():
    with pytest.raises(LeapformerError) as said:
        Launcher("torchrun", 3).keep_batch(2, CONFIGURED, [], "--st-options")
    assert str(said.value) == (
        "3 processes cannot share the batch of 2 with --update-freq 2; give a number of 1, 2, 4, or a batch of your "
        'own: --st-options "--max-tokens N --update-freq N"'
    )


@pytest.mark.parametrize(("name", "paper"), [
    (name, paper) for name, about in catalog.DATASETS.items() for paper in configuration.names(name)
    if about.recipe is not Sparsefinder
])  # fmt: skip
def test_every_configuration_says_for_how_many_processes_its_batch_is(name, paper):
    assert int(configuration.load(name, paper)["batch-processes"]) >= 1


@pytest.mark.parametrize(
    ("words", "frequencies"),
    [
        ("mustc", [1, 1]), ("covost2", [1, 1]), ("wikitext103 --paper leapformer", [2]), ("wmt14_ende", [2]),
        ("mlm --paper roberta", [32]), ("ljspeech", [1]), ("speech --train a --dev b --test c", None), ("glue", None),
    ],
)  # fmt: skip
def test_every_recipe_keeps_its_batch(words, frequencies, tmp_path):
    """With four processes; where that cannot be, it says so before anything is done."""
    command = [*words.split(), "--root", "/r", "--out", tmp_path, "--launcher", "torchrun", "--processes", "4"]
    command = [word for word in command if word not in ("--root", "/r") or not words.startswith("speech")]
    if frequencies is None:
        with pytest.raises(LeapformerError, match="4 processes cannot share the batch of 1 with --update-freq 1; give"):
            dry_run(*command)
        return
    found = [shlex.split(line) for line in dry_run(*command) if line.startswith("torchrun ")]
    assert [int(launching.value_of(line, "--update-freq") or 1) for line in found] == frequencies
    assert not any("--distributed-world-size" in line for line in found)


def test_the_quickstart_shares_its_frames(tmp_path):
    for processes, frames in (1, "4000"), (4, "1000"):
        lines = dry_run("quickstart", "--out", tmp_path, "--launcher", "torchrun", "--processes", processes)
        found = {launching.value_of(shlex.split(line), "--max-tokens") for line in lines if " train " in line}
        assert found == {frames}
    with pytest.raises(LeapformerError, match="at most 4 processes can share the batch of 4,000 frames"):
        dry_run("quickstart", "--out", tmp_path, "--launcher", "torchrun", "--processes", 5)


def test_a_launcher_is_passed_on_or_refused(tmp_path):
    words = ["--launcher", "slurm", "--processes", "2", "--machines", "3", "--slurm-options", "--gpus-per-node 2"]
    shown = dry_run("sparsefinder", "teach", "--root", "/r", "--out", tmp_path, *words, "--restarts", 1)
    passed = [shlex.split(line) for line in shown if line.startswith("leapformer recipe ")]
    assert passed and all(Launcher("slurm", 2, 3, ["--gpus-per-node", "2"], 1) == launcher(line) for line in passed)
    plain = dry_run("sparsefinder", "teach", "--root", "/r", "--out", tmp_path)
    assert not any("--launcher" in line for line in plain)
    for recipe in ("lra --reduced", "talks --root / --checkpoints a"):
        with pytest.raises(LeapformerError, match=f"{recipe.split()[0]} starts no trainings by a launcher; leave"):
            dry_run(*recipe.split(), "--out", tmp_path, *words)
    with pytest.raises(LeapformerError, match="--linearize starts its trainings itself"):
        dry_run("multi30k", "--root", "/r", "--out", tmp_path, "--linearize", "x.pt", *words)


def launcher(words: list[str]) -> Launcher:
    """The launcher that a command `leapformer recipe NAME ...` selects."""
    parser, _ = catalog.parser_for(words[2], words[3:])
    return launcher_of(parser.read(parser.apart(words[3:])[1]), catalog.DATASETS[words[2]].recipe)


@pytest.mark.parametrize(("restarts", "leaves", "attempts"), [(0, True, 1), (1, True, 2), (5, False, 1)])
def test_a_training_that_dies_goes_on_if_it_came_further(tmp_path, monkeypatch, restarts, leaves, attempts):
    script = tmp_path / "training"
    save = tmp_path / "run"
    script.write_text(
        f"#!/bin/bash\necho attempt\n[[ -f {save}/checkpoint_last.pt ]] && exit 0\n"
        f"{f'touch {save}/checkpoint_last.pt' if leaves else ':'}\nkill -KILL $$\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(Launcher, "prefix", lambda self, typed=False: [str(script)])
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


@pytest.mark.parametrize("script", kept([["recipe.sh", "wikitext2"], ["quickstart.sh"]], ["quickstart.sh"]))
def test_a_script_runs_its_recipe(tmp_path, script):
    if not SCRIPTS.is_dir():
        pytest.skip("the installed package has no scripts beside it")
    environment = {**os.environ, "LEAPFORMER_VENV": sys.prefix}
    command = ["bash", str(SCRIPTS / script[0]), *script[1:], "train", "--out", str(tmp_path), "--dry-run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    trained = re.findall(r"^(?:leapformer|torchrun .*) train ", done.stdout, re.MULTILINE)
    assert done.returncode == 0 and len(trained) == (18 if script[1:] else 2), done.stderr


def test_the_list_of_recipes_names_all(capsys):
    assert main(["recipe"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == catalog.known_names()
