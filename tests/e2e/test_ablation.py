"""A whole ablation of a tiny language model with real trainings, interrupted while the second one runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from leapformer_fairseq.models.averaging import describe_checkpoint

from ..commands import done, leapformer
from ..forks import Fork
from ..reversed_text import reversed_text

TRAINING = (
    "--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 16 --optimizer adam --lr 2e-3 "
    "--max-epoch 2 --max-tokens 160 --required-batch-size-multiple 1 --num-workers 0 --seed 1 --cpu --log-interval 1 "
    "--no-epoch-checkpoints"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return reversed_text(tmp_path_factory.mktemp("ablation"), train=40, valid=10) / "lm"


def interrupted(command: list[str], sign: Path) -> str:
    """What `command` says on standard error when it is interrupted as soon as there is something in the file `sign`."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile("w+") as errors:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = Fork(command, subprocess.DEVNULL, output, errors, environment)
        deadline = time.monotonic() + 120
        while not (sign.exists() and sign.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        status = process.wait(120)
        errors.seek(0)
        said = errors.read()
    assert status == 130, said
    return said


@pytest.mark.full
def test_an_ablation_that_was_interrupted_ends_with_a_table(data, tmp_path):
    out = tmp_path / "out"
    options = ["--out", str(out), "--mechanisms", "leap", "cosformer", "--tolerance", "0.5"]
    command = leapformer("ablate", *options, "--", "train", str(data), *TRAINING.split())
    errors = interrupted(command, out / "runs/leap/train.log")
    assert errors.splitlines()[-1] == "leapformer: interrupted; everything is kept, the same command resumes"
    assert (out / "runs/softmax/done").exists() and not (out / "runs/leap/done").exists()
    before = (out / "runs/softmax/train.log").read_text()

    output = done(command)
    assert (out / "runs/softmax/train.log").read_text() == before, "not trained again"
    found = json.loads((out / "table.json").read_text(encoding="utf-8"))
    rows = {row["plan"]: row for row in found["rows"]}
    assert {plan: row["status"] for plan, row in rows.items()} == {
        "softmax": "trained", "leap": "trained", "cosformer": "refused",
    }  # fmt: skip
    for plan in ("softmax", "leap"):
        best = describe_checkpoint(out / f"runs/{plan}/checkpoint_best.pt")
        assert rows[plan]["loss"] == best["valid_loss"] and rows[plan]["wps"] > 0
        logged = re.findall(r'"valid_loss": "([\d.]+)"', (out / f"runs/{plan}/train.log").read_text())
        assert rows[plan]["loss"] == min(map(float, logged)), "the best of the run"
    assert found["recommended"] == "leap" and "--decoder-self-attention leap" in output
    assert (
        "fewer than 3 points" in (out / "table.md").read_text(encoding="utf-8") and not (out / "ablation.svg").exists()
    )
    script = (out / "commands.sh").read_text(encoding="utf-8")
    assert script.count("leapformer_fairseq.cli.main train") == 2

    # Side by side, the losses are those of one after the other.
    options = ["--out", str(tmp_path / "two"), "--mechanisms", "leap", "--jobs", "2"]
    done(leapformer("ablate", *options, "--", "train", str(data), *TRAINING.split()))
    pair = json.loads((tmp_path / "two/table.json").read_text(encoding="utf-8"))["rows"]
    assert {row["plan"]: row["loss"] for row in pair} == {plan: rows[plan]["loss"] for plan in ("softmax", "leap")}
