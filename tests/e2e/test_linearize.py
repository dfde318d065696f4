"""From a softmax teacher to linear students through the command: text translation, and wait-k speech."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.averaging import load_checkpoint, total_updates
from leapformer_fairseq.studies.linearize import stages
from leapformer_fairseq.studies.linearize.command import words_of
from leapformer_fairseq.studies.linearize.pair import load_pair
from leapformer_fairseq.studies.linearize.selection import Swap, choose, kept, measured

from ..commands import done, leapformer
from ..reversed_text import TRAINING, reversed_text
from .test_training import arguments, corpus  # noqa: F401

pytestmark = pytest.mark.usefixtures("forked_trainings")

SIZES = "--encoder-layers 1 --decoder-layers 2 --encoder-embed-dim 32 --decoder-embed-dim 32 --max-tokens 200"
STAGES = ["--align-updates", "40", "--align-rate", "1e-2", "--distill-updates", "10", "--distillation-weight", "1"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """The checkpoint of a small softmax translator that reverses sentences, somewhat."""
    root = reversed_text(tmp_path_factory.mktemp("linearize"), train=200, valid=10)
    words = f"--task translation --arch leapformer_nmt_tiny {TRAINING} {SIZES} --max-update 60 --no-epoch-checkpoints"
    plans = [f"--{block}-attention=softmax" for block in ("encoder-self", "decoder-self", "decoder-cross")]
    smoothed = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--save-interval", "10"]
    done(leapformer("train", str(root / "mt"), *words.split(), *plans, *smoothed, "--save-dir", str(root / "model")))
    return root / "model/checkpoint_best.pt"


@pytest.fixture(scope="module")
def linearized(teacher, tmp_path_factory) -> Path:
    """What the command leaves with one block kept."""
    out = tmp_path_factory.mktemp("linear") / "out"
    assert linearize(teacher, out, "--keep", "1") == 0
    return out


def linearize(teacher: Path, out: Path, *more: str, attention: str = "leap") -> int:
    return main(["linearize", "--path", str(teacher), "--attention", attention, "--out", str(out), *STAGES, *more])


def pair_of(teacher: Path, attention: str = "leap", checkpoint: Path | None = None):
    args = load_checkpoint(teacher)["cfg"]["model"]
    plans = {f"{block}_attention": attention for block in ("encoder_self", "decoder_self", "decoder_cross")}
    return load_pair([args.data, *words_of(Namespace(**{**vars(args), **plans}))], str(teacher), checkpoint)


def test_alignment_takes_more_than_half_of_the_distance(teacher, linearized):
    names = frozenset(block.name for block in pair_of(teacher).blocks)
    found = []
    for checkpoint in (teacher, linearized / "align/checkpoint_best.pt"):
        pair = pair_of(teacher, checkpoint=checkpoint)
        found += measured(pair, pair.batches(100), [names])
    assert found[1] < 0.5 * found[0]


def test_blocks_are_replaced_in_the_order_of_what_they_cost(teacher, linearized):
    pair = pair_of(teacher, checkpoint=linearized / "align/checkpoint_best.pt")
    batches, names = pair.batches(100), [block.name for block in pair.blocks]
    assert measured(pair, batches, [frozenset()]) == [0.0], "with no block replaced it is the teacher"
    swaps = [Swap(*one) for one in json.loads((linearized / "order.json").read_text())["swaps"]]
    assert sorted(swap.block for swap in swaps) == sorted(names)
    for i, swap in enumerate(swaps):
        done_before = frozenset(one.block for one in swaps[:i])
        left = [name for name in names if name not in done_before]
        costs = dict(zip(left, measured(pair, batches, [done_before | {name} for name in left]), strict=True))
        assert swap.block == min(costs, key=costs.__getitem__)
        assert swap.distance == pytest.approx(costs[swap.block], rel=1e-4)
    assert list(choose(pair, batches, swaps[:-1])) == [pytest.approx(swaps[-1])] or swaps[-1:]


def test_the_student_keeps_the_block_that_costs_most(teacher, linearized):
    result = json.loads((linearized / "keep1/result.json").read_text())
    *_, last = json.loads((linearized / "order.json").read_text())["swaps"]
    assert result["kept"] == [last[0]] and len(result["replaced"]) == 4
    state, before = load_checkpoint(linearized / "keep1/checkpoint.pt"), load_checkpoint(teacher)
    block, layer = last[0].split(".")
    plan = getattr(state["cfg"]["model"], block.replace("-", "_") + "_attention")
    assert [name for part in plan.split(",") for name in [part.split("*")[0]]].count("softmax") == 1
    assert state["cfg"]["criterion"] == before["cfg"]["criterion"], "it is loaded as the teacher is"
    assert 0 < result["distance"]["distilled"] < 0.1 and result["distance"]["aligned"] > 0


def test_the_table_holds_every_student(teacher, linearized, capsys):
    assert linearize(teacher, linearized) == 0
    table = json.loads((linearized / "table.json").read_text())
    assert [len(student["kept"]) for student in table["students"]] == [0, 1]
    assert "align is finished, skipped" in capsys.readouterr().out
    assert (linearized / "linearize.svg").stat().st_size > 1000


def test_the_student_translates(teacher, linearized):
    data = load_checkpoint(teacher)["cfg"]["model"].data
    words = ["generate", data, "--path", str(linearized / "keep1/checkpoint.pt"), "--gen-subset", "valid", "--cpu"]
    assert done(leapformer(*words)).count("\nH-") == 10


def test_an_interrupted_alignment_ends_at_the_same_parameters(teacher, linearized, tmp_path):
    """Half of it, then all of it, in the folder of the same command."""
    out = tmp_path / "out"
    words = (linearized / "commands.sh").read_text().replace(str(linearized), str(out)).splitlines()
    command = next(line for line in words if "leapformer_alignment" in line).split()[1:]
    command = [word.strip("'") for word in command]
    done(leapformer(*command, "--stop-time-hours", "0.000001"))  # stops at its first validation
    done(leapformer(*command))
    one, other = (load_checkpoint(folder / "align/checkpoint_last.pt") for folder in (linearized, out))
    assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())


def test_with_its_own_plan_the_student_is_the_teacher(teacher, tmp_path):
    assert linearize(teacher, tmp_path / "out", attention="softmax") == 0
    one, other = load_checkpoint(teacher), load_checkpoint(tmp_path / "out/keep0/checkpoint.pt")
    assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())


@pytest.mark.parametrize(
    ("count", "largest", "names"), [(0, None, ""), (2, None, "bc"), (0, 0.5, "c"), (1, 9.0, ""), (0, 0.0, "abc")]
)
def test_what_is_kept(count, largest, names):
    swaps = [Swap("a", 0.2), Swap("b", 0.4), Swap("c", 1.0)]
    assert kept(swaps, count, largest) == frozenset(names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "5"], "--keep 5: 5 blocks are replaced; give 0 to 4"),
        (["--", "--decoder-layers", "3"], "the student has 3 decoder layers, the teacher 2; they must be equal"),
        (["--path", "no.pt"], "--path no.pt: no such file; give the checkpoint of a trained model"),
        (["--distillation-weight", "2"], "--distillation-weight 2.0: give 0 to 1"),
        (["--align-weights", "-1"], "--align-weights -1.0: give 0 or more"),
    ],
)
def test_what_does_not_serve_is_named_in_one_line(teacher, tmp_path, capsys, options, message):
    assert linearize(teacher, tmp_path / "out", *options) == 2
    assert capsys.readouterr().err.strip() == f"leapformer: error: {message}"


def test_a_teacher_without_softmax_is_refused(linearized, tmp_path, capsys):
    assert linearize(linearized / "keep0/checkpoint.pt", tmp_path / "out", attention="relu") == 2
    assert "the teacher has no softmax attention" in capsys.readouterr().err


@pytest.mark.full
def test_wait_k_speech(corpus, tmp_path, capsys):  # noqa: F811
    plans = [f"--{block}-attention=softmax" for block in ("encoder-self", "decoder-self", "decoder-cross")]
    done(leapformer("train", *arguments(corpus, tmp_path / "model", "--max-update", "3", *plans)))
    teacher, out = tmp_path / "model/checkpoint_last.pt", tmp_path / "out"
    words = ["--align-updates", "3", "--distill-updates", "3", "--task-updates", "2"]
    assert linearize(teacher, out, *words, attention="gated-delta") == 0
    result = json.loads((out / "keep0/result.json").read_text())
    assert result["updates"] == {"teacher": 3, "align": 3, "distill": 3, "task": 2}
    assert result["replaced"] == ["decoder-cross.1", "decoder-self.1", "encoder-self.1"]
    shutil.rmtree(out)
    assert linearize(teacher, out, *words, "--", "--waitk-lagging", "1-4") == 2
    assert "was not trained with k = 4, only with 1, 2, 3" in capsys.readouterr().err


def test_a_teacher_that_was_just_converted_counts_what_it_was_trained_before(teacher, tmp_path, capsys):
    """One update after the weights of a model of 60: a share of 61 is too few, too, and is not taken for enough."""
    args = load_checkpoint(teacher)["cfg"]["model"]
    words = [args.data, *words_of(args), "--finetune-from-model", str(teacher), "--optimizer", "adam", "--lr", "1e-9"]
    smoothed = [
        "--criterion",
        "label_smoothed_cross_entropy",
        "--label-smoothing",
        "0.1",
        "--cpu",
        "--num-workers",
        "0",
    ]
    done(leapformer("train", *words, *smoothed, "--max-update", "1", "--save-dir", str(tmp_path / "converted")))
    converted = tmp_path / "converted/checkpoint_last.pt"
    assert total_updates(load_checkpoint(converted)) == 61
    shares = ["linearize", "--path", str(converted), "--attention", "leap", "--out", str(tmp_path / "out")]
    assert main(shares) == 2
    assert capsys.readouterr().err.strip() == (
        f"leapformer: error: --path {converted} counts 61 updates of training, of which a share is too few; give "
        "--align-updates N and --distill-updates N"
    )
    assert main([*shares, "--align-updates", "2"]) == 2  # the other stage has no number yet


@pytest.mark.parametrize(
    ("counts", "total"), [([], 0), ([7], 7), ([100, 150], 150), ([5000, 1], 5001), ([100, 200, 3, 9, 4], 213)]
)
def test_updates_are_counted_over_all_trainings(counts, total):
    assert total_updates({"optimizer_history": [{"num_updates": count} for count in counts]}) == total


@pytest.mark.parametrize("more", ["", "--decoder-normalize-after", "--decoder-embed-dim 64 --no-decoder-final-norm"])
def test_a_student_has_the_options_of_its_teacher(teacher, more):
    """Those whose default follows from others, and those that a preset sets."""
    from fairseq import options

    data = str(Path(load_checkpoint(teacher)["cfg"]["model"].data).with_name("lm"))
    begin = ["--task", "language_modeling", "--arch", "leapformer_lm", "--decoder-embed-dim", "32"]
    dims = ["--decoder-input-dim", "512", "--decoder-output-dim", "512"]
    args = options.parse_args_and_arch(options.get_training_parser(), [data, *begin, *dims, *more.split()])
    student = options.parse_args_and_arch(options.get_training_parser(), [data, *words_of(args)])
    assert vars(student) == vars(args)


def test_a_stage_took_as_long_as_all_of_its_epochs():
    epochs = [{"train_train_wall": "30", "train_wall": "40"}, {"loss": "1"}, {"train_train_wall": "12.5"}]
    assert stages._seconds(epochs) == 42.5 and stages._seconds([]) == 0
