"""The engine of studies: order, failures, what is refused, and that any interruption leaves a study that goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from leapformer_fairseq.cli import calls
from leapformer_fairseq.studies import engine, trainings
from leapformer_fairseq.studies.engine import Call, Cell, Command, Engine, State, Study, lost_cells, planned, ready
from leapformer_fairseq.studies.launching import COMMANDS, Launcher
from leapformer_fairseq.support import files
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import locked_folder, write_text
from tests.support.test_files import another_in

NOTHING = Namespace(only=[], dry_run=False)  # options of a command
INTERRUPT = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(20)"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(engine, "POLL_S", 0.01)
    monkeypatch.setattr(files, "GRACE_S", 0.05)


class Toy(Study):
    """A study of the cells given, or of those that a function chooses; its report lists the results."""

    def __init__(self, out, *cells, name="toy"):
        self.out, self._cells, self._name = out, cells, name

    def reserve(self):
        locked_folder(self.out, "toy.json", {"name": self._name}, "toy")

    def cells(self, state):
        return self._cells[0](state) if callable(self._cells[0]) else self._cells

    def report(self, state):
        write_text(self.out / "table", "".join(f"{name} {result}\n" for name, result in sorted(state.results.items())))


def python(code, **options):
    return Command(("-c", code), program="python", **options)


def refusing(reason):
    raise LeapformerError(reason)


def noting(events, *names, **options):
    """A cell for each name, which notes it; options of all."""
    return [Cell(name, (Call(events.append, (name,)),), **options) for name in names]


def cell(name, **options):
    return Cell(name, (), **options)


# ---------------------------------------------------------------------------------------------------------------- order
def test_cells_run_in_order_after_what_they_need_and_once(tmp_path):
    events = []
    toy = Toy(tmp_path / "o", *noting(events, "c", needs=("b",)), *noting(events, "a", "b"))
    state = Engine(toy).run()
    assert events == ["a", "b", "c"] and state == State(dict.fromkeys("abc", True))
    assert (toy.out / "b/done").read_text() == "" and (toy.out / "table").read_text() == "a True\nb True\nc True\n"
    (toy.out / "b/done").unlink()
    assert Engine(toy).run() == state and events == ["a", "b", "c", "b"]
    assert sorted(path.name for path in toy.out.iterdir()) == ["a", "b", "c", "table", "toy.json"]


@pytest.mark.parametrize(
    ("only", "expected"), [(["b"], "ab"), (["x-c"], ["x-c"]), (["x"], ["x-c", "x-cc"]), (["a", "x-c"], ["a", "x-c"])]
)
def test_only_what_is_asked_for_and_what_it_needs(only, expected, tmp_path):
    events = []
    toy = Toy(tmp_path, *noting(events, "a"), *noting(events, "b", needs=("a",)), *noting(events, "x-c", "x-cc"))
    state = Engine(toy, only=only).run()
    assert events == list(expected) == list(state.results)
    assert list(Engine(toy, only=["a", "b"]).run().results)[: len(expected)] == list(expected), "others stay known"


def test_only_what_there_is(tmp_path):
    with pytest.raises(LeapformerError, match="^--only d: no cell has this in its name; choose from a, bc$"):
        Engine(Toy(tmp_path / "o", cell("a"), cell("bc")), only=["c", "d"]).run()
    assert not (tmp_path / "o").exists()


def test_what_runs_next_may_depend_on_results(tmp_path):
    def cells(state):
        wanted = [Cell("0", (Call(dict, ((("value", 3),),)),), "0.json")]
        while (last := state.results.get(wanted[-1].name)) and last["value"] > 0:
            after = Call(dict, ((("value", last["value"] - 1),),))
            wanted.append(Cell(str(len(wanted)), (after,), f"{len(wanted)}.json"))
        return wanted

    whole = Engine(Toy(tmp_path, cells)).run()
    assert [result["value"] for result in whole.results.values()] == [3, 2, 1, 0]
    (tmp_path / "2.json").unlink()
    assert Engine(Toy(tmp_path, cells)).run() == whole
    assert json.loads((tmp_path / "2.json").read_text()) == {"value": 1}


def test_a_result_that_grows_is_left_to_its_step(tmp_path):
    """And what a step has written stays as it is."""

    def grow():
        before = json.loads((tmp_path / "a.json").read_text())["steps"]
        write_text(tmp_path / "a.json", json.dumps({"steps": [*before, 2]}))
        write_text(tmp_path / "a.pt", "tensors")

    cells = [
        Cell("a", (Call(grow),), "a.json", whole=lambda value: len(value["steps"]) == 2),
        Cell("b", (), "a.pt", needs=("a",)),
    ]
    Engine(Toy(tmp_path, cell("c"))).run()
    (tmp_path / "a.json").write_text('{"steps": [1]}')
    assert Engine(Toy(tmp_path, *cells)).run().results == {"a": {"steps": [1, 2]}, "b": True}
    assert (tmp_path / "a.pt").read_text() == "tensors"


def test_what_a_killed_cell_left_half_written_is_deleted(tmp_path):
    left = files.partial_of(tmp_path / "deep" / "down" / "done").name.replace(f"-{os.getpid()}-", "-4194305-")
    (tmp_path / "deep/down").mkdir(parents=True)
    (tmp_path / "deep/down" / left).touch()
    toy = Toy(tmp_path, cell("deep/down"))
    toy.reserve = lambda: None
    Engine(toy).run()
    assert [path.name for path in (tmp_path / "deep/down").iterdir()] == ["done"]


def test_what_is_run_each_time_leaves_no_result(tmp_path):
    events = []
    cells = [Cell("t", (Call(events.append, ("t",)),), None, needs=("a",)), *noting(events, "a")]
    for _ in range(2):
        assert Engine(Toy(tmp_path, *cells)).run().results == {"a": True, "t": None}
    assert events == ["a", "t", "t"] and not (tmp_path / "t").exists()


def names_of(cells):
    return [one.name for one in cells]


def test_which_cells_are_started():
    cells = [cell("a"), cell("b", needs=("a",)), cell("c"), cell("d", alone=True), cell("e")]
    assert names_of(ready(cells, State(), [], 9)) == ["a", "c"], "e would keep d waiting"
    assert names_of(ready(cells, State(), [replace(cells[0], title="again")], 2)) == ["c"]
    assert names_of(ready(cells, State({"a": True}), [], 2)) == ["b", "c"]
    assert names_of(ready(cells, State({"c": True}, {"a": ""}), [], 9)) == ["d"], "nothing beside it"
    assert ready(cells, State({"a": True, "b": True, "c": True}), [cells[3]], 9) == []
    assert names_of(ready(cells, State({"a": True, "b": True, "c": True, "d": True}), [], 9)) == ["e"]
    wide = [cell("w", cores=2), cell("x", cores=2), cell("y", cores=9)]
    assert names_of(ready(wide, State(), [], 4)) == ["w", "x"] and names_of(ready(wide, State(), [], 3)) == ["w"]
    assert names_of(ready(wide[2:], State(), [], 1)) == ["y"], "alone it takes what there is"


def test_what_summarises_others_starts_once_all_have_ended_if_one_is_done():
    cells = [cell("a"), cell("b", needs=("a",)), cell("c"), cell("t", some_of=("b", "c"))]
    assert names_of(ready(cells, State({"c": True}), [cells[0]], 9)) == []
    assert names_of(ready(cells, State({"c": True}, {"a": "died"}), [], 9)) == ["t"]
    failed = State({}, {"a": "died", "c": "died"})
    assert not ready(cells, failed, [], 9)
    assert lost_cells(cells, failed) == {"b": "not started, it needs a", "t": "not started, it needs b"}


def test_what_is_never_done_runs_each_time_and_a_step_may_write_the_result(tmp_path):
    events = []
    made = Cell("a", (Call(write_text, (tmp_path / "o/a.txt", "kept")),), "a.txt")
    toy = Toy(tmp_path / "o", made, *noting(events, "t", needs=("a",), result=None))
    for _ in range(2):
        assert Engine(toy).run().results == {"a": True, "t": None}
    assert events == ["t", "t"] and (toy.out / "a.txt").read_text() == "kept"


def test_steps_logs_results_and_what_is_tidied(tmp_path):
    logs = ("print('{}')", "import os; print('{\"loss\": 2}', os.environ['OMP_NUM_THREADS'])")
    shown, told = [], lambda entry: f"loss {entry['loss']}" if "loss" in entry else ""
    steps = (python(logs[0], log="one.log"), python(logs[1], threads=7, tell=told), Call(lambda: {"not": "collected"}))
    one = Cell(
        "a", steps, "b/c.json", collect=lambda folder: {"log": (folder / "log").read_text()}, fields=("log",),
        tidy=lambda folder: (folder / "one.log").unlink(),
    )  # fmt: skip
    state = Engine(Toy(tmp_path, one), watch=lambda *shows: shown.append(shows)).run()
    assert state.results == {"a": {"log": '{"loss": 2} 7\n'}}
    assert not (tmp_path / "b/one.log").exists() and (0, 1, "a") in shown
    (tmp_path / "b/one.log").touch()  # as if it had been killed before
    Engine(Toy(tmp_path, one)).run()
    assert not (tmp_path / "b/one.log").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_so_many_at_once(jobs, tmp_path):
    """Each waits for a moment until the other is there."""
    code = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], sys.argv[2]).touch()
while not list(pathlib.Path(sys.argv[1]).glob(sys.argv[3])) and time.process_time() < 0.1: pass
print(len(list(pathlib.Path(sys.argv[1]).glob("[ab]"))), os.environ["OMP_NUM_THREADS"], flush=True)
"""
    (tmp_path / "seen").mkdir()
    cells = [
        Cell(name, (Command(("-c", code, str(tmp_path / "seen"), name, other), program="python"),))
        for name, other in ("ab", "ba")
    ]
    Engine(Toy(tmp_path / "o", *cells), jobs=jobs).run()
    threads = "1" if jobs == 2 else trainings.environment()["OMP_NUM_THREADS"]
    assert (tmp_path / "o/a/log").read_text() == f"{jobs} {threads}\n"


