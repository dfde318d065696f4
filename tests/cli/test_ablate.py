"""`leapformer ablate` with a trainer that only pretends to train, and what must survive when it fails or is stopped."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.scoring.figure import Figure
from leapformer_fairseq.studies import engine, trainings
from leapformer_fairseq.studies.trainings import Process

BASELINE = "softmax/softmax/softmax"
LOSSES = {
    BASELINE: 5.0,
    "leap/softmax/softmax": 5.02,
    "relu/softmax/softmax": 5.2,
    "softmax/leap/softmax": 5.04,
    "softmax/relu/softmax": 4.99,
    "softmax/softmax/leap": 5.3,
    "softmax/softmax/relu": 5.4,
    "leap/relu/softmax": 5.03,
}
FLAGS = ("--encoder-self-attention", "--decoder-self-attention", "--decoder-cross-attention")
NAN = "FloatingPointError: gradients are Nan/Inf"


class Trainer:
    """Takes the place of `trainings.Running`: writes a log and a checkpoint with the loss that its plan has.

    `faults` maps a plan to the exception that it raises, or to the error that its log ends with.
    """

    def __init__(self) -> None:
        self.losses: dict[str, float] = dict(LOSSES)
        self.speeds: dict[str, float | None] = {}
        self.faults: dict[str, BaseException | str] = {}
        self.commands: dict[str, list[str]] = {}
        self.plans: list[str] = []
        self.threads: list[str] = []
        self.running = 0
        self.at_once: list[int] = []  # how many ran when one was started

    def __call__(self, about: Process) -> Pretended:
        command = list(about.command)
        plan = "/".join(command[command.index(flag) + 1] for flag in FLAGS if flag in command)
        self.plans.append(plan)
        self.commands[plan] = command
        self.threads.append(about.environment["OMP_NUM_THREADS"])
        self.running += 1
        self.at_once.append(self.running)
        return Pretended(self, plan, about)


class Pretended:
    """A training that ends when it is looked at for the second time."""

    def __init__(self, trainer: Trainer, plan: str, about: Process) -> None:
        self.trainer, self.plan, self.about, self.looked = trainer, plan, about, False

    def poll(self) -> int | None:
        if not self.looked:
            self.looked = True
            return None
        self.trainer.running -= 1
        fault = self.trainer.faults.get(self.plan)
        if isinstance(fault, BaseException):
            raise fault
        if fault:
            self.about.log.write_text(f"Traceback\n{fault}\n")
            return 1
        loss, speed = self.trainer.losses[self.plan], self.trainer.speeds.get(self.plan, 100.0)
        self.about.watch({"valid_loss": str(loss)})
        self.about.log.write_text("" if speed is None else f'INFO:train_inner:{{"wps": "{speed}"}}\n')
        extra = {"val_loss": loss, "train_iterator": {"epoch": 2, "iterations_in_epoch": 0}}
        command = self.about.command
        folder = Path(command[command.index("--save-dir") + 1])
        torch.save({"model": {"w": torch.zeros(2)}, "extra_state": extra}, folder / "checkpoint_best.pt")
        return 0

    def close(self) -> None:
        """Nothing is open."""

    interrupt = end = close


@pytest.fixture
def trainer(monkeypatch) -> Iterator[Trainer]:
    trainer = Trainer()
    monkeypatch.setattr(trainings, "Running", trainer)
    monkeypatch.setattr(engine, "POLL_S", 0)
    # Drawing takes longer than all else.
    monkeypatch.setattr(Figure, "save", lambda figure, path, alt: str(path.write_bytes(b"SVG")))
    monkeypatch.setattr("sys.argv", ["pytest"])
    return trainer


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """What fairseq needs to build a model for a translation or a language model."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("dict.txt", "dict.en.txt", "dict.de.txt"):
        (folder / name).write_text("".join(f"w{i} 5\n" for i in range(20)))
    return folder


@pytest.fixture
def training(data) -> list[str]:
    sizes = "--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-ffn-embed-dim 8 --decoder-ffn-embed-dim 8"
    return [
        "train",
        str(data),
        *f"-s en -t de --arch leapformer_nmt_tiny --optimizer adam --max-tokens 99 --max-epoch 1 {sizes}".split(),
    ]


