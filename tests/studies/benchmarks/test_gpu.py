"""The command that checks and times everything on a GPU, tried on a CPU: what it writes, finds, survives and costs."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from leapformer_fairseq.attention.ops import dispatch
from leapformer_fairseq.attention.ops import linear as forms
from leapformer_fairseq.studies.benchmarks import gpu, gpu_cases, gpu_checks, gpu_page, gpu_times
from leapformer_fairseq.studies.benchmarks.gpu_cases import FAST, NAMES, Task
from tests import covering
from tests.studies.benchmarks import gpu_workers

pytestmark = pytest.mark.usefixtures("in_pytorch")
ROOT = Path(__file__).parents[3]
MEASURED = ROOT / "docs" / "results" / "raw" / "gpu"
CPU = torch.device("cpu")
# of each kind one, and those that are timed
FEW = ("abc-mlp", "bigbird", "cosformer", "gated-delta", "kda", "leap", "luna", "performer", "relu", "rope", "softmax")
CHECKED = NAMES if covering.whole_products else tuple(name for name in NAMES if name in FEW)
# hides what a bare machine need not have, and keeps some mechanisms
BARE = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_some(name, path=None, target=None):
    if name.endswith(".gpu_checks"):
        from leapformer_fairseq.studies.benchmarks import gpu_cases

        gpu_cases.NAMES = {CHECKED}
    hidden = name.partition(".")[0] in ("fairseq", "numpy", "matplotlib", "tqdm", "tabulate")
    return None if hidden else find(name, path, target)

PathFinder.find_spec = find_some
"""


@pytest.fixture
def script():
    if not (ROOT / "scripts" / "gpu.sh").is_file():
        pytest.skip("the installed package has no scripts beside it")
    return ROOT / "scripts" / "gpu.sh"


@pytest.fixture
def told():
    return []


def options(*arguments):
    return gpu._parser().parse_args(["--device", "cpu", "--fast", *arguments])


def named(section, case):
    (task,) = (task for task in gpu.tasks(CPU, fast=True) if (task.section, task.case) == (section, case))
    return task


def rows(told):
    return [row for message in told for row in message.get("rows", [])]


