"""The quickstart with its real commands on a tiny corpus: once, again, another attention beside it, and bad options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..commands import leapformer, run

ROOT = Path(__file__).parents[2]
SYSTEM, OPTIONS = "leap_encoder-chunk-ms_280", "--attention leap:encoder-chunk-ms=280 --seed 1 --fast"


def quickstart(*options: str) -> subprocess.CompletedProcess[str]:
    return run(leapformer("recipe", "quickstart", *options))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("quickstart") / "out"
    command = ["bash", str(ROOT / "scripts/quickstart.sh"), "--fast", "--k", "1 3", "--out", str(out)]
    done = run(command, LEAPFORMER_VENV=sys.prefix)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def test_the_report_is_complete(finished):
    scores = json.loads((finished / "scores.json").read_text(encoding="utf-8"))
    rows = scores["systems"][SYSTEM]["rows"]
    assert [row["k"] for row in rows] == [1, 3, "offline"]
    for row in rows[:2]:
        assert {"BLEU", "chrF", "AL", "LAAL", "AP", "DAL", "ATD", "AL_CA", "compute"} <= set(row)
        assert row["AL_CA"] > row["AL"] and row["compute"] > 0
    assert "BLEU" in scores["signatures"] and "commit" in scores["signatures"]["leapformer_fairseq"]
    report = (finished / "report.md").read_text(encoding="utf-8")
    assert f"| {SYSTEM}" in report and OPTIONS in report
    assert (finished / "curve.png").stat().st_size > 5000


def test_a_second_run_repeats_nothing(finished):
    before = (finished / SYSTEM / "st/train.log").read_text(encoding="utf-8")
    done = quickstart("--fast", "--k", "1 3", "--out", str(finished))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("is finished, skipped") == 5
    assert (finished / SYSTEM / "st/train.log").read_text(encoding="utf-8") == before


def test_another_runs_results_are_refused(finished):
    done = quickstart("--fast", "--seed", "2", "--out", str(finished))
    assert done.returncode != 0
    assert "holds another corpus (seed 1 there, 2 asked for); choose another --out" in done.stderr
    assert done.stderr.count("\n") == 1


def test_training_for_one_k_joins_the_report_with_the_same_recogniser(finished):
    done = quickstart("--fast", "--k", "3", "--train-k", "3", "--out", str(finished))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"asr-{SYSTEM} is finished, skipped" in done.stdout
    systems = json.loads((finished / "scores.json").read_text(encoding="utf-8"))["systems"]
    assert set(systems) == {SYSTEM, f"{SYSTEM}-k3"}
    assert systems[f"{SYSTEM}-k3"]["options"] == f"{OPTIONS} --train-k 3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--k", "0"), "--k 0: give a whole number from 1"),
        (("--train-k", "9-"), "--train-k 9-: give a number from 1, or a range as in 1-9, or 1-9,offline"),
        (("--seed", "x"), "--seed x: give a whole number from 0"),
        (("--speed",), "unknown option --speed; see --help"),
    ],
)
def test_bad_options_end_with_one_line(options, message):
    done = quickstart(*options)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines() == [f"leapformer: error: {message}"]


def test_a_bad_plan_is_refused_before_training(tmp_path):
    done = quickstart("--fast", "--attention", "leep", "--out", str(tmp_path / "out"))
    assert done.returncode != 0
    assert "unknown attention mechanism 'leep'" in done.stdout + done.stderr


def test_help_explains_every_option():
    text = quickstart("--help").stdout
    for option in ("--attention", "--softmax", "--k", "--train-k", "--seed", "--out", "--fast"):
        assert option in text
