"""Accuracy and masked perplexity from the log of fairseq-validate, and how such runs stand in a table."""

from __future__ import annotations

import json

import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.averaging import describe_checkpoint
from leapformer_fairseq.scoring.outputs import score_validation
from leapformer_fairseq.scoring.runs import collect_runs, compare, runs_table
from leapformer_fairseq.support.errors import LeapformerError

MASKED = (
    "2026-01-01 00:00:00 | INFO | test | valid on 'test' subset | loss 3.94 | ppl 15.34 | wps 0 | wpb 317 | bsz 11\n"
)
CLASSES = "valid on 'valid1' subset | loss 0.5 | nll_loss 0.01 | accuracy 92.7 | wps 0 | wpb 3 | bsz 1\n"
SPOKEN = (
    "valid on 'dev' subset | loss 0.9 | l1_loss 0.5 | mse_loss 0.25 | eos_loss 0.125 | attn_loss 0 | ctc_loss 0 | "
    "wps 0\n"
)
TRANSLATED = "valid on 'dev_st' subset | loss 6.5 | nll_loss 3.2 | accuracy 41.2 | total 9 | ppl 9.19 | wps 0\n"


def written(tmp_path, content):
    path = tmp_path / "validate.log"
    path.write_text("noise | accuracy 3\n" + content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "scores"),
    [
        (MASKED, {"perplexity": 15.34, "bits": 3.94}),
        (CLASSES, {"accuracy": 92.7}),
        (MASKED + CLASSES, {"accuracy": 92.7}),
        (TRANSLATED, {"perplexity": 9.19, "bits": 3.2}),
        (SPOKEN, {"loss": 0.875, "L1": 0.5, "MSE": 0.25, "end": 0.125}),
    ],
)
def test_the_last_result_is_read(line, scores, tmp_path):
    report = score_validation(written(tmp_path, line), 7)
    assert report["scores"] == scores and report["n_instances"] == 7
    assert report["signatures"].keys() == {next(iter(scores))}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Traceback\n", "holds no accuracy, no perplexity and no losses of speech; did `leapformer validate"),
        ("valid on 'valid' subset | loss 2.0 | wps 0\n", "holds no accuracy, no perplexity"),
        (MASKED.replace("15.34", "nan"), "the perplexity is nan"),
        (MASKED.replace("15.34", "inf"), "the perplexity is inf"),
    ],
)
def test_a_useless_log_is_refused(content, message, tmp_path):
    with pytest.raises(LeapformerError, match=message):
        score_validation(written(tmp_path, content), 7)


def test_a_missing_log_is_named(tmp_path):
    with pytest.raises(LeapformerError, match="no log .*validate.log"):
        score_validation(tmp_path / "validate.log", 7)


def test_the_command_counts_the_examples(tmp_path, capsys):
    (tmp_path / "labels").write_text("0\n1\n1\n")
    log = str(written(tmp_path, CLASSES))
    assert main(["score", log, "--examples", str(tmp_path / "labels"), "--json", str(tmp_path / "scores.json")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "3 lines" and shown[1].split() == ["accuracy", "92.700", "%"]
    assert json.loads((tmp_path / "scores.json").read_text())["n_instances"] == 3
    assert main(["score", log, "--examples", "labels", "--text", "labels"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_tasks_are_sets_of_the_table_and_more_accuracy_is_better(tmp_path):
    for attention, task, accuracy in (("softmax", "SST-2", 90.0), ("leap", "SST-2", 91.5), ("leap", "QNLI", 80.0)):
        folder = tmp_path / f"{attention}-seed1-{task}"
        (folder / task).mkdir(parents=True)
        (folder / "options").write_text(f"--attention {attention} --seed 1 --lr 1")
        scores = {"scores": {"accuracy": accuracy}, "n_instances": 3, "signatures": {}}
        (folder / task / "scores.json").write_text(json.dumps(scores))
    rows = compare(collect_runs(tmp_path), ["softmax", "leap"])
    assert [(row["set"], row["attention"]) for row in rows] == [
        ("QNLI", "leap"),
        ("SST-2", "softmax"),
        ("SST-2", "leap"),
    ]
    assert [row["difference"] for row in rows] == [None, None, 1.5]
    assert "| SST-2 | leap      |     1 |     91.5 |       +1.5 |" in runs_table(rows).markdown()


@pytest.mark.parametrize(("metric", "loss"), [("loss", 3.5), ("accuracy", None)])
def test_what_the_best_checkpoint_is_chosen_by_is_no_loss(metric, loss, tmp_path):
    state = {"model": {}, "extra_state": {"val_loss": 3.5}, "cfg": {"checkpoint": {"best_checkpoint_metric": metric}}}
    torch.save(state, tmp_path / "a.pt")
    assert describe_checkpoint(tmp_path / "a.pt")["valid_loss"] == loss
