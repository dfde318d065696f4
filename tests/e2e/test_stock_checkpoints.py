"""Weights of fairseq's own models in ours: the same function, or a refusal that says what to give; and what is new."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..commands import done, leapformer, run
from ..reversed_text import TRAINING, reversed_text

TRAINING += " --max-tokens 200 --no-epoch-checkpoints"
SIZES = "--decoder-layers 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-attention-heads 2"
LM = f"--task language_modeling --tokens-per-sample 32 {TRAINING} {SIZES}"
DIMS = "--decoder-input-dim 32 --decoder-output-dim 32"
SOFTMAX = "--decoder-self-attention softmax"
STILL = "--max-update 1 --lr 1e-9"  # a training that changes nothing


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return reversed_text(tmp_path_factory.mktemp("stock"), train=200, valid=20, test=30)


def trained(data: Path, save: Path, options: str) -> Path:
    done(leapformer("train", str(data / "lm"), *options.split(), "--save-dir", str(save)))
    return save / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def stock(data) -> Path:
    """fairseq's own language model, whose norms follow its blocks."""
    return trained(data, data / "stock", f"--arch transformer_lm {LM} {DIMS} --max-update 60")


def perplexity(data: Path, model: Path) -> float:
    output = done(
        leapformer(
            "eval-lm", str(data / "lm"), "--path", str(model), "--tokens-per-sample", "32", "--max-tokens", "800"
        )
    )
    return float(re.search(r"Perplexity: ([\d.]+)", output).group(1))


def begun(data: Path, save: Path, checkpoint: Path, options: str, how: str = "--finetune-from-model"):
    words = f"--arch leapformer_lm {LM} {STILL} {options} {how} {checkpoint} --save-dir {save}"
    return run(leapformer("train", str(data / "lm"), *words.split()))


def test_norms_after_the_blocks_are_obeyed(data, stock, tmp_path):
    finished = begun(data, tmp_path, stock, f"{SOFTMAX} --decoder-normalize-after")
    assert finished.returncode == 0, finished.stderr
    assert perplexity(data, tmp_path / "checkpoint_last.pt") == pytest.approx(perplexity(data, stock), rel=1e-3)


@pytest.mark.parametrize("how", ["--finetune-from-model", "--restore-file"])
@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (
            "--no-decoder-final-norm",  # then all shapes fit
            "decoder_normalize_before is False in the checkpoint and True in this model; "
            "give --decoder-normalize-after",
        ),
        (
            "--decoder-normalize-after --activation-fn gelu",
            "activation_fn is relu in the checkpoint and gelu in this model; give --activation-fn relu",
        ),
        (
            "--decoder-normalize-after --decoder-attention-heads 4",
            "decoder_attention_heads is 2 in the checkpoint and 4 in this model; give --decoder-attention-heads 2",
        ),
        (
            "--decoder-normalize-after --no-scale-embedding",
            "no_scale_embedding is False in the checkpoint and True in this model; leave --no-scale-embedding out",
        ),
    ],
)
def test_another_function_is_refused_with_the_flag_to_give(data, stock, tmp_path, options, difference, how):
    finished = begun(data, tmp_path, stock, f"{SOFTMAX} {options}", how)
    assert finished.returncode == 2
    assert finished.stderr.strip().splitlines()[-1] == f"leapformer: error: {stock}: {difference}"


def test_the_log_says_what_was_replaced_what_is_new_and_what_was_assumed(data, stock, tmp_path):
    finished = begun(data, tmp_path, stock, "--decoder-normalize-after")
    assert finished.returncode == 0, finished.stderr
    output = finished.stdout + finished.stderr
    assert (
        "decoder-self attention: leap instead of softmax in layers 1 and 2 (without --decoder-self-attention" in output
    )
    assert re.search(r"new, with initial values: \d+ parameters, decoder\.layers\.\*\.self_attn\.mechanism\.", output)


def test_nothing_is_logged_where_nothing_differs(data, stock, tmp_path):
    finished = begun(data, tmp_path, stock, f"{SOFTMAX} --decoder-normalize-after")
    assert "instead of" not in finished.stdout + finished.stderr