def test_calls_in_processes(tmp_path):
    cells = [Cell(name, (Call(dict, (((name, 1),),)),), f"{name}.json") for name in "ab"]
    assert Engine(Toy(tmp_path, *cells), jobs=2).run().results == {"a": {"a": 1}, "b": {"b": 1}}
    with pytest.raises(LeapformerError, match="^a process of --jobs 2 was killed, .*; finished work is kept"):
        Engine(Toy(tmp_path, *cells, Cell("c", (Call(os._exit, (1,)),))), jobs=2).run()


def test_the_time_that_is_left(tmp_path, monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    cells = [Cell(name, (Call(lambda: now.__setitem__(0, now[0] + 70)),)) for name in "abcd"]
    Engine(Toy(tmp_path, *cells), say=said.append).run()
    assert said == [
        "== 0 of 4 done: a", "== 1 of 4 done, 4 min left: b", "== 2 of 4 done, 2 min left: c",
        "== 3 of 4 done, 70 s left: d",
    ]  # fmt: skip
    (tmp_path / "a/done").unlink()
    (tmp_path / "b/done").unlink()
    Engine(Toy(tmp_path, *cells), say=said.append).run()
    assert said[4:6] == [f"== {tmp_path}/{name} is finished, skipped" for name in "cd"]
    assert said[6:] == ["== 2 of 4 done: a", "== 3 of 4 done, 70 s left: b"], "what was done before took no time"


def test_the_time_that_is_left_is_that_of_the_same_kind(tmp_path, monkeypatch):
    """Data that were prepared in a second do not promise a training in a second."""
    now, said = [0.0], []
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))

    def train(seconds):
        now[0] += seconds

    def prepare(seconds):
        now[0] += seconds

    cells = [Cell("data", (Call(prepare, (1,)),), None)]
    cells += [Cell(name, (Call(train, (600,)),), needs=("data",)) for name in "ab"]
    cells += [Cell("table", (Call(prepare, (5,)),), None, needs=("a", "b"))]
    Engine(Toy(tmp_path, *cells), say=said.append).run()
    assert said == [
        "== 0 of 4 done: data", "== 1 of 4 done: a", "== 2 of 4 done, 10 min left: b", "== 3 of 4 done: table",
    ]  # fmt: skip


