"""The recipes for masked language models and GLUE: pre-training, a warm start, fine-tuning, with tiny models."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fairseq import options

from leapformer_fairseq.checkpoints import load_checkpoint
from leapformer_fairseq.loading import load_model

from ..data.choice_trees import csqa_tree, race_tree
from ..data.glue_trees import COUNTS, qnli_tree, sst2_tree
from ..data.text_trees import wikitext_tree
from .test_text_recipes import SCRIPTS, finished, recipe, table

CONFIGS = SCRIPTS.parent / "configs"
TINY = "--arch leapformer_mlm_tiny --encoder-embed-dim 16 --encoder-ffn-embed-dim 32"
TINY_MLM = ("--vocab-size", 150, "--epochs", 1, "--train-options", f"{TINY} --tokens-per-sample 32 --max-tokens 600")
TINY_GLUE = ("--epochs", 1, "--train-options", f"{TINY} --max-positions 32")

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the installed package has no scripts beside it")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    """The folder of a softmax model of seed 3, as scripts/mlm leaves it."""
    root = tmp_path_factory.mktemp("mlm")
    files = wikitext_tree(root / "data")
    finished("mlm/run.sh", "--root", files, "--out", root / "out", "--attention", "softmax", "--seeds", 3, *TINY_MLM)
    return root / "out"


def masked_perplexity(checkpoint: Path, seed: int) -> float:
    """Of the test text, computed sample by sample, with the masks of `seed`."""
    overrides = {"seed": seed, "sample_break_mode": "none"}
    model, task = load_model(str(checkpoint), ("leapformer_mlm",), "this test", overrides)
    task.load_dataset("test")
    task.dataset("test").set_epoch(1)  # as fairseq-validate does
    losses = []
    for sample in task.dataset("test"):
        with torch.no_grad():
            scores, _ = model(sample["net_input.src_tokens"].unsqueeze(0))
        chosen = sample["target"].ne(task.dictionary.pad())
        losses.append(F.cross_entropy(scores[0, chosen], sample["target"][chosen], reduction="none"))
    return float(torch.cat(losses).mean().exp())


def test_pre_training_ends_in_a_table_of_masked_perplexities(pretrained):
    (row,) = table(pretrained)["rows"]
    assert row["measure"] == "perplexity" and row["seeds"] == [3]
    perplexity, checkpoint = row["scores"]["perplexity"]["mean"], pretrained / "softmax-seed3/model/checkpoint_best.pt"
    assert perplexity == pytest.approx(masked_perplexity(checkpoint, seed=1), rel=1e-3), "the same masks for all"
    assert perplexity != pytest.approx(masked_perplexity(checkpoint, seed=3), rel=1e-3)
    scores = json.loads((pretrained / "softmax-seed3/test/scores.json").read_text(encoding="utf-8"))
    text = (pretrained / "data/text/test.txt").read_text(encoding="utf-8")
    assert scores["n_instances"] == text.count("\n")


def test_another_attention_goes_on_from_a_trained_model(pretrained, tmp_path):
    first = pretrained / "softmax-seed3/model/checkpoint_best.pt"
    done = finished(
        "mlm/run.sh", "--root", pretrained.parent / "data", "--out", tmp_path, "--attention", "leap", "--seeds", 2,
        "--init", first, "--vocabulary", pretrained / "data/text", *TINY_MLM,
        # nothing is learned, so that the checkpoint shows where it started
        "--train-options", "--lr 1e-9 --max-update 1",
    )  # fmt: skip
    assert "update 1: valid loss" in done
    before = load_checkpoint(first)["model"]
    after = load_checkpoint(tmp_path / "leap-seed2/model/checkpoint_best.pt")["model"]
    assert all(".mechanism." in name for name in after.keys() - before.keys()) and after.keys() - before.keys()
    for name, value in before.items():
        assert (after[name] - value).abs().max() < 1e-6, name
    assert (tmp_path / "data/text/test.txt").read_bytes() == (pretrained / "data/text/test.txt").read_bytes()


def test_sst2_from_the_pretrained_model(pretrained, tmp_path):
    root, out = sst2_tree(tmp_path / "data"), tmp_path / "out"
    shown = finished("glue/run.sh", "--root", root, "--out", out, "--pretrained", pretrained, "--attention", "softmax",
        "--pretrained-seed", 3,
                     *TINY_GLUE)  # fmt: skip
    assert "accuracy" in shown
    (row,) = table(out)["rows"]
    assert (row["set"], row["attention"], row["measure"]) == ("SST-2", "softmax", "accuracy")
    scores = json.loads((out / "softmax-seed1-SST-2/SST-2/scores.json").read_text(encoding="utf-8"))
    assert scores["n_instances"] == COUNTS["dev"]
    of_one = 100 / COUNTS["dev"]
    assert abs(scores["scores"]["accuracy"] / of_one - round(scores["scores"]["accuracy"] / of_one)) < 0.01
    log = (out / "softmax-seed1-SST-2/model/train.log").read_text(encoding="utf-8")
    assert f"Loaded checkpoint {pretrained}/softmax-seed3/model/checkpoint_best.pt" in log
    assert "invalid sizes" not in log, "what is too long is cut, not left out"
    assert (out / "data/SST-2/binary/input0/test.bin").is_file()


def test_a_model_of_another_size_is_one_line(pretrained, tmp_path):
    """The data of one task is prepared without its training, then the training is asked for too large a model."""
    options_of_data = ("--out", tmp_path / "out", "--pretrained", pretrained, "--tasks", "QNLI")
    finished("glue/prepare.sh", "--root", qnli_tree(tmp_path / "data"), *options_of_data)
    assert (tmp_path / "out/data/QNLI/binary/input1/valid.bin").is_file()
    done = recipe("glue/train.sh", *options_of_data, "--attention", "softmax", "--pretrained-seed", 3)
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if "error" in line)
    assert "is (16, 16) in the checkpoint and (256, 256) in this model; use the --arch" in line


@pytest.mark.parametrize("dataset", ["mlm", "glue"])
def test_the_options_of_every_configuration_exist(dataset):
    """fairseq refuses what it does not know, after the data was prepared."""
    names = sorted(path.stem for path in (CONFIGS / dataset).glob("*.sh"))
    assert {"small", "abc", "luna"} <= set(names)
    for name in names:
        shown = subprocess.run(
            ["bash", "-euc", 'f() { . "$0"; printf "%s\\n" "${train_options[@]}" ${task_settings[@]:-}; }; f',
             str(CONFIGS / dataset / f"{name}.sh")],
            capture_output=True, text=True, check=True, timeout=60, env=os.environ,
        )  # fmt: skip
        task = {"mlm": "masked_lm", "glue": "sentence_prediction"}[dataset]
        parser = options.get_training_parser(default_task=task)
        flags = ["data", "--task", task, "--criterion", task, "--encoder-self-attention", "leap"]
        args = options.parse_args_and_arch(parser, [*flags, *shown.stdout.splitlines()])
        assert args.arch.startswith("leapformer_mlm")


class TestErrors:
    @pytest.mark.parametrize(
        ("script", "given", "named"),
        [
            ("mlm/run.sh", ["--root", "nowhere"], "nowhere"),
            ("glue/run.sh", ["--root", "nowhere", "--pretrained", "x"], "nowhere"),
            ("glue/run.sh", ["--root", "."], "--vocabulary (or else --pretrained"),
            ("glue/run.sh", ["--download"], "--download needs --root"),
            ("mlm/train.sh", [], "run scripts/mlm/prepare.sh first"),
            ("mlm/evaluate.sh", [], "run scripts/mlm/train.sh first"),
            ("mlm/train.sh", ["--init", "gone.pt"], "--init gone.pt: no such checkpoint"),
            ("mlm/run.sh", ["--root", ".", "--vocab-size", "few"], "--vocab-size few"),
            ("glue/train.sh", [], "no --pretrained given"),
            ("glue/train.sh", ["--pretrained", "x"], "run scripts/glue/prepare.sh first"),
            ("glue/evaluate.sh", [], "run scripts/glue/train.sh first"),
            ("mlm/train.sh", ["--attention", "leap/relu"], "scripts/mlm/prepare.sh first"),
            ("glue/evaluate.sh", ["--attention", "leap/relu"], "one attention block"),
            ("glue/run.sh", ["--speed", "3"], "--speed"),
        ],
    )
    def test_what_is_wrong_is_named(self, script, given, named, tmp_path):
        done = recipe(script, "--out", tmp_path / "out", *given)
        assert done.returncode == 1
        assert named in done.stderr and done.stderr.count("\n") == 1

    def test_no_model_of_that_attention(self, tmp_path):
        (tmp_path / "out/data/SST-2/binary").mkdir(parents=True)
        (tmp_path / "out/data/SST-2/binary/done").touch()
        (tmp_path / "mlm").mkdir()
        done = recipe(
            "glue/train.sh", "--out", tmp_path / "out", "--pretrained", tmp_path / "mlm", "--attention", "relu"
        )
        assert done.returncode == 1
        assert "there is no " in done.stderr and "mlm/relu-seed1/model/checkpoint_best.pt" in done.stderr

    def test_an_unknown_task_is_named(self, pretrained, tmp_path):
        given = ("--root", tmp_path, "--out", tmp_path / "out", "--pretrained", pretrained, "--tasks", "SST-3")
        done = recipe("glue/prepare.sh", *given)
        assert done.returncode == 1
        assert "--tasks SST-3: choose from MNLI, QNLI, QQP, SST-2" in done.stderr


@pytest.mark.parametrize("dataset", ["mlm", "glue"])
def test_help_is_complete(dataset):
    for script in sorted((SCRIPTS / dataset).glob("*.sh")):
        done = recipe(f"{dataset}/{script.name}", "--help")
        assert done.returncode == 0
        assert f"scripts/{dataset}/{script.name}" in done.stdout
        for option in ("--root", "--attention", "--seeds", "--jobs", "--train-options"):
            assert f"\n  {option} " in done.stdout
        assert "abc" in done.stdout and "(default: small)" in done.stdout


@pytest.mark.parametrize(("dataset", "tree", "sets"), [("race", race_tree, 2), ("csqa", csqa_tree, 1)])
def test_choices_from_the_pretrained_model(dataset, tree, sets, pretrained, tmp_path):
    root, out = tree(tmp_path / "data"), tmp_path / "out"
    finished(
        f"{dataset}/run.sh", "--root", root, "--out", out, "--pretrained", pretrained, "--attention", "softmax",
        "--pretrained-seed", 3, "--epochs", 1,
        "--train-options", f"{TINY} --max-positions 32 --max-update 2 --warmup-updates 1",
    )  # fmt: skip
    rows = table(out)["rows"]
    assert [(row["set"], row["measure"]) for row in rows] == [("test", "accuracy"), ("valid", "accuracy")][-sets:]
    scores = json.loads((out / "softmax-seed1/valid/scores.json").read_text(encoding="utf-8"))
    labels = (out / "data/text/label/valid.label").read_text(encoding="utf-8").split()
    assert scores["n_instances"] == len(labels)
    of_one = 100 / len(labels)
    assert abs(scores["scores"]["accuracy"] / of_one - round(scores["scores"]["accuracy"] / of_one)) < 0.01
