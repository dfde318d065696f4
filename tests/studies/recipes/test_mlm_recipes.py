"""The recipes for masked language models and GLUE: pre-training, a warm start, fine-tuning, with tiny models."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fairseq import options

from leapformer_fairseq.models.averaging import load_checkpoint
from leapformer_fairseq.models.loading import load_model
from leapformer_fairseq.studies.recipes import configuration
from tests.data.choice_trees import csqa_tree, race_tree
from tests.data.glue_trees import COUNTS, qnli_tree, sst2_tree
from tests.data.text_trees import wikitext_tree
from tests.studies.recipes.running import finished, ran, refused, table

TINY = "--arch leapformer_mlm_tiny --encoder-embed-dim 16 --encoder-ffn-embed-dim 32"
TINY_MLM = ("--vocab-size", 150, "--epochs", 1, "--train-options", f"{TINY} --tokens-per-sample 32 --max-tokens 600")
TINY_GLUE = ("--epochs", 1, "--train-options", f"{TINY} --max-positions 32")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    """The folder of a softmax model of seed 3, as the recipe mlm leaves it."""
    root = tmp_path_factory.mktemp("mlm")
    files = wikitext_tree(root / "data")
    finished("mlm", "--root", files, "--out", root / "out", "--attention", "softmax", "--seeds", 3, *TINY_MLM)
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
        "mlm", "--root", pretrained.parent / "data", "--out", tmp_path, "--attention", "leap", "--seeds", 2,
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
    shown = finished("glue", "--root", root, "--out", out, "--pretrained", pretrained, "--attention", "softmax",
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
    finished("glue", "prepare", "--root", qnli_tree(tmp_path / "data"), *options_of_data)
    assert (tmp_path / "out/data/QNLI/binary/input1/valid.bin").is_file()
    told = refused("glue", "train", *options_of_data, "--attention", "softmax", "--pretrained-seed", 3)
    assert "is (16, 16) in the checkpoint and (256, 256) in this model; use the --arch" in told


@pytest.mark.parametrize("dataset", ["mlm", "glue"])
def test_the_options_of_every_configuration_exist(dataset):
    """fairseq refuses what it does not know, after the data was prepared."""
    names = configuration.names(dataset)
    assert {"small", "abc", "luna"} <= set(names)
    for name in names:
        configured = configuration.load(dataset, name)
        words = configuration.flags(configured["train"])
        for more in configured.get("task-settings", {}).values():
            words += configuration.flags(more)
        task = {"mlm": "masked_lm", "glue": "sentence_prediction"}[dataset]
        parser = options.get_training_parser(default_task=task)
        flags = ["data", "--task", task, "--criterion", task, "--encoder-self-attention", "leap"]
        args = options.parse_args_and_arch(parser, [*flags, *words])
        assert args.arch.startswith("leapformer_mlm")


class TestErrors:
    @pytest.mark.parametrize(
        ("words", "named"),
        [
            ("mlm --root nowhere", "nowhere"),
            ("glue --root nowhere --pretrained x", "nowhere"),
            ("glue --root .", "--vocabulary (or else --pretrained"),
            ("glue --download", "--download needs --root"),
            ("mlm train", "run the step prepare first"),
            ("mlm evaluate", "run the step train first"),
            ("mlm train --init gone.pt", "--init gone.pt: no such checkpoint"),
            ("mlm --root . --vocab-size few", "--vocab-size few"),
            ("glue train", "no --pretrained given"),
            ("glue train --pretrained x", "run the step prepare first"),
            ("glue evaluate", "run the step train first"),
            ("glue evaluate --attention leap/relu", "one attention block"),
            ("glue --attention ''", "name no run"),
            ("glue --tasks SST-3", "--tasks SST-3: choose from MNLI, QNLI, QQP, SST-2"),
            ("glue --speed 3", "--speed"),
        ],
    )
    def test_what_is_wrong_is_named(self, words, named, tmp_path):
        assert named in refused(*shlex.split(words), "--out", tmp_path / "out")

    def test_no_model_of_that_attention(self, tmp_path):
        (tmp_path / "out/data/SST-2/binary").mkdir(parents=True)
        (tmp_path / "out/data/SST-2/binary/done").touch()
        (tmp_path / "mlm").mkdir()
        options = ("--pretrained", tmp_path / "mlm", "--attention", "relu")
        told = refused("glue", "train", "--out", tmp_path / "out", *options)
        assert "there is no " in told and "mlm/relu-seed1/model/checkpoint_best.pt" in told


@pytest.mark.parametrize("dataset", ["mlm", "glue"])
def test_help_is_complete(dataset):
    status, shown, _ = ran(dataset, "--help")
    assert status == 0
    for option in ("--root", "--attention", "--seeds", "--jobs", "--train-options"):
        assert f"\n  {option} " in shown
    assert "abc" in shown and "(default: small)" in shown


@pytest.mark.parametrize(
    ("dataset", "tree", "sets"), [pytest.param("race", race_tree, 2, marks=pytest.mark.full), ("csqa", csqa_tree, 1)]
)
def test_choices_from_the_pretrained_model(dataset, tree, sets, pretrained, tmp_path):
    root, out = tree(tmp_path / "data"), tmp_path / "out"
    finished(
        dataset, "--root", root, "--out", out, "--pretrained", pretrained, "--attention", "softmax",
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