def test_a_failure_is_no_measure_of_the_time_that_is_left(tmp_path):
    def train(name):
        if name == "a":
            raise LeapformerError("no")

    said: list[str] = []
    Engine(Toy(tmp_path, *(Cell(name, (Call(train, (name,)),)) for name in "abc")), say=said.append).run()
    assert said == ["== 0 of 3 done: a", "a failed: no", "== 0 of 3 done: b", "== 1 of 3 done, 0 s left: c"]


# ------------------------------------------------------------------------------------------------------------- commands
def test_a_short_command_runs_in_this_process(tmp_path, monkeypatch):
    called, inline = [], Cell("a", (Command(("list", "x y"), inline=True),))
    Engine(Toy(tmp_path / "o", inline), call=called.append).run()
    assert called == [("list", "x y")] and "leapformer list 'x y'" in (tmp_path / "o" / COMMANDS).read_text()
    monkeypatch.setattr(calls, "call", lambda words: signal.raise_signal(signal.SIGINT))
    assert calls.run_study(Toy(tmp_path / "p", inline), NOTHING)[1] == calls.INTERRUPTED
    assert not (tmp_path / "p/a/done").exists()


def test_a_function_that_raises_fails_its_cell_only(tmp_path):
    cells = [Cell("a", (Call(divmod, (1, 0)),)), Cell("b", (Call(str, (1,)),), "b/r.json"), *noting([], "c")]
    state = Engine(Toy(tmp_path, *cells[::2])).run()
    assert state.results == {"c": True} and state.failed["a"].startswith("ZeroDivisionError")
    assert "Traceback" in (tmp_path / "a/error.log").read_text()
    cells[0] = Cell("a", (Call(Path, ("x",)),), "a/r.json")
    state = Engine(Toy(tmp_path, *cells)).run()
    assert state.failed["b"].startswith("'1' cannot be the content of") and not (tmp_path / "a/error.log").exists()
    assert "PosixPath is not JSON serializable; the result goes to" in state.failed["a"]