@pytest.mark.full
def test_the_whole_command_without_any_other_library(script, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BARE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(script), "--device", "cpu", "--fast", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "[0:00:" in done.stderr and "decoding: leap" in done.stderr, "progress"

    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert found["failed"] == 0 and found["left_out"] == []
    cases = gpu.tasks(CPU, fast=True)
    assert {task.section for task in cases} <= set(found)
    assert all(found[section] for section in {task.section for task in cases})
    assert {(row["dtype"], row["execution"]) for row in found["agreement"]} == {
        (dtype, way)
        for dtype in ("float32", "bfloat16", "float16")
        for way in gpu_checks.WAYS
        if (dtype, way) != ("float32", gpu_checks.AUTOCAST)
    }
    assert {row["mechanism"] for row in found["agreement"]} == set(CHECKED)
    assert {row["mask"] for row in found["agreement"]} == {"causal", "bidirectional", "wait-k"}
    assert {row["execution"] for row in found["decoding"]} == {
        *("reference", "scan of all tokens", "scan of one token", "fused step")
    }
    assert found["passed"] == sum(len(found[section]) for section in ("agreement", "decoding"))
    assert all(row["ok"] is None for section in ("synchronisation", "memory") for row in found[section])
    assert "No module named 'fairseq'" in found["fairseq"][0]["note"]
    assert not [row for task in cases for row in found[task.section] if "failure" in row]
    assert found["environment"]["torch"] and found["environment"]["bounds"]["chunk"] == 64
    assert "fast:True|budget:520.0|seed:1" in found["signature"]

    page = (tmp_path / "out" / "gpu.md").read_text()
    assert f"{found['passed']:,} checks passed, 0 failed" in page and found["signature"] in page
    for title in ("Attention, causal: times as fast as SDPA", "A training step: times as fast as softmax"):
        assert f"\n## {title}\n" in page
    assert "What failed" not in page and "Left out" not in page and gpu_page.PICTURE not in page


@pytest.mark.parametrize("name", ["relu", "leap", "rope"])
def test_wrong_gradients_are_found(monkeypatch, told, name):
    right = forms._Chunks.gradients

    def gradients(self, grad, grad_after):
        dq, dk, dv, first = right(self, grad, grad_after)
        return dq, dk * 1.001, dv, first

    task = named("agreement", f"{name}, causal")
    gpu.work([task], CPU, told.append, math.inf)
    assert all(row["ok"] for row in rows(told))

    monkeypatch.setattr(forms._Chunks, "gradients", gradients)
    told.clear()
    gpu.work([task], CPU, told.append, math.inf)
    wrong = [row for row in rows(told) if not row["ok"]]
    assert {row["execution"] for row in wrong} >= {"scan, chunks kept", "scan, segments again"}
    assert all(gpu_page.is_wrong(row) and "reference" not in row["execution"] for row in wrong)


def test_a_wrong_sum_is_found_in_every_precision_and_while_decoding(monkeypatch, told):
    right = forms._Chunks.sums
    monkeypatch.setattr(forms._Chunks, "sums", lambda self: right(self).roll(1, dims=-1))
    tasks = [named("agreement", "relu, causal"), named("decoding", "relu")]
    gpu.work(tasks, CPU, told.append, math.inf)
    wrong = [row for row in rows(told) if not row["ok"]]
    assert {row["dtype"] for row in wrong} == {"float32", "bfloat16", "float16"}


def test_a_wrong_state_is_found_while_decoding(monkeypatch, told):
    right = forms.normalize
    monkeypatch.setattr(
        forms,
        "normalize",
        lambda sums, *more, **named: right(sums, *more, **named) * (1.1 if sums.shape[2] == 1 else 1),
    )
    gpu.work([named("decoding", "relu")], CPU, told.append, math.inf)
    wrong = [row for row in rows(told) if not row["ok"]]
    assert {row["execution"] for row in wrong} >= {"scan of one token"}
    assert {row["dtype"] for row in wrong} == {"float32", "bfloat16", "float16"}


@pytest.mark.parametrize(("got", "ok"), [(0.02, True), (0.0201, False), (math.nan, False), (math.inf, False)])
def test_what_is_allowed(monkeypatch, got, ok):
    monkeypatch.setitem(gpu_checks.FLOORS, torch.float32, 0.01)
    found = gpu_checks.verdict({"output": 0.0, "dq": got}, {"output": 0.001, "dq": 0.005}, torch.float32)
    assert (found["ok"], found["of"]) == (ok, "dq")


def test_memory_that_is_quadratic_is_found():
    assert gpu_checks.memory_row("leap", (100, 400), [1000, 4000], judged=True)["ok"] is True
    assert gpu_checks.memory_row("leap", (100, 400), [1000, 16000], judged=True)["ok"] is False
    assert gpu_checks.memory_row("leap", (100, 400), [1000, 16000], judged=False)["ok"] is None


def test_an_exception_is_a_row(told):
    def fail():
        raise RuntimeError("CUDA out of memory\nand more")

    def pass_by():
        return [{"mechanism": "leap", "ok": True}]

    assert gpu.work([Task("agreement", "a", fail), Task("agreement", "b", pass_by)], CPU, told.append, math.inf)
    assert rows(told) == [
        {"case": "a", "failure": "RuntimeError: CUDA out of memory"},
        {"mechanism": "leap", "ok": True},
    ]
    assert gpu_page.is_wrong(rows(told)[0])


def test_a_failing_execution_does_not_hide_the_others(monkeypatch, told):
    monkeypatch.setattr(forms._Chunks, "gradients", lambda *arguments: 1 / 0)
    gpu.work([named("agreement", "relu, causal"), *_timed()], CPU, told.append, math.inf)
    checks, times = (message["rows"] for message in told if "rows" in message)
    assert {row["failure"] for row in checks if "failure" in row} == {"ZeroDivisionError: division by zero"}
    assert all(row["ok"] for row in checks if row["execution"] == "reference")
    assert {row["mechanism"] for row in times if "failure" not in row} >= {"sdpa"}
    assert {row["mechanism"] for row in times if "failure" in row} >= {"leap", "abc-mlp"}


def _timed():
    return [task for task in gpu.tasks(CPU, fast=True) if task.case == f"cpu: causal {max(FAST.lengths)}"]


@pytest.mark.full
def test_a_process_that_dies_or_hangs_costs_one_case(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "_worker", gpu_workers.dies_and_hangs)
    monkeypatch.setattr(gpu, "LIMIT", 4.0)  # a process begins in a second
    cases = [Task("agreement", str(i), list) for i in range(4)]
    monkeypatch.setattr(gpu, "tasks", lambda device, fast: cases)
    found = gpu.collect(options("--out", str(tmp_path)), tmp_path)
    first, second, *others = found["agreement"]
    assert gpu_workers.LOST == gpu.LOST
    assert first == {"case": "0", "failure": "the process ended with status -9"}
    assert second["case"] == "1" and second["failure"].startswith("took more than")
    assert others == [{"ok": True}, {"ok": True}] and (found["passed"], found["failed"]) == (2, 2)
    assert found["left_out"] == [] and "took more than" in (tmp_path / "gpu.md").read_text()


@pytest.mark.parametrize(
    "worker", [gpu_workers.cannot_begin, pytest.param(gpu_workers.hangs_before_it_begins, marks=pytest.mark.full)]
)
def test_a_process_that_cannot_begin_is_told_of(monkeypatch, tmp_path, worker):
    monkeypatch.setattr(gpu, "_worker", worker)
    monkeypatch.setattr(gpu, "LIMIT", 1.0)
    assert gpu.main(["--device", "cpu", "--fast", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert "no process could begin" in found["agreement"][0]["failure"] and found["left_out"]


def test_what_was_done_is_written_before_the_end(monkeypatch, tmp_path):
    written = []

    def messages(args, until, cases):
        for i in range(3):
            yield {"task": i, "rows": [{"ok": True, "mechanism": "leap"}], "seconds": 0.0}
            written.append(json.loads((tmp_path / "gpu.json").read_text()))

    monkeypatch.setattr(gpu, "_messages", messages)
    gpu.collect(options("--out", str(tmp_path)), tmp_path)
    assert [content["passed"] for content in written] == [1, 2, 3]
    assert len(written[0]["left_out"]) == len(gpu.tasks(CPU, fast=True)) - 1


def test_a_call_that_fails_late_costs_only_itself():
    done = []

    def fails_late():
        done.append(1)
        if len(done) > gpu_times.WARM_UP + 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (1.0,)

    found, failures = gpu_times.medians({"late": fails_late, "right": lambda: (2.0,)}, 0.0)
    assert found == {"right": (2.0,)} and failures == {"late": "OutOfMemoryError: CUDA out of memory"}


def test_how_a_gpu_is_timed(monkeypatch):
    """The cache is cold, nothing is under way at the start, events stand around every part, and all has ended."""
    order, clock = [], iter((1.0, 2.0, 5.0))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            order.append("event")
            self.at = next(clock)

        def elapsed_time(self, end):
            return end.at - self.at

    class Cache:
        def zero_(self):
            order.append("cache")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("wait"))
    monkeypatch.setattr(gpu_times, "_cache", lambda device: Cache())
    parts = (lambda: order.append("forward"), lambda: order.append("backward"))
    assert gpu_times.timed(torch.device("cuda"), *parts) == (1e-3, 4e-3)
    assert order == ["cache", "wait", "event", "forward", "event", "backward", "event", "wait"]


def test_the_cases_of_a_gpu_are_listed_without_one():
    found = gpu.tasks(torch.device("cuda"), fast=False)
    sections = [task.section for task in found]
    assert {"agreement", "decoding", "synchronisation", "memory", "attention", "training", "decoding step"} <= {
        *sections
    }
    assert sections.index("attention") > max(i for i, section in enumerate(sections) if section == "memory")
    assert sum("fla" in task.case for task in found) == 4 and len({(task.section, task.case) for task in found}) == len(
        found
    )


def test_bounds_hold_in_every_thread_and_only_inside(monkeypatch):
    """On a GPU the backward pass runs in a thread of its own."""
    monkeypatch.setenv(dispatch.VARIABLE, "chunk=16")
    seen = []
    with dispatch.override(**{"chunk": 32, **gpu_cases.AGAIN}):
        thread = threading.Thread(target=lambda: seen.append(dispatch.bounds(CPU)))
        thread.start()
        thread.join()
    assert (seen[0].chunk, seen[0].kept_numbers, seen[0].pairs) == (32, 0, 0)
    assert dispatch.bounds(CPU).chunk == 16


def test_every_mechanism_is_checked_and_timed():
    """The lists are those of the registry."""
    kinds = gpu_cases.KINDS
    cases = {(task.section, task.case) for task in gpu.tasks(CPU, fast=True)}
    assert {case.partition(",")[0] for section, case in cases if section == "agreement"} == set(NAMES)
    told = []
    gpu.work([named("training", "128"), *_timed()], CPU, told.append, math.inf)
    timed = {row["mechanism"] for row in rows(told)}
    assert timed == {"sdpa", *gpu_cases.serving("causal", FAST)} and set(kinds) == {"causal", "bidirectional", "wait-k"}


@pytest.mark.full
def test_the_time_is_kept(tmp_path, told):
    def slow():
        time.sleep(0.1)
        return [{}]

    gpu.work([Task("memory", str(i), slow) for i in range(50)], CPU, told.append, time.time() + 0.5)
    done, left = ([m["task"] for m in told if key in m] for key in ("rows", "left out"))
    assert 1 <= len(done) <= 6 and done + left == list(range(50)), "the first things are done, the rest is named"

    start = time.time()
    assert gpu.main(["--device", "cpu", "--fast", "--out", str(tmp_path), "--budget", "2"]) in (0, 1)
    assert time.time() - start < 2 + gpu.GRACE + 4
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["left_out"] and "Left out" in (tmp_path / "gpu.md").read_text()


def test_without_a_gpu_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path)]) == 2
    assert "--device cpu" in capsys.readouterr().err and not list(tmp_path.glob("gpu.*"))


