"""The quickstart with its real commands on a tiny corpus: once, again, another attention beside it, and bad options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leapformer_fairseq.studies.recipes import catalog

from ..commands import leapformer, run
from ..studies.recipes.running import dry_run

ROOT = Path(__file__).parents[2]
SYSTEM = "gated-leap_encoder-chunk-ms_280"
OPTIONS, TITLE = "--attention gated-leap:encoder-chunk-ms=280 --seed 1 --fast", "gated LeaPformer, encoder in chunks"


def quickstart(*options: str) -> subprocess.CompletedProcess[str]:
    """On one core, as tests have it."""
    return run(leapformer("recipe", "quickstart", "--processes", "1", *options))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("quickstart") / "out"
    done = quickstart("--fast", "--k", "1 3 5", "--out", str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def test_the_report_is_complete(finished):
    scores = json.loads((finished / "scores.json").read_text(encoding="utf-8"))
    rows = scores["systems"][SYSTEM]["rows"]
    assert [row["k"] for row in rows] == [1, 3, 5, "offline"]
    assert {row["sentences"] for row in rows} == {8}  # all that the test set has
    for row in rows[:3]:
        assert {"BLEU", "chrF", "AL", "LAAL", "AP", "DAL", "ATD"} <= set(row)
        assert "AL_CA" not in row and row["compute"] is None  # nothing was timed
    assert "BLEU" in scores["signatures"] and "commit" in scores["signatures"]["leapformer_fairseq"]
    report = (finished / "report.md").read_text(encoding="utf-8")
    assert f"| {TITLE} " in report and OPTIONS in report and "AL_CA" not in report and "curve.svg" in report
    assert (finished / "curve.svg").stat().st_size > 5000


def test_the_report_ends_with_what_was_trained_and_what_to_do_with_it(finished):
    trained, live, own = (finished / "report.md").read_text(encoding="utf-8").splitlines()[-3:]
    checkpoint = finished / SYSTEM / "st/checkpoint_last.pt"
    assert checkpoint.is_file()
    assert trained.startswith(f"* trained: {TITLE}, in {checkpoint}")
    assert live.startswith("* live:    ") and live.endswith(
        f"/leapformer serve --checkpoint {checkpoint} --data-root {finished / 'corpus'} --config-yaml config_st.yaml"
    )
    assert own.startswith("* own:     ") and "/leapformer recipe speech --train " in own


def test_a_second_run_repeats_nothing(finished):
    before = (finished / SYSTEM / "st/train.log").read_text(encoding="utf-8")
    done = quickstart("--fast", "--k", "1 3 5", "--out", str(finished))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("is finished, skipped") == 6
    assert (finished / SYSTEM / "st/train.log").read_text(encoding="utf-8") == before


def test_another_runs_results_are_refused(finished):
    done = quickstart("--fast", "--seed", "2", "--out", str(finished))
    assert done.returncode != 0
    assert f"holds the run of another command (--encoder {OPTIONS[12:]}); choose another folder" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.full
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


@pytest.mark.parametrize("seen", [1, 2, 3, 64])
def test_the_cores_that_are_there_share_the_batch(seen, monkeypatch, tmp_path):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(seen)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def training(*options: str) -> tuple[str, str]:
        words = ["--out", str(tmp_path / "out"), *options]
        said = dry_run("quickstart", *words)
        batch = next(line for line in said if " train " in line).partition("--max-tokens ")[2]
        return " ".join(catalog.start("quickstart", words).launcher.prefix()[1:]), batch.split()[0]

    processes = min(4, seen)
    how = f"--nproc-per-node={processes} " if processes > 1 else "-m leapformer_fairseq.cli.main"
    launched, batch = training()
    assert how in launched and int(batch) == 4000 // processes
    launched, batch = training("--softmax")  # a model for each half of the cores
    assert int(batch) == 4000 // max(1, min(4, seen // 2))
    assert training("--processes", "1")[1] == training("--launcher", "local")[1] == "4000"
    launched, batch = training("--launcher", "torchrun", "--processes", "3")
    assert "--nproc-per-node=3 " in launched and batch == "1333"
    assert not (tmp_path / "out").exists()


def test_help_explains_every_option():
    text = run(["bash", str(ROOT / "scripts/quickstart.sh"), "--help"], LEAPFORMER_VENV=sys.prefix).stdout
    for option in ("--attention", "--softmax", "--k", "--train-k", "--seed", "--out", "--fast"):
        assert option in text