def test_a_dry_run_prints_what_would_run_and_writes_nothing(tmp_path):
    said, out = [], tmp_path / "o"
    cells = [Cell("a", (python("pass"), Call(os.getcwd))), Cell("b", (Command(("train", "two words")),), needs=("a",))]
    assert not Engine(Toy(out, *cells), say=said.append, dry=True).run().results
    assert said == ["# a\npython -c pass\n# posix.getcwd()\n", "# b\nleapformer train 'two words'\n"]
    assert not out.exists()
    (out / "a").mkdir(parents=True)
    (out / "a/done").touch()
    Engine(Toy(out, *cells), say=said.append, dry=True).run()
    assert said[2:] == said[1:2], "what is done is left out"


def test_commands_are_listed_as_they_are_typed(tmp_path):
    toy = Toy(tmp_path, Cell("a", (python("print(1)"), python("pass", log="b"))))
    for _ in range(2):
        Engine(toy).run()
        (tmp_path / "a/done").unlink()
    assert (tmp_path / COMMANDS).read_text().splitlines()[2:] == ["python -c 'print(1)'", "python -c pass"]
    assert (tmp_path / "a/log").read_text() == "1\n1\n"
    toy = Toy(tmp_path / "o", Cell("a", (python("pass"),)))
    toy.commands = ""
    Engine(toy).run()
    assert not (tmp_path / "o" / COMMANDS).exists()


@pytest.mark.parametrize(("restarts", "saves", "ends"), [(2, True, True), (1, True, False), (9, False, False)])
def test_a_training_that_dies_is_started_again_if_it_has_saved(restarts, saves, ends, tmp_path, monkeypatch):
    """It has three updates to do, and dies after each."""
    code = f"""
import pathlib, sys
last = pathlib.Path(sys.argv[1], "checkpoint_last.pt")
number = int(last.read_text()) + 1 if last.exists() else 1
print(f'{{{{"num_updates": {{number}}, "loss": 5}}}}')
last.write_text(str(number)) if {saves} else None
if number < 3:
    raise ValueError(f"died at {{number}}")
"""
    monkeypatch.setattr(Launcher, "prefix", lambda self, typed=False: [sys.executable, "-c", code])
    said, step = [], Command((str(tmp_path / "a"), "--max-update", "3"), launched=True)
    state = Engine(Toy(tmp_path, Cell("a", (step,))), say=said.append, launcher=Launcher(restarts=restarts)).run()
    assert ("a" in state.results) is ends and [line for line in said if line.startswith("  a: update 1: loss 5")]
    if not ends:
        assert state.failed["a"].startswith(f"ValueError: died at {restarts + 1 if saves else 1} (exit status 1; see ")
    assert len([line for line in said if "goes on from its last checkpoint" in line]) == (restarts if saves else 0)