@pytest.fixture
def ablate(trainer, training, tmp_path):
    """Runs the command on a tiny translation model, with mechanisms that it does not refuse unless told otherwise."""

    def run(*options: str, more: tuple[str, ...] = (), out: Path = tmp_path / "out") -> int:
        chosen = options if "--mechanisms" in options else ("--mechanisms", "leap", "relu", *options)
        return main(["ablate", "--out", str(out), *chosen, "--", *training, *more])

    return run


def table(out: Path) -> dict:
    return json.loads((out / "table.json").read_text(encoding="utf-8"))


def by_plan(out: Path) -> dict[str, dict]:
    return {row["plan"]: row for row in table(out)["rows"]}


def test_replacements_are_trained_side_by_side(ablate, trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert ablate() == 0
    assert set(trainer.at_once) == {1} and set(trainer.threads) == {"7"}
    trainer.at_once.clear()
    trainer.threads.clear()
    assert ablate("--jobs", "3", out=tmp_path / "parallel") == 0
    assert trainer.at_once == [1, 1, 2, 3, 1, 2, 3, 1], "baseline, replacements, combination"
    assert set(trainer.threads) == {"1"}
    kept = ("plan", "loss", "role", "status")
    one, other = (
        [[row[name] for name in kept] for row in table(tmp_path / out)["rows"]] for out in ("out", "parallel")
    )
    assert one == other


def test_every_replacement_is_trained_and_the_combination_of_the_good_ones_verified(ablate, trainer, tmp_path, capsys):
    assert ablate() == 0
    assert trainer.plans[0] == BASELINE and trainer.plans[-1] == "leap/relu/softmax"
    assert set(trainer.plans) == set(LOSSES) and len(trainer.plans) == len(LOSSES), "each once"
    found = table(tmp_path / "out")
    assert [row["plan"] for row in found["rows"]] == sorted(LOSSES, key=lambda plan: LOSSES[plan])
    assert found["recommended"] == "leap/relu/softmax"
    row = by_plan(tmp_path / "out")["softmax/leap/softmax"]
    assert (row["block"], row["mechanism"], row["role"]) == ("decoder-self", "leap", "replacement")
    assert row["difference"] == pytest.approx(0.04) and row["relative"] == pytest.approx(0.008)
    assert row["speed_ratio"] == 1 and row["status"] == "trained" and "|commit:" in row["signature"]
    output = capsys.readouterr().out
    for text in (output, (tmp_path / "out/table.md").read_text(encoding="utf-8")):
        assert "--encoder-self-attention leap --decoder-self-attention relu --decoder-cross-attention softmax" in text
        assert "loss 5.030, +0.60% to the baseline, within the tolerance of 1.0%" in text
        assert "every run had the machine to itself" in text
    assert (tmp_path / "out/ablation.svg").is_file()


def test_the_commands_are_written_as_they_were_run(ablate, trainer, tmp_path):
    ablate()
    lines = (tmp_path / "out/commands.sh").read_text(encoding="utf-8").splitlines()
    written = [shlex.split(line) for line in lines if "leapformer_fairseq.cli.main" in line]
    assert written == [trainer.commands[plan] for plan in trainer.plans]
    assert f"cd {shlex.quote(str(Path.cwd()))}" in lines
    rows = by_plan(tmp_path / "out")
    assert all(shlex.split(rows[plan]["command"]) == trainer.commands[plan] for plan in LOSSES)
    folders = {command[command.index("--save-dir") + 1] for command in written}
    assert len(folders) == len(LOSSES), "a folder each"


def test_a_combination_that_adds_up_is_given_up_for_a_smaller_one(ablate, trainer, tmp_path, capsys):
    trainer.losses |= {"softmax/softmax/leap": 5.01, "leap/relu/leap": 5.5, "softmax/relu/leap": 5.02}
    assert ablate() == 0
    assert trainer.plans[-2:] == ["leap/relu/leap", "softmax/relu/leap"], "without the encoder, which costs most"
    output = capsys.readouterr().out
    assert "Given up: leap/relu/leap: loss 5.500, +10.00% to the baseline" in output
    assert "(trained to verify it): loss 5.020, +0.40% to the baseline, within the tolerance of 1.0%" in output
    assert table(tmp_path / "out")["recommended"] == "softmax/relu/leap"
    trainer.plans.clear()
    assert ablate() == 0 and trainer.plans == [], "and all that is remembered"


def test_the_last_of_a_combination_is_a_run_that_was_there(ablate, trainer, tmp_path, capsys):
    trainer.losses["leap/relu/softmax"] = 5.5
    assert ablate() == 0
    assert trainer.plans[-1] == "leap/relu/softmax"
    assert "a single replacement" in capsys.readouterr().out
    assert table(tmp_path / "out")["recommended"] == "softmax/relu/softmax"


def test_a_combination_that_fails_is_no_recommendation_that_was_verified(ablate, trainer, tmp_path, capsys):
    trainer.faults["leap/relu/softmax"] = NAN
    assert ablate() == 1
    assert "not trained itself" in capsys.readouterr().out


def test_a_plan_that_was_trained_is_not_trained_again(ablate, trainer, tmp_path, capsys):
    assert ablate("--blocks", "decoder-self") == 0
    assert trainer.plans == [BASELINE, "softmax/leap/softmax", "softmax/relu/softmax"]
    assert "a single replacement" in capsys.readouterr().out
    assert len(table(tmp_path / "out")["rows"]) == 3
    trainer.losses.update(dict.fromkeys(LOSSES, 9.0) | {BASELINE: 5.0})
    assert ablate(out=tmp_path / "other") == 0
    assert table(tmp_path / "other")["recommended"] == BASELINE
    assert "no replacement is within the tolerance" in capsys.readouterr().out


class TestRefusedMechanism:
    OPTIONS = ("--mechanisms", "cosformer", "--blocks", "encoder-self", "decoder-self")

    def test_it_is_listed_with_the_reason_and_no_failure(self, ablate, trainer, tmp_path, capsys):
        trainer.losses["cosformer/softmax/softmax"] = 5.0
        assert ablate(*self.OPTIONS) == 0
        assert trainer.plans == [BASELINE, "cosformer/softmax/softmax"]
        row = by_plan(tmp_path / "out")["softmax/cosformer/softmax"]
        assert row["status"] == "refused" and "--cosformer-length" in row["reason"]
        assert capsys.readouterr().out.count("Refused: decoder-self attention") == 1
        assert "softmax/cosformer/softmax" not in (tmp_path / "out/commands.sh").read_text(encoding="utf-8")

    def test_it_is_trained_where_it_serves(self, ablate, trainer):
        for plan in ("cosformer/softmax/softmax", "softmax/cosformer/softmax", "cosformer/cosformer/softmax"):
            trainer.losses[plan] = 5.0
        assert ablate(*self.OPTIONS, more=("--cosformer-length", "40")) == 0
        assert trainer.plans[-1] == "cosformer/cosformer/softmax"


class TestInterrupted:
    @pytest.mark.parametrize("stopped", [BASELINE, "softmax/leap/softmax", "leap/relu/softmax"])
    def test_the_same_command_goes_on(self, ablate, trainer, tmp_path, capsys, stopped):
        trainer.faults[stopped] = KeyboardInterrupt()
        assert ablate() == 130
        assert "interrupted; everything is kept, the same command resumes" in capsys.readouterr().err
        before = list(trainer.plans)
        assert before[-1] == stopped
        if stopped != BASELINE:
            assert by_plan(tmp_path / "out")[before[-2]]["status"] == "trained"
        trainer.faults.clear()
        assert ablate() == 0
        assert trainer.plans[len(before) :][0] == stopped, "nothing finished is trained again"
        assert set(trainer.plans) == set(LOSSES) and len(trainer.plans) == len(LOSSES) + 1
        assert table(tmp_path / "out")["recommended"] == "leap/relu/softmax"

    def test_when_all_is_finished_nothing_is_trained(self, ablate, trainer, tmp_path):
        ablate()
        before = by_plan(tmp_path / "out")
        trainer.plans.clear()
        assert ablate() == 0
        assert trainer.plans == [] and by_plan(tmp_path / "out") == before

    def test_other_tolerances_and_mechanisms_use_what_is_finished(self, ablate, trainer, tmp_path):
        ablate()
        trainer.plans.clear()
        assert ablate("--tolerance", "0") == 0
        assert trainer.plans == [] and table(tmp_path / "out")["recommended"] == "softmax/relu/softmax"
        trainer.losses["softmax/elu/softmax"] = 4.9
        assert ablate("--mechanisms", "relu", "elu", "--blocks", "decoder-self") == 0
        assert trainer.plans == ["softmax/elu/softmax"]


class TestFailures:
    def test_a_run_that_fails_is_recorded_and_the_others_go_on(self, ablate, trainer, tmp_path, capsys):
        trainer.faults["softmax/relu/softmax"] = NAN
        trainer.losses["leap/leap/softmax"] = 5.06
        assert ablate() == 1
        assert trainer.plans[-1] == "leap/leap/softmax", "composed of the others"
        row = by_plan(tmp_path / "out")["softmax/relu/softmax"]
        assert row["status"] == "failed" and row["reason"].startswith(NAN) and row["loss"] is None
        assert f"Failed: softmax/relu/softmax: {NAN}" in capsys.readouterr().out
        trainer.plans.clear()
        trainer.faults.clear()
        assert ablate() == 0
        assert trainer.plans == ["softmax/relu/softmax", "leap/relu/softmax"], "only that one is tried again"

    def test_without_a_baseline_nothing_else_is_trained(self, ablate, trainer, tmp_path, capsys):
        trainer.faults[BASELINE] = "FileNotFoundError: Dataset not found: train"
        assert ablate() == 2
        assert trainer.plans == [BASELINE]
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"leapformer: error: the baseline {BASELINE} failed: FileNotFoundError: Dataset not")
        assert by_plan(tmp_path / "out")[BASELINE]["status"] == "failed"

    def test_a_verification_that_fails_is_a_failure(self, ablate, trainer, tmp_path, capsys):
        trainer.faults["leap/relu/softmax"] = NAN
        assert ablate() == 1
        assert table(tmp_path / "out")["recommended"] == "leap/relu/softmax"
        assert "not trained itself" in capsys.readouterr().out