def test_the_bound_that_a_crossing_gives():
    labels = {"device": "cuda", "mechanism": "leap", "features": 128, "now": "1000"}
    found = gpu_page.crossings(
        [
            {**labels, "bound": bound, "length": n, "value": value, "fastest": (value == "all pairs") == (n <= 256)}
            for bound in ("pairs", "pairs_per_token")
            for n in (128, 256, 512)
            for value in ("all pairs", "states")
        ]
    )
    assert [(row["threshold"], row["all pairs win up to"], row["suggested"]) for row in found] == [
        ("pairs", 256, 512.0),
        ("pairs_per_token", 256, 1.0),
    ]


def content(**sections):
    facts = {"passed": 1, "failed": 0, "seconds": 3.0, "left_out": [], "method": "", "signature": ""}
    return {**facts, "environment": {}, "options": {"fast": True}, **sections}


def lines_of(page, title):
    """Cells of the first table below a heading, by the first of each line."""
    table = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines() if line.startswith("|")]
    return {first: cells for first, *cells in lines}


def test_the_page_names_every_check_that_failed():
    passing = {"mechanism": "leap", "mask": "causal", "dtype": "float32", "execution": "scan", "allowed": 2.0}
    rows = [{**passing, "error": 1.0, "ok": True}, {**passing, "error": math.nan, "of": "dq", "ok": False}]
    decoding = [{**passing, "error": 1.5, "ok": True}, {"case": "relu", "failure": "OutOfMemoryError: so much. And"}]
    memory = [{"mechanism": "leap", "ok": None, "note": "only on a GPU"}]
    page = gpu_page.page(content(agreement=rows, decoding=decoding, memory=memory, passed=2, failed=2))
    checks = lines_of(page, "Checks")
    assert checks["mechanism"][4:] == ["float32: error / allowed"]
    assert checks["leap"] == ["1 of 2", "1", "-", "-", "inf"] and checks["relu"] == ["-", "0 of 1", "-", "-", "-"]
    assert "* agreement, leap: error nan of dq, allowed 2.0 (causal, float32, scan)\n" in page
    assert "* decoding, relu: OutOfMemoryError: so much\n" in page and "1 could not be made here" in page