# ------------------------------------------------------------------------------------------------------------- failures
def test_others_go_on_after_a_failure(tmp_path):
    events, said = [], []
    cells = [
        Cell("a", (python("import sys; sys.exit('TypeError: so it is')"),)),
        Cell("b", (Call(refusing, ("no luck",)),)),
        *noting(events, "c", needs=("a",)), *noting(events, "d", needs=("c",)), *noting(events, "e"),
    ]  # fmt: skip
    state = Engine(Toy(tmp_path, *cells), say=said.append).run()
    assert events == ["e"] == list(state.results)
    assert state.failed == {
        "a": f"TypeError: so it is (exit status 1; see {tmp_path / 'a/log'})", "b": "no luck",
        "c": "not started, it needs a", "d": "not started, it needs c",
    }  # fmt: skip
    assert "b failed: no luck" in said
    (tmp_path / "d").mkdir()
    (tmp_path / "d/done").touch()
    state = Engine(Toy(tmp_path, *cells)).run()
    assert list(state.failed) == ["a", "b", "c"] and list(state.results) == ["d", "e"], "d is done anyway"


def test_a_vital_failure_ends_the_study(tmp_path):
    events = []
    cells = [Cell("a", (Call(refusing, ("no luck",)),), vital=True, title="the first"), *noting(events, "b")]
    toy, reports = Toy(tmp_path, *cells), []
    toy.report = lambda state: reports.append(dict(state.failed))
    with pytest.raises(LeapformerError, match="^the first failed: no luck$"):
        Engine(toy).run()
    assert not events and reports == [{}, {"a": "no luck"}]


def test_a_result_that_cannot_be_written_ends_the_study(tmp_path):
    events = []
    cells = [Cell("a", (Call((tmp_path / "a/done").mkdir, ()),)), *noting(events, "b")]
    with pytest.raises(LeapformerError, match="cannot be written"):
        Engine(Toy(tmp_path, *cells)).run()
    assert not events


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([cell("a"), cell("a")], "two cells are called a; give each its own name"),
        ([cell("a", result="x/r"), cell("b", result="x/r")], "two cells write x/r; give each its own result"),
        (
            [Cell("a", (python(""),), "x/a"), Cell("b", (python(""),), "x/b")],
            "two cells write the log x/log; give each its own folder or log",
        ),
        ([cell("a", needs=("z",))], "a needs z, which is no cell of the study; check the name"),
        (
            [cell("a"), cell("b", needs=("a", "c")), cell("c", needs=("b",))],
            "b, c: no order is possible, they need each other; remove one of the needs",
        ),
        ([cell("a", needs=("a",))], "a: no order is possible, they need each other; remove one of the needs"),
        (
            [cell("a"), cell("b", needs=("a",), inputs=(Path("no/file"),))],
            "b: no no/file, which it needs; check the path",
        ),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line_before_any_work(cells, message, tmp_path):
    with pytest.raises(LeapformerError) as error:
        Engine(Toy(tmp_path / "o", *cells)).run()
    assert str(error.value) == message and not (tmp_path / "o").exists()


def test_inputs_may_be_made_by_what_is_needed_or_missing_once_all_is_done(tmp_path):
    (tmp_path / "there").touch()
    wanted = (tmp_path / "there", tmp_path / "o/a/data")
    toy = Toy(tmp_path / "o", cell("b", needs=("a",), inputs=wanted), cell("a"))
    assert names_of(planned(toy, State())) == ["b", "a"]
    Engine(toy).run()
    (tmp_path / "there").unlink()
    assert list(Engine(toy).run().results) == ["b", "a"]


def test_numbers_of_jobs(tmp_path):
    with pytest.raises(LeapformerError, match="^--jobs 0: give at least 1$"):
        Engine(Toy(tmp_path, cell("a")), jobs=0).run()