class TestFolder:
    def test_that_of_another_command_is_refused(self, ablate, trainer, tmp_path, capsys):
        ablate()
        before = table(tmp_path / "out")
        trainer.plans.clear()
        assert ablate(more=("--lr", "0.5")) == 2
        assert "holds the ablation of another command" in capsys.readouterr().err.splitlines()[-1]
        assert trainer.plans == [] and table(tmp_path / "out") == before

    def test_one_with_other_files_is_refused(self, ablate, trainer, tmp_path, capsys):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/notes").touch()
        assert ablate() == 2
        assert "is not empty and holds no ablation" in capsys.readouterr().err
        assert trainer.plans == []


def test_a_dry_run_shows_the_commands_and_trains_nothing(ablate, trainer, tmp_path, capsys):
    assert ablate("--dry-run", "--mechanisms", "leap", "cosformer") == 0
    output = capsys.readouterr().out
    assert output.startswith("5 runs to train, 0 trained before; one more at the end")
    assert output.count("leapformer_fairseq.cli.main train") == 5 and "\n# softmax/leap/softmax\n" in output
    assert output.count("\nRefused: ") == 2
    assert trainer.plans == [] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [["train"], ["leapformer", "train"], ["/venv/bin/fairseq-train"], []])
def test_a_command_may_have_any_name_and_its_plans_and_places_are_replaced(name, trainer, training, tmp_path, capsys):
    given = [*name, *training[1:], "--decoder-self-attention", "relu", "--save-dir=x", "--log-format", "tqdm"]
    if "fairseq" in str(name):
        given += ["--user-dir", str(PLUGIN_DIR)]
    out = str(tmp_path / "out")
    assert main(["ablate", "--out", out, "--mechanisms", "leap", "--blocks", "decoder-self", "--", *given]) == 0
    command = trainer.commands["softmax/leap/softmax"]
    program = command.index("train")
    assert command[program + 1 : program + len(training)] == training[1:], "the rest is as it was"
    own = dict(zip(command[program + len(training) :: 2], command[program + len(training) + 1 :: 2], strict=True))
    plans = dict(zip(FLAGS, ("softmax", "leap", "softmax"), strict=True))
    folder = f"{out}/runs/softmax+leap+softmax"
    assert own == {**plans, "--log-format": "json", "--log-interval": "10", "--save-dir": folder}


