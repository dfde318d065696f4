"""The recipe of Long Range Arena: from data to tables, generated and from published files, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.lra.prepare import TASKS
from tests.commands import leapformer
from tests.data.lra.fakes import fake_image, fake_listops, fake_pathfinder, fake_retrieval, fake_text
from tests.forks import Fork
from tests.studies.recipes.running import finished, refused

pytestmark = pytest.mark.usefixtures("forked_trainings")

SHORT = "--max-update 3 --batch-size 4 --log-interval 1"
TINY = """
base: reduced
title: tiny
seeds: [1, 2]
corpus:
  listops: {train: 60, dev: 20, test: 20}
  pathfinder: {images: 40, workers: 1}
tasks:
  listops: {max-update: 4, batch-size: 8}
  pathfinder: {max-update: 2, batch-size: 8}
"""


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path / "tiny.yaml"


@pytest.mark.full
def test_generated_tasks(tmp_path, tiny):
    out = tmp_path / "out"
    options = ("--out", out, "--protocol", tiny, "--attention", "softmax luna-packed", "--seeds", "1", "--jobs", 2)
    options += ("--train-options", "--log-interval 1", "--no-bench")
    told = finished("lra", *options)
    assert "Softmax" in told and "Luna-16, mean of Y_P" in told
    results = out / "results"
    found = json.loads((results / "results.json").read_text())
    assert {(run["row"], run["task"]) for run in found["runs"]} == {
        (row, task) for row in ("softmax", "luna-packed") for task in ("listops", "pathfinder")
    }
    assert all(run["speed"] > 0 and run["examples"] in (4, 20) for run in found["runs"])
    assert (results / "results.csv").read_text().startswith("task,row,seed,protocol,accuracy")
    assert json.loads((results / "params.json").read_text())[0]["total"] > 50_000
    before = (results / "table.md").read_bytes()
    began = time.monotonic()
    finished("lra", *options)
    assert (results / "table.md").read_bytes() == before and time.monotonic() - began < 60, "nothing is trained twice"


@pytest.mark.full
def test_all_tasks_from_files_in_the_published_layout(tmp_path):
    root = tmp_path / "root"
    for task, fake in (("listops", fake_listops), ("text", fake_text), ("retrieval", fake_retrieval)):
        fake(root / task)
    fake_pathfinder(root / "pathfinder")
    fake_image(root / "image", pickles=False)
    pictures = root / "pathfinder/lra_release/pathfinder32"
    (pictures / "curv_baseline").rename(pictures / "curv_contour_length_14")
    out = tmp_path / "out"
    finished(
        "lra", "--out", out, "--protocol", "leapformer", "--root", root, "--attention", "leap", "--jobs", 2,
        "--train-options", SHORT, "--no-bench",
    )  # fmt: skip
    assert (out / "results/maps-leap/encoder-self_layer1_reweighting.svg").is_file()
    found = json.loads((out / "results/results.json").read_text())
    assert {run["task"] for run in found["runs"]} == set(TASKS)
    assert all("brackets-dropped" in run["quirks"] for run in found["runs"])
    assert "Published" in (out / "results/table.md").read_text()
    # two sequences, Y_P, and other quirks
    other = ("--protocol", "luna", "--tasks", "retrieval", "--data", str(out / "data"), "--out", str(tmp_path / "luna"))
    options = ("--attention", "luna-16-packed", "--seeds", "5", "--train-options", SHORT)
    assert main(["lra", "run", *other, *options]) == 0
    options = ("--out", out / "corrected", "--protocol", "corrected", "--root", root, "--tasks", "listops image")
    options += ("--attention", "abc-mlp sinkhorn", "--seeds", "2", "--jobs", 2, "--no-bench")
    told = finished("lra", *options, "--train-options", SHORT)
    assert "ABC, learned control" in told and "without Retrieval" not in told


@pytest.mark.full
def test_an_interrupt_keeps_what_is_finished(tmp_path, tiny, capsys):
    data, out = tmp_path / "data", tmp_path / "runs"
    common = ["--protocol", str(tiny), "--tasks", "listops"]
    assert main(["lra", "prepare", *common, "--data", str(data)]) == 0
    common += ["--data", str(data), "--out", str(out), "--attention", "linear-relu"]
    common += ["--seeds", "1", "2"]  # the second has begun when the interrupt arrives
    command = ["lra", "run", *common]
    first = out / "listops/linear-relu-seed1/result.json"
    with (tmp_path / "log").open("wb") as log:
        process = Fork(leapformer(*command), subprocess.DEVNULL, log, log, {**os.environ, "OMP_NUM_THREADS": "1"})
        while not first.is_file():
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130 and "the same command resumes" in (tmp_path / "log").read_text()
    before = first.read_bytes()
    assert main(["lra", "run", *common]) == 0, capsys.readouterr().err
    assert first.read_bytes() == before
    assert (out / "listops/linear-relu-seed2/result.json").is_file()


def test_data_of_other_flaws_is_refused(tmp_path, capsys):
    fake_text(tmp_path / "text")
    words = ["--tasks", "text", "--data", str(tmp_path / "data")]
    assert main(["lra", "prepare", "--protocol", "leapformer", "--root", str(tmp_path), *words]) == 0
    assert main(["lra", "run", "--protocol", "corrected", *words, "--out", str(tmp_path / "out")]) == 2
    assert "text" in capsys.readouterr().err.splitlines()[-1] and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "x"), "no --protocol and no --reduced given"),
        (("--reduced",), "no --out given"),
        (("--out", "x", "--protocol", "luna", "--root", "nowhere"), "--root nowhere is not a folder"),
        (("--speed", "3"), "unknown option --speed"),
        (("--out",), "--out needs a value"),
    ],
)
def test_bad_options_are_one_line(options, message):
    assert message in refused("lra", *options)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["prepare", "--protocol", "luna", "--data", "DIR"], "listops is not generated by protocol luna; give --root"),
        (["prepare", "--protocol", "luna", "--data", "DIR", "--tasks", "chess"], "--tasks chess: protocol luna has"),
        (["run", "--protocol", "luna", "--data", "DIR", "--out", "DIR/x"], "no listops in it; make it with"),
        (["run", "--protocol", "luna", "--data", "DIR", "--out", "DIR/x", "--jobs", "0"], "--jobs 0: give at least 1"),
        (
            ["run", "--protocol", "luna", "--data", "DIR", "--out", "DIR/x", "--attention", "x"],
            "--attention x: protocol",
        ),
        (["table", "DIR"], "no result.json in it"),
        (["rcp"], "give folders of results, or --published"),
        (["rcp", "DIR"], "--bench: give the lra.json"),
        (["params", "--protocol", "luna", "--attention", "leap"], "--attention leap: protocol luna has"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, command, message):
    assert main(["lra", *(word.replace("DIR", str(tmp_path)) for word in command)]) == 2
    errors = capsys.readouterr().err
    assert message in errors and errors.count("\n") == 1


def test_the_published_scores(tmp_path, capsys):
    assert main(["lra", "rcp", "--published", "--std", "table", "--out", str(tmp_path)]) == 0
    assert "5.20" in capsys.readouterr().out
    assert (tmp_path / "rcp.svg").stat().st_size > 10_000
    assert json.loads((tmp_path / "rcp.json").read_text())["rows"]["leap"]["rcp"] == pytest.approx(5.2, abs=0.005)