class Checked(Toy):
    """A study whose data is missing."""

    def check_work(self):
        refusing("no data")


def test_data_is_checked_before_the_folder_is_made_but_only_if_there_is_work_to_do(tmp_path):
    out, said = tmp_path / "o", []
    with pytest.raises(LeapformerError, match="^no data$"):
        Engine(Checked(out, cell("a"))).run()
    Engine(Checked(out, cell("a", inputs=(tmp_path / "no",))), say=said.append, dry=True).run()
    assert said == ["# a\n"] and not out.exists()
    Engine(Toy(out, cell("a"))).run()
    assert Engine(Checked(out, cell("a"))).run().results == {"a": True}


def test_a_command_names_the_cells_that_failed(tmp_path, capsys):
    broken = Cell("b", (Call(refusing, ("no luck",)),), title="the second")
    state, status = calls.run_study(Toy(tmp_path, cell("a"), broken), NOTHING, "toys", "toy")
    assert status == 1 and state.failed == {"b": "no luck"}
    assert capsys.readouterr().err.splitlines()[-1] == "leapformer: error: b: no luck"
    assert calls.run_study(Toy(tmp_path, cell("a")), NOTHING, "toys", "toy")[1] == 0
    stopped = Cell("c", (Call(signal.raise_signal, (signal.SIGTERM,)),))
    assert calls.run_study(Toy(tmp_path, stopped), NOTHING, "toys", "toy", kept="all is kept")[1] == 130
    assert "interrupted; all is kept" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "reason"), [("{", "damaged"), ("[]", "no JSON object"), ("{}", "without 'loss'")])
def test_a_damaged_result_is_named(content, reason, tmp_path):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(LeapformerError, match=rf"^{tmp_path}/a.json is damaged .*delete it") as error:
        Engine(Toy(tmp_path, cell("a", result="a.json", fields=("loss",)))).run()
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_the_folder_of_another_study(tmp_path):
    Engine(Toy(tmp_path, cell("a"))).run()
    with pytest.raises(LeapformerError, match="holds a toy with another name"):
        Engine(Toy(tmp_path, cell("b"), name="other")).run()
    assert not (tmp_path / "b").exists()


# -------------------------------------------------------------------------------------------------------- interruptions
def test_an_interrupt_does_not_wait_for_calls(tmp_path):
    cells = [Cell("a", (Call(time.sleep, (20,)),)), Cell("b", (python(INTERRUPT),))]
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Engine(Toy(tmp_path, *cells), jobs=2).run()
    assert time.monotonic() - began < 10


def test_an_interrupt_while_a_process_starts_ends_it_too(tmp_path, monkeypatch):
    started = []

    class Interrupted(trainings.Running):
        def __init__(self, about):
            super().__init__(about)
            started.append(self.process)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(trainings, "Running", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        Engine(Toy(tmp_path, Cell("a", (python("import time; time.sleep(20)"),)))).run()
    (process,) = started
    assert process.poll() is not None, "nobody else knows of it"


def forked(toy, **options):
    """A process that runs a study, and ends with status 0 if nothing failed."""
    process = os.fork()
    if not process:
        status = 1
        try:
            status = bool(Engine(toy, **options).run().failed)
        finally:
            os._exit(status)
    return process


def test_one_process_at_a_time(tmp_path):
    code = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)"
    toy = Toy(tmp_path / "o", Cell("a", (python(code),)))
    process = forked(toy)
    while not (toy.out / "a/log").exists():
        time.sleep(0.01)
    with pytest.raises(LeapformerError, match="another process, .* is running here"):
        Engine(toy).run()
    (tmp_path / "go").touch()
    assert os.waitpid(process, 0)[1] == 0
    assert Engine(toy).run().results == {"a": True}


class Shared(Toy):
    """A study whose cells lock their folders themselves."""

    lock_cells = True

    def reserve(self):
        """Its cells do it."""


