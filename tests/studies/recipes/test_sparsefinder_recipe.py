"""The recipe of Sparsefinder, from data to curves, with tiny models; repeated, it goes on from what is there."""

from __future__ import annotations

import json

import pytest

from tests.data.text_trees import multi30k_tree, wikitext_tree
from tests.studies.recipes.running import finished, refused

COMMON = ("--epochs", "1 1", "--grid", "small", "--seeds", "1")
SCORED = "--quality-points 1 --windows 0 3 --mechanisms sparsefinder-distance entmax-window"
BATCHES = "--max-tokens 600 --update-freq 1 --warmup-updates 2"


def curves(out, name):
    found = json.loads((out / "curves/curves.json").read_text(encoding="utf-8"))
    assert found["gold"]["name"] == name and found["quality"] and found["recall_at_sparsity"]
    for file in ("curves.md", "curves.csv", "recall.svg", "quality.svg"):
        assert (out / "curves" / file).stat().st_size > 0
    return found


@pytest.mark.full  # its commands are run in tests/studies/sparsefinder/test_commands.py
def test_translation(tmp_path):
    out = tmp_path / "out"
    options = (
        "--root", multi30k_tree(tmp_path / "data"), "--out", out, "--paper", "mt_small", *COMMON,
        "--teacher-options", "--vocab-size 150 --eval-options '--beam 1 --max-len-b 5'",
        "--train-options", f"--arch leapformer_nmt_tiny {BATCHES}",
        "--extract-options", "--sentences 16 --min-length 4", "--pareto-options", SCORED,
    )  # fmt: skip
    finished("sparsefinder", *options)
    curves(out, "BLEU")
    before = (out / "curves/curves.csv").read_bytes()
    assert "is finished, skipped" in finished("sparsefinder", *options)
    assert (out / "curves/curves.csv").read_bytes() == before


@pytest.mark.full
def test_a_masked_language_model_without_a_training_text(tmp_path):
    files = wikitext_tree(tmp_path / "data")
    for path in files.glob("*train*"):
        path.unlink()
    out = tmp_path / "out"
    finished(
        "sparsefinder", "--root", files, "--out", out, "--paper", "mlm_small", "--train-on-valid", *COMMON,
        "--stages", "8:1",
        "--teacher-options", "--vocab-size 120 --jobs 1",
        "--train-options", "--arch leapformer_mlm_tiny --tokens-per-sample 16 --max-tokens 400 --warmup-updates 2",
        "--extract-options", "--sentences 10 --min-length 8", "--pareto-options", "--quality-points 1 --windows 0 3",
    )  # fmt: skip
    found = curves(out, "perplexity")
    assert {row["mechanism"] for row in found["quality"]} >= {"sparsefinder-distance", "entmax-window"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "x", "--paper", "speech"), "no configs/sparsefinder/speech.yaml; choose from mlm, mlm_small, mt"),
        (("--paper", "mt"), "no --out given"),
        (("--out", "x", "--paper", "mt"), "no --root given"),
        (("--out", "x", "--paper", "mlm_small", "--root", ".", "--stages", "32"), "--stages 32: give TOKENS:EPOCHS"),
        (("--out", "x", "--root", ".", "--epochs", "3"), "give two numbers, of softmax and of entmax"),
        (("--out", "x", "--root", ".", "--paper", "mt", "--epochs", "3 4"), "give one number, of entmax"),
        (("--out", "x", "--root", ".", "--paper", "mt", "--init", "gone.pt"), "--init gone.pt: no such checkpoint"),
        (("--out", "x", "--root", ".", "--train-on-valid"), "is for --paper mlm and mlm_small; leave it out"),
        (("--grids", "small"), "unknown option --grids"),
        (("--out",), "--out needs a value"),
    ],
)
def test_bad_options_are_one_line(options, message):
    assert message in refused("sparsefinder", *options)
