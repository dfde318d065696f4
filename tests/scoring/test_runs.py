"""Perplexity from eval-lm's log, and the runs of a text recipe side by side."""

from __future__ import annotations

import json

import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.averaging import describe_checkpoint
from leapformer_fairseq.scoring.outputs import score_evaluation
from leapformer_fairseq.scoring.runs import (
    check_order,
    collect_runs,
    compare,
    order_sentence,
    runs_table,
)
from leapformer_fairseq.support.errors import LeapformerError

LOG = "INFO:fairseq_cli.eval_lm:Evaluated {} tokens in 1.0s (9 tokens/s)\nINFO | Loss (base 2): {}, Perplexity: {}\n"


def log(folder, tokens="1,234", bits="7.0000", perplexity="128.00"):
    path = folder / "eval.log"
    path.write_text("noise\n" + LOG.format(tokens, bits, perplexity), encoding="utf-8")
    return path


def test_perplexity_is_read(tmp_path):
    report = score_evaluation(log(tmp_path), 1234)
    assert report["scores"] == {"perplexity": 128.0, "bits": 7.0}
    assert report["n_instances"] == 1234


def test_the_last_evaluation_counts(tmp_path):
    path = log(tmp_path, perplexity="99.00")
    path.write_text(path.read_text() + LOG.format("1,234", "1.0000", "2.00"))
    assert score_evaluation(path, 1234)["scores"]["perplexity"] == 2


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"tokens": "0", "bits": "0.0000", "perplexity": "1.00"}, "0 tokens were evaluated but the text has 1234"),
        ({"perplexity": "nan"}, "perplexity is nan"),
        ({"perplexity": "inf"}, "perplexity is inf"),
    ],
)
def test_a_useless_evaluation_is_refused(written, message, tmp_path):
    with pytest.raises(LeapformerError, match=message):
        score_evaluation(log(tmp_path, **written), 1234)


def test_an_unfinished_evaluation_is_refused(tmp_path):
    with pytest.raises(LeapformerError, match="no log"):
        score_evaluation(tmp_path / "eval.log", 1)
    (tmp_path / "eval.log").write_text("Traceback\n")
    with pytest.raises(LeapformerError, match="holds no perplexity"):
        score_evaluation(tmp_path / "eval.log", 1)


def test_references_and_text_exclude_each_other(tmp_path, capsys):
    assert main(["score", "x", "--references", "a", "--text", "b"]) == 2
    assert "give one of them" in capsys.readouterr().err


def checkpoint(path, in_epoch=0):
    shared = torch.zeros(5, 4)
    state = {
        "model": {"a.weight": shared, "b.weight": shared, "c": torch.zeros(3), "decoder.version": torch.zeros(1)},
        "extra_state": {"val_loss": 4.5, "train_iterator": {"epoch": 3, "iterations_in_epoch": in_epoch}},
        "optimizer_history": [{"num_updates": 77}],
    }
    torch.save(state, path)
    return path


@pytest.mark.parametrize(("in_epoch", "epoch"), [(0, 2), (10, 3)])
def test_what_a_checkpoint_tells(tmp_path, in_epoch, epoch):
    found = describe_checkpoint(checkpoint(tmp_path / "checkpoint_best.pt", in_epoch))
    assert found == {
        "checkpoint": "checkpoint_best.pt", "averaged": 0, "epoch": epoch, "updates": 77, "valid_loss": 4.5,
        "parameters": 23,
    }  # fmt: skip


def scored(folder, attention, scores, seed=1, options="--lr 1", model=None):
    run = folder / f"{attention.replace('/', '+')}-seed{seed}"
    (run / "test").mkdir(parents=True)
    (run / "options").write_text(f"--attention {attention} --seed {seed} {options}\n")
    (run / "test/options").write_text("--beam 5\n")
    entry = {"scores": scores, "signatures": {"x": "sig"}, "compute": None, "n_instances": 5, "model": model}
    (run / "test/scores.json").write_text(json.dumps(entry))


@pytest.fixture()
def language_models(tmp_path):
    for seed, shift in ((1, 0), (2, 10)):
        for attention, value in (("relu", 130), ("leap", 100), ("cosformer", 120 - 2 * shift), ("softmax", 90)):
            scored(tmp_path, attention, {"perplexity": float(value + shift), "bits": 6.5}, seed)
    (tmp_path / "data/text").mkdir(parents=True)
    return tmp_path


def test_seeds_are_put_together_and_rows_come_as_asked(language_models):
    rows = compare(collect_runs(language_models), ["softmax", "leap", "relu"])
    assert [row["attention"] for row in rows] == ["softmax", "leap", "relu", "cosformer"]
    leap = rows[1]
    assert leap["seeds"] == [1, 2]
    assert leap["scores"]["perplexity"] == {"mean": 105, "min": 100, "max": 110}
    assert leap["difference"] == pytest.approx(10) and rows[0]["difference"] is None
    assert leap["options"] == "--lr 1 --beam 5"
    assert "105.00 (100.00–110.00)" in str(runs_table(rows))