def test_the_page_has_a_line_for_every_mechanism_and_a_column_for_every_length():
    def at(length, place="cuda bfloat16", **ratios):
        rows = {"sdpa": 1.0, **ratios}
        labels = {"device": place, "case": f"causal {length}"}
        return [{**labels, "mechanism": name, "ms": 12.34 / x, "ratio": x} for name, x in rows.items()]

    lost = {"device": "cuda bfloat16", "case": "causal 8,192", "mechanism": "elu", "failure": "Error: no"}
    rows = [*at("2,048", leap=0.456, relu=0.5), *at("512", leap=0.0123), *at("512", "cuda", leap=4.44, elu=0.996), lost]
    page = gpu_page.page(content(attention=rows))
    table = lines_of(page, "Attention, causal: times as fast as SDPA")
    assert table.pop("mechanism") == ["bfloat16 512", "bfloat16 2,048", "float32 512"]
    assert table.pop("---------") and table.pop("SDPA, ms") == ["12", "12", "12"]
    assert list(table.items()) == [
        ("relu", ["-", "0.50", "-"]),
        ("leap", ["0.012", "0.46", "4.4"]),
        ("elu", ["-", "-", "1.0"]),
    ]
    assert "Faster than SDPA: 0 of 2 mechanisms (bfloat16 2,048), 1 of 2 mechanisms (float32 512)." in page
    assert "* attention, elu: Error: no (causal 8,192, bfloat16)\n" in page