def test_an_interval_of_the_command_stays(ablate, trainer):
    ablate("--blocks", "decoder-self", more=("--log-interval=3",))
    assert "--log-interval" not in trainer.commands[BASELINE]


def test_layer_groups_are_replaced_one_at_a_time(ablate, trainer, tmp_path, capsys):
    plans = [f"softmax/{layers}/softmax" for layers in ("softmax", "leap,softmax", "softmax,leap", "leap")]
    trainer.losses.update(dict(zip(plans, (5.0, 5.01, 5.02, 5.03), strict=True)))
    assert ablate("--layer-groups", "2", "--mechanisms", "leap", "--blocks", "decoder-self") == 0
    assert trainer.plans == plans
    assert [row["layers"] for row in table(tmp_path / "out")["rows"]] == [None, "1", "2", None]
    assert "layers" in capsys.readouterr().out.splitlines()[0]


def test_a_language_model_has_one_block(trainer, data, tmp_path):
    trainer.losses = {"softmax": 5.0, "leap": 5.0}
    training = f"train {data} --task language_modeling --arch leapformer_lm_tiny --max-tokens 99 --max-update 5"
    training += " --optimizer adam"
    assert main(["ablate", "--out", str(tmp_path / "out"), "--mechanisms", "leap", "--", *training.split()]) == 0
    assert trainer.plans == ["softmax", "leap"] and table(tmp_path / "out")["recommended"] == "leap"