def test_other_options_are_another_row(language_models):
    scored(language_models, "leap", {"perplexity": 1.0, "bits": 0.0}, seed=3, options="--lr 2")
    rows = [row for row in compare(collect_runs(language_models)) if row["attention"] == "leap"]
    assert [row["seeds"] for row in rows] == [[1, 2], [3]]
    assert rows[1]["difference"] is None, "no softmax with these options"
    lines = str(runs_table(compare(collect_runs(language_models)))).splitlines()
    assert [line for line in lines if "leap" in line and "| --lr 2 " in line], "the table tells the rows apart"
    assert "--beam" not in str(lines), "all have it"


def test_options_come_in_the_order_of_their_numbers(tmp_path):
    for seed, rate in enumerate(("10", "2", "0.01", "1e-3"), 1):
        scored(tmp_path, "leap", {"perplexity": 1.0}, seed, f"--lr {rate}")
    rows = compare(collect_runs(tmp_path))
    assert [row["options"].split()[1] for row in rows] == ["1e-3", "0.01", "2", "10"]


def test_the_expected_order_is_reported_as_it_came_out(language_models):
    runs = collect_runs(language_models)
    check = check_order(runs, ["leap", "cosformer", "relu"])
    assert check["held"] is True
    assert check["seeds"] == {1: True, 2: False}
    assert "held in the mean" in order_sentence(check) and "1 of 2 seeds" in order_sentence(check)
    assert "did not hold" in order_sentence(check_order(runs, ["relu", "leap"]))


def test_an_order_without_any_run_is_one_of_the_score_that_there_is(language_models):
    assert "rope < elu in perplexity. Not known" in order_sentence(
        check_order(collect_runs(language_models), ["rope", "elu"])
    )


def test_an_order_of_runs_that_are_missing_is_not_known(language_models):
    check = check_order(collect_runs(language_models), ["leap", "rope"])
    assert check["held"] is None
    assert "Not known" in order_sentence(check) and "rope" in order_sentence(check)
    with pytest.raises(LeapformerError, match="at least two"):
        check_order([], ["leap"])


def test_a_larger_bleu_is_better(tmp_path):
    scored(tmp_path, "leap/softmax/softmax", {"BLEU": 30.0, "chrF": 50.0})
    scored(tmp_path, "softmax", {"BLEU": 31.0, "chrF": 51.0})
    check = check_order(collect_runs(tmp_path), ["softmax", "leap/softmax/softmax"])
    assert check["measure"] == "BLEU" and check["held"]
    rows = compare(collect_runs(tmp_path))
    assert "-1.0" in str(runs_table(rows))


def test_the_table_is_written_with_its_signatures(language_models, capsys):
    notes = ["--note", "First.", "--note", "Second."]
    assert main(["table", str(language_models), "--title", "A Title", "--expect", "leap", "relu", *notes]) == 0
    page = (language_models / "table.md").read_text(encoding="utf-8")
    assert page.startswith("# A Title\n")
    for part in ("| leap ", "First.", "Second.", "--lr 1 --beam 5", "* x: `sig`", "|commit:", "held in the mean"):
        assert part in page
    assert "](table.svg)" in page and (language_models / "table.svg").stat().st_size > 5000
    content = json.loads((language_models / "table.json").read_text(encoding="utf-8"))
    assert len(content["runs"]) == 8 and [check["held"] for check in content["expected"]] == [True]
    assert "leap < relu" in capsys.readouterr().out


def test_runs_of_another_table_are_added_but_not_twice(language_models, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    scored(other, "elu", {"perplexity": 50.0, "bits": 6.0})
    scored(other, "leap", {"perplexity": 1.0, "bits": 1.0})
    assert main(["table", str(other)]) == 0
    assert main(["table", str(language_models), "--also", str(other / "table.json")]) == 0
    content = json.loads((language_models / "table.json").read_text(encoding="utf-8"))
    found = {row["attention"]: row["scores"]["perplexity"]["mean"] for row in content["rows"]}
    assert found == {"relu": 135.0, "leap": 105.0, "cosformer": 115.0, "softmax": 95.0, "elu": 50.0}
    with pytest.raises(LeapformerError, match="none.json cannot be read .No such file"):
        collect_runs(language_models, [other / "none.json"])
    (other / "table.json").write_text("{}")
    with pytest.raises(LeapformerError, match="table.json is damaged .without 'runs'.; give the table.json that"):
        collect_runs(language_models, [other / "table.json"])


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(LeapformerError, match="holds no scored runs"):
        collect_runs(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"scores": {}}'])
def test_damaged_scores_are_named(language_models, content):
    path = sorted(language_models.glob("*/test/scores.json"))[0]
    path.write_text(content)
    with pytest.raises(LeapformerError, match="test/scores.json is damaged .*; score this run again"):
        collect_runs(language_models)
