"""Classification through fairseq's commands: it learns, resumes, validates, and its errors are one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.arrays import About, Example, write_about, write_split

from ..commands import done, leapformer, run

NAME = "leapformer_classification"
TRAINING = (
    f"--task {NAME} --criterion {NAME} --arch leapformer_classifier --optimizer adam --lr 3e-3 --batch-size 16 "
    "--log-format simple --cpu --num-workers 0 --encoder-embed-dim 32 --longest 64 "
    "--best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --no-epoch-checkpoints"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Is there a 7 in the sequence? And pairs: is there one in both?"""
    root = tmp_path_factory.mktemp("classes")
    random = np.random.default_rng(1)
    for name, inputs in (("one", 1), ("two", 2)):
        about = About(12, 2, inputs)
        (root / name).mkdir()
        write_about(root / name, about)
        for split, count in (("train", 400), ("valid", 67), ("test", 33)):
            examples = []
            for i in range(count):
                sequences = [random.choice([1, 2, 3, 4, 5, 6, 8, 9, 10], random.integers(3, 20)) for _ in range(inputs)]
                for sequence in sequences if i % 2 else sequences[1:]:
                    sequence[random.integers(len(sequence))] = 7
                examples.append(Example(tuple(sequences), i % 2))
            write_split(root / name, split, examples, about)
    return root


def accuracy(output: str) -> float:
    return float(re.findall(r"'(?:valid|test)' subset \| .*?accuracy ([0-9.]+)", output)[-1])


@pytest.mark.parametrize(
    "plan", ["leap", pytest.param("softmax", marks=pytest.mark.full), pytest.param("luna", marks=pytest.mark.full)]
)
def test_it_learns_resumes_and_validates(data, tmp_path, plan):
    command = f"{data}/one {TRAINING} --encoder-self-attention {plan} --save-dir {tmp_path}"
    done(leapformer("train", *command.split(), "--max-epoch", "2"))
    out = done(leapformer("train", *command.split(), "--max-epoch", "5"))
    assert "Loaded checkpoint" in out and accuracy(out) > 85
    checking = f"--task {NAME} --path {tmp_path}/checkpoint_best.pt --valid-subset test --cpu --log-format simple"
    checked = done(leapformer("validate", f"{data}/one", *checking.split(), "--batch-size", "5"))
    if plan == "leap":
        drawing = f"maps --path {tmp_path}/checkpoint_best.pt --input test --lines 5 --out {tmp_path}/maps"
        assert "encoder-self" in done(leapformer(*drawing.split()))
        assert (tmp_path / "maps/encoder-self_layer1_reweighting.svg").is_file()
    found = accuracy(checked)
    assert found > 80 and found == round(100 * round(found * 33 / 100) / 33, 3)  # of 33 examples, to a thousandth


@pytest.mark.full
def test_pairs_and_packed_sequences(data, tmp_path):
    command = f"{data}/two {TRAINING} --encoder-self-attention luna --pooling packed --save-dir {tmp_path}"
    assert accuracy(done(leapformer("train", *command.split(), "--max-epoch", "8"))) > 75
    checking = f"--task {NAME} --path {tmp_path}/checkpoint_best.pt --valid-subset test --cpu --batch-size 5"
    refused = run(leapformer("validate", f"{data}/one", *checking.split()))
    assert refused.returncode == 2 and "the data has inputs 1, the checkpoint was trained with 2" in refused.stderr


def test_a_sequence_that_the_model_has_no_room_for(data, tmp_path):
    command = f"{data}/one {TRAINING} --max-positions 18 --save-dir {tmp_path} --max-update 1"
    refused = run(leapformer("train", *command.split()))
    assert refused.returncode == 2
    assert "a sequence of 19 numbers, and the model has room for 17; cut sequences with --longest 17" in refused.stderr
    done(leapformer("train", *command.split(), "--longest", "17"))


@pytest.mark.full
def test_fairseq_train_finds_the_task(data, tmp_path):
    """By --user-dir alone."""
    code = "import sys; from fairseq_cli.train import cli_main; sys.exit(cli_main())"
    command = f"--user-dir {PLUGIN_DIR} {data}/one {TRAINING} --save-dir {tmp_path} --max-update 3"
    subprocess.run([sys.executable, "-c", code, *command.split()], check=True, capture_output=True)
    assert (tmp_path / "checkpoint_best.pt").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--longest 0", "--longest 0: give at least 1"),
        ("--padded-length 10", "--padded-length 10: give at least --longest 64"),
        ("--encoder-self-attention nothing", "nothing"),
        ("--pooling packed --encoder-self-attention leap", "--pooling packed: no layer of 'leap' has a carry"),
    ],
)
def test_bad_options_are_one_line(data, tmp_path, options, message, capsys):
    assert main(["train", *f"{data}/one {TRAINING} --save-dir {tmp_path} {options}".split()]) == 2
    assert message in (err := capsys.readouterr().err) and "Traceback" not in err


def test_a_folder_without_arrays(tmp_path, capsys):
    assert main(["train", *f"{tmp_path} {TRAINING} --save-dir {tmp_path}/out".split()]) == 2
    err = capsys.readouterr().err
    assert "data.json cannot be read" in err and "prepare lra" in err