def test_another_process_is_waited_for_where_it_makes_the_same_and_not_in_the_folder_of_a_run(tmp_path):
    """Meanwhile others go on."""
    out, events, said = tmp_path / "o", [], []
    (data,), (other,) = noting(events, "data"), noting(events, "other")
    data, other = (replace(one, steps=(replace(one.steps[0], inline=True),)) for one in (data, other))
    (mine,) = noting(events, "run", records={"run": "--lr 1"})
    with another_in(out / "data") as process:
        wait = Cell("wait", (python("import time; time.sleep(0.2)"), Call(process.terminate, inline=True)))
        assert not Engine(Shared(out, data, other, wait), say=said.append, jobs=2).run().failed
    assert events == ["other", "data"] and f"== {out}/data: another process is creating what" in " ".join(said)
    with another_in(out / "run"):
        failed = Engine(Shared(out, data, mine)).run().failed
    assert list(failed) == ["run"] and "is running here" in failed["run"]
    assert not Engine(Shared(out, mine)).run().failed and (out / "run/options").read_text() == "--lr 1\n"
    failed = Engine(Shared(out, replace(mine, name="again", records={"run": "--lr 2"}))).run().failed
    assert failed["again"].startswith(f"--out {out}/run holds the run of another command (--lr 1)")
    assert events == ["other", "data", "run"] and not (out / ".lock").exists() and not (out / "run/.lock").exists()


def test_an_interrupt_ends_all_processes_and_the_same_command_goes_on(tmp_path):
    """Each of two trainings waits for the interrupt, which it notes; the second sends it as soon as the first runs."""
    code = """
import os, pathlib, signal, sys, time
try:
    pathlib.Path("{0}", sys.argv[1]).touch()
    while not pathlib.Path("{0}/a").exists(): time.sleep(0.01)
    saved = pathlib.Path("{0}/a.saved").exists()
    if sys.argv[1] == "b" and not saved: os.kill(os.getppid(), signal.SIGINT)
    time.sleep(0 if saved else 20)
except KeyboardInterrupt:
    pathlib.Path("{0}", sys.argv[1] + ".saved").touch()
""".replace("{0}", str(tmp_path))
    cells = [Cell(name, (Command(("-c", code, name), program="python"),)) for name in "ab"]
    toy = Toy(tmp_path / "o", *cells)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Engine(toy, jobs=2).run()
    assert len(list(tmp_path.glob("*.saved"))) == 2 and time.monotonic() - began < 10
    assert not list(toy.out.glob("*/done")) and not (toy.out / ".lock").exists()
    assert Engine(toy, jobs=2).run().results == {"a": True, "b": True}


TRAINING = """
import json, pathlib, sys, time
out = pathlib.Path(sys.argv[1])
state = out / "state"
(out / ("twice" if (out / "running").exists() else "running")).touch()
for step in range(int(state.read_text()) if state.exists() else 0, 5):
    time.sleep(0.02)
    state.with_suffix(".new").write_text(str(step + 1))
    state.with_suffix(".new").replace(state)
(out / "running").unlink()
"""


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_any_moment_the_study_ends_at_the_same_table(seed, tmp_path, monkeypatch):
    """Four trainings and two evaluations, of which none is started where one that was left behind still runs."""
    monkeypatch.setattr(files, "GRACE_S", 2.0)

    def toy(out):
        def training(name):
            words = ("-c", TRAINING, str(out / name))
            return Cell(
                name, (Command(words, program="python"),), f"{name}/result.json",
                collect=lambda folder: {"steps": int((folder / "state").read_text())},
            )  # fmt: skip

        needs = tuple("abcd")
        scores = [Cell(f"score{n}", (python(f"print({n})"),), needs=needs) for n in range(2)]
        return Toy(out, *map(training, needs), *scores)

    assert not Engine(toy(tmp_path / "whole"), jobs=2).run().failed
    randomly, kills = random.Random(seed), 0
    while True:
        process = forked(toy(tmp_path / "o"), jobs=2)
        time.sleep(randomly.uniform(0.02, 0.4 if kills else 0.06))  # the first comes before a fast machine is done
        os.kill(process, signal.SIGKILL)
        if os.waitpid(process, 0)[1] == 0:
            break
        kills += 1
    assert kills and (tmp_path / "o/table").read_text() == (tmp_path / "whole/table").read_text()
    assert not [*(tmp_path / "o").rglob("*.partial"), *(tmp_path / "o").rglob("twice")]
