"""Real training runs of a tiny model: through fairseq's own command, interrupted and resumed, and bad manifests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import leapformer_fairseq

from ..commands import leapformer, run
from ..data.tiny_corpus import tiny_corpus
from ..forks import Fork
from ..fresh import run_after

PLUGIN = Path(leapformer_fairseq.__file__).parent


@pytest.fixture(scope="module")
def corpus() -> Path:
    return tiny_corpus()


def arguments(corpus: Path, save: Path, *more: str) -> list[str]:
    sizes = (
        "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --conv-out-channels 2"
    )
    fixed = (
        "--task speech_to_text --config-yaml config_st.yaml --train-subset train_st --valid-subset dev_st "
        "--arch leapformer_simulst_tiny --waitk-lagging 1-3 --fixed-pre-decision-ratio 3 --optimizer adam --lr 1e-3 "
        "--criterion label_smoothed_cross_entropy --max-tokens 1200 --num-workers 1 --required-batch-size-multiple 1 "
        "--log-format json --log-interval 1 --seed 1 --cpu --skip-invalid-size-inputs-valid-test"
    )
    return [str(corpus), *fixed.split(), *sizes.split(), "--save-dir", str(save), *more]


def losses(output: str) -> dict[int, str]:
    """Loss by update, from fairseq's JSON log lines."""
    found = {}
    for line in output.splitlines():
        start = line.find("{")
        if "train_inner" in line and start >= 0:
            entry = json.loads(line[start:])
            found[int(entry["num_updates"])] = entry["loss"]
    return found


def test_interrupted_training_ends_at_the_same_loss(corpus, tmp_path):
    limit = ("--max-update", "30", "--save-interval-updates", "10", "--keep-interval-updates", "1")
    whole = run(leapformer("train", *arguments(corpus, tmp_path / "whole", *limit)))
    assert whole.returncode == 0, whole.stderr[-2000:]

    with (tmp_path / "log").open("wb") as log:
        command = leapformer("train", *arguments(corpus, tmp_path / "cut", *limit))
        training = Fork(command, subprocess.DEVNULL, log, log, {**os.environ, "OMP_NUM_THREADS": "1"})
        deadline = time.monotonic() + 120
        # Between two saves: what is interrupted while it is saved cannot be read, except by our recipes.
        while '"num_updates": "13"' not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        training.send_signal(signal.SIGINT)
        assert training.wait(120) != 0, "training finished before it was interrupted"
    resumed = run(leapformer("train", *arguments(corpus, tmp_path / "cut", *limit)))
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    expected, again = losses(whole.stderr + whole.stdout), losses(resumed.stderr + resumed.stdout)
    assert max(expected) == max(again) == 30
    assert again[30] == expected[30]
    assert 1 not in again, "training started again instead of resuming"


def test_fairseq_train_works_with_user_dir_from_another_folder(corpus, tmp_path):
    words = ["fairseq-train", *arguments(corpus, tmp_path / "save", "--max-update", "1", "--user-dir", str(PLUGIN))]
    code = f"import sys; sys.argv[:] = {words}; from fairseq_cli.train import cli_main; cli_main()"
    finished = run_after("import fairseq", code, tmp_path)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert (tmp_path / "save/checkpoint_last.pt").exists()


def test_a_missing_audio_file_is_named(corpus, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for item in corpus.iterdir():
        (broken / item.name).symlink_to(item)
    manifest = broken / "train_st.tsv"
    text = manifest.read_text(encoding="utf-8")
    manifest.unlink()
    first = text.splitlines()[1].split("\t")
    manifest.write_text(text.replace(first[1], "gone/nowhere.wav", 1), encoding="utf-8")
    finished = run(leapformer("train", *arguments(broken, tmp_path / "save", "--max-update", "3")))
    assert finished.returncode != 0
    assert "nowhere.wav" in finished.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--encoder-self-attention", "leep"), "unknown attention mechanism 'leep'"),
        (("--decoder-self-attention", "leap,relu"), "names 2 layers but the stack has 1"),
        (("--decoder-self-attention", "cosformer"), "--cosformer-length"),
        (("--waitk-lagging", "0"), "give k >= 1"),
    ],
)
def test_bad_options_end_with_one_clear_line(corpus, tmp_path, options, message):
    finished = run(leapformer("train", *arguments(corpus, tmp_path / "save", "--max-update", "1", *options)))
    assert finished.returncode == 2
    assert finished.stderr.splitlines()[-1].startswith("leapformer: error: ")
    assert message in finished.stderr.splitlines()[-1]