class TestSpeed:
    OPTIONS = ("--blocks", "decoder-self", "--speed-weight", "0.1")

    def test_it_is_measured_and_can_be_given_weight(self, ablate, trainer, tmp_path):
        trainer.speeds = {BASELINE: 100.0, "softmax/leap/softmax": 150.0}
        assert ablate(*self.OPTIONS) == 0
        assert table(tmp_path / "out")["recommended"] == "softmax/leap/softmax", "in spite of the smaller loss of relu"
        assert by_plan(tmp_path / "out")["softmax/leap/softmax"]["speed_ratio"] == 1.5

    def test_without_a_measured_speed_the_first_run_is_the_last(self, ablate, trainer, capsys):
        trainer.speeds[BASELINE] = None
        assert ablate(*self.OPTIONS) == 2
        assert trainer.plans == [BASELINE]
        assert "smaller --log-interval" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        (["--mechanisms", "leep"], [], "unknown attention mechanism 'leep'"),
        (["--baseline", "softmax*3"], [], "names 3 layers but the stack has 2"),
        (["--blocks", "memory"], [], "--blocks memory: this model has encoder-self, decoder-self, decoder-cross"),
        (["--layer-groups", "3"], [], "--layer-groups 3: encoder-self has 2 layers; give 1 to 2"),
        (["--tolerance", "-1"], [], "--tolerance -1.0: give 0 or more"),
        (["--speed-weight", "nan"], [], "--speed-weight nan: give 0 or more"),
        (["--jobs", "0"], [], "--jobs 0: give at least 1"),
        (["--jobs", "2", "--speed-weight", "0.1"], [], "--jobs 2 with --speed-weight 0.1: parallel trainings slow"),
        ([], ["--warp", "9"], "unrecognized arguments: --warp 9"),
        ([], ["--max-epoch", "0"], "the training command has no budget; give it --max-epoch, --max-update or"),
        ([], ["--no-save"], "--no-save in the training command: runs are compared by"),
        ([], ["--maximize-best-checkpoint-metric"], "--maximize-best-checkpoint-metric in the training command"),
        ([], ["--reset-optimizer"], "--reset-optimizer in the training command: an interrupted run resumes"),
        ([], ["--restore-file", "x.pt"], "--restore-file in the training command: an interrupted run resumes"),
        ([], ["--save-dir"], "argument --save-dir: expected one argument"),
        ([], ["--arch", "transformer"], "--arch transformer has no attention plans; `leapformer list`"),
        ([], ["--arch", "former"], "argument --arch/-a: invalid choice: 'former'; see"),
        ([], ["-t", "fr"], "dict.fr.txt: no such file or folder; check the path of the data"),
    ],
)
def test_what_does_not_serve_ends_with_one_line_before_anything_is_trained(
    options, more, message, ablate, trainer, tmp_path, capsys
):
    assert ablate(*options, more=tuple(more)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("leapformer: error: ") and message in line
    assert trainer.plans == [] and not (tmp_path / "out").exists()


def test_a_command_needs_a_model(data, tmp_path, capsys):
    assert main(["ablate", "--out", str(tmp_path / "out"), "--", "train", str(data), "--max-epoch", "1"]) == 2
    assert "needs --arch" in capsys.readouterr().err