def test_the_page_in_docs_is_that_of_the_measurements():
    if not (MEASURED / "gpu.json").is_file():
        pytest.skip("the installed package has no results beside it")
    measured = json.loads((MEASURED / "gpu.json").read_text(encoding="utf-8"))
    page = gpu_page.page(measured, "![Attention on a GPU: forward and backward pass](gpu.svg)")
    assert page == (MEASURED / "gpu.md").read_text(encoding="utf-8"), "run the benchmark with --redraw"
    assert len(page.splitlines()) <= 300


def test_the_page_is_redrawn_with_a_picture_where_there_is_matplotlib(monkeypatch, tmp_path):
    labels = {"device": "cuda", "mechanism": "leap", "ms": 1.0}
    rows = [{**labels, "case": f"causal {2**n:,}", "ratio": n / 12} for n in (10, 11, 12)]
    measured = {"benchmark": "gpu", **content(attention=rows)}
    (tmp_path / "gpu.json").write_text(json.dumps(measured))
    assert gpu.main(["--redraw", "--out", str(tmp_path)]) == 0
    assert f"]({gpu_page.PICTURE})" in (tmp_path / "gpu.md").read_text()
    assert (tmp_path / gpu_page.PICTURE).read_text().startswith("<?xml")

    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu.main(["--redraw", "--out", str(tmp_path)]) == 0
    assert gpu_page.PICTURE not in (tmp_path / "gpu.md").read_text()


def test_without_measurements_nothing_is_redrawn(tmp_path, capsys):
    assert gpu.main(["--redraw", "--out", str(tmp_path)]) == 2
    assert "measure without --redraw first" in capsys.readouterr().err and not list(tmp_path.glob("gpu.md"))
