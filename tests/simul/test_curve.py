"""`leapformer curve` against single runs of `leapformer simulate`; interrupted, refused, and with bad input."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from leapformer_fairseq.cli import simulate as simulate_command
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.scoring.figure import Figure
from leapformer_fairseq.simul import simulate as simulation_module
from leapformer_fairseq.studies import curve as curve_module
from leapformer_fairseq.studies.curve import Grid, Setting
from tests.covering import kept
from tests.scoring.pictures.images import texts
from tests.simul.test_loading import data_root  # noqa: F401  (a fixture)
from tests.simul.test_simulate import checkpoints, log, test_set  # noqa: F401  (fixtures)

SHORT = ["--max-len-b", "12", "--limit", "3"]
PLAIN = ("BLEU", "chrF", "AL", "LAAL", "AP", "DAL", "ATD")


@pytest.fixture
def curve(checkpoints, data_root: Path, test_set: list[str]):  # noqa: F811
    """Runs the command: `curve(out, *options, models=[...])` gives the exit status."""

    def run(out: Path, *options: str, models: tuple[str, ...] = ("causal",)) -> int:
        paths = [str(checkpoints[model]) for model in models]
        fixed = ["--checkpoints", *paths, "--data-root", str(data_root), *test_set, "--out", str(out)]
        return main(["curve", *fixed, *SHORT, *options])

    return run


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a curve is drawn after every run."""
    monkeypatch.setattr(Figure, "save", lambda *_: "")


def found(out: Path) -> list[dict]:
    return json.loads((out / "curve.json").read_text())["rows"]


def repeats_of(row: dict, out: Path) -> list[Path]:
    return sorted((out / "runs" / row["run"]).glob("repeat*"))


@pytest.mark.full
def test_rows_are_those_of_single_simulations(curve, tmp_path) -> None:
    out = tmp_path / "out"
    policies = ["--policies", "wait-k hold-n", "--k", "3", "1", "--hold", "2", "--pre-decision-ratios", "4"]
    assert curve(out, *policies, "--repeats", "2", "--names", "a", "b", models=("causal", "whole")) == 0
    rows = found(out)
    assert [(row["checkpoint"], row["policy"], row["numbers"]) for row in rows] == [
        (name, *point)
        for name in "ab"
        for point in (("wait-k", {"k": 1}), ("wait-k", {"k": 3}), ("hold-n", {"hold": 2}))
    ]
    assert len({row["AL"] for row in rows}) > 2
    commands = [line for line in (out / "commands.sh").read_text().splitlines() if line.startswith("leapformer ")]
    assert len(commands) == len(rows)
    by_name = {
        Path(arguments[arguments.index("--out") + 1]).name: arguments for arguments in map(shlex.split, commands)
    }
    for row in rows:
        of_grid = log(out / "runs" / row["run"])
        assert len(of_grid) == 3
        if row not in (rows[0], rows[-1]):
            continue  # those that run alone have both checkpoints and both policies
        alone = [*by_name[row["run"]][1:], "--out", str(tmp_path / row["run"])]
        assert main(alone) == 0
        assert log(tmp_path / row["run"]) == of_grid
        scores = json.loads((tmp_path / row["run"] / "scores.json").read_text())["scores"]
        assert {name: row[name] for name in PLAIN} == {name: scores[name] for name in PLAIN}
    assert main(by_name[rows[0]["run"]][1:]) == 0  # the command itself knows its folder
    check_measurement(rows, out)
    assert all(set(PLAIN) <= row["intervals"].keys() for row in rows if row["AL"] is not None)
    assert [row.get("p", {}).keys() >= {"BLEU", "AL"} for row in rows] == [False] * 3 + [True] * 3, "of b to a"
    assert texts(out / "curve.svg")
    text = (out / "table.md").read_text()
    assert "| p (BLEU) |" in text and "of a difference to a this large" in text
    assert text.count("| hold-n") == 2 and "AL_CA" in text and "Still to do" not in text


def check_measurement(rows: list[dict], out: Path) -> None:
    for row in rows:
        folders = repeats_of(row, out)
        assert [folder.name for folder in folders] == ["repeat1", "repeat2"] and row["repeats"] == 2
        of_run = log(out / "runs" / row["run"])
        assert all(log(folder) == of_run for folder in folders)  # also where the run was decoded in batches
        spread = row["AL_CA"]
        assert row["AL"] < spread["min"] < spread["mean"] < spread["max"]
        parts = [json.loads(line) for folder in folders for line in (folder / "compute.jsonl").read_text().splitlines()]
        audio = sum(part["audio_s"] for part in parts)
        for name in ("features", "encoder", "decoder"):
            assert all(part[f"{name}_s"] > 0 for part in parts if part["tokens"]), "what was decoded took time"
            assert row["compute"][name]["min"] > 0
            expected = sum(part[f"{name}_s"] for part in parts) / audio  # the repeats hear equally much
            assert row["compute"][name]["mean"] == pytest.approx(expected)
        assert row["compute"]["total"]["mean"] == pytest.approx(
            sum(row["compute"][name]["mean"] for name in ("features", "encoder", "decoder"))
        )


@pytest.mark.usefixtures("without_pictures")
def test_what_is_timed_is_computed_and_not_replayed(curve, tmp_path, capsys, monkeypatch) -> None:
    """An encoder in chunks: its run is decoded in batches, its repeats are not, and a repeat of none is no result."""
    out, options = tmp_path / "out", ["--k", "1", "--repeats", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(curve_module, "replace", lambda simulation, **_: simulation)  # in batches
        assert curve(out, *options, models=("ahead",)) == 2
    assert "repeat1 has no time of the features" in capsys.readouterr().err.splitlines()[-1] and not list(
        out.glob("runs/*/repeat1/scores.json")
    )
    assert curve(tmp_path / "timed", *options, models=("ahead",)) == 0
    (row,) = found(tmp_path / "timed")
    (repeat,) = repeats_of(row, tmp_path / "timed")
    scores = json.loads((repeat / "scores.json").read_text())
    assert min(scores["compute"][f"{part}_s"] for part in ("features", "encoder", "decoder")) > 0
    assert scores["compute"]["threads"] == 1 and "|threads:1|" in (tmp_path / "timed" / "table.md").read_text()
    instances = [json.loads(line) for line in (repeat / "instances.log").read_text().splitlines()]
    lines = [json.loads(line) for line in (repeat / "compute.jsonl").read_text().splitlines()]
    for one, spent in zip(instances, lines, strict=True):
        if one["delays"]:  # all that was computed came before the last word was written
            computed = sum(spent[f"{part}_s"] for part in ("features", "encoder", "decoder"))
            assert one["elapsed"][-1] - one["delays"][-1] >= 0.9 * 1000 * computed
    scores["compute"]["encoder_s"] = 0.0  # as an earlier version wrote it
    (repeat / "scores.json").write_text(json.dumps(scores))
    capsys.readouterr()
    assert curve(tmp_path / "timed", *options, models=("ahead",)) == 2
    assert "repeat1 has no time of the encoder" in one_line_error(capsys)


@pytest.mark.usefixtures("without_pictures")
def test_without_repeats_nothing_is_timed(curve, tmp_path) -> None:
    """Also not where utterances are decoded one by one, and so were timed by chance."""
    assert curve(tmp_path / "out", "--policies", "hold-n", "--hold", "2") == 0
    (row,) = found(tmp_path / "out")
    assert (tmp_path / "out" / "runs" / row["run"] / "compute.jsonl").is_file()
    assert row["compute"] is row["AL_CA"] is None
    assert "CA" not in (tmp_path / "out" / "table.md").read_text()


def interrupting(module, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C when `module` is to log one more utterance than `after`."""
    write, written = simulation_module.log_outcome, []

    def log_outcome(folder, outcome):
        if len(written) == after:
            raise KeyboardInterrupt
        write(folder, outcome)
        written.append(outcome)

    monkeypatch.setattr(module, "log_outcome", log_outcome)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are simulated from now on."""
    names, run = [], simulate_command.run

    def simulate(args):
        names.append(Path(args.out).name)
        return run(args)

    monkeypatch.setattr(simulate_command, "run", simulate)
    return names


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("module", "after", "left"), kept([(simulation_module, 4, 1), (curve_module, 2, 1)], (curve_module, 2, 1))
)
def test_the_same_command_goes_on(curve, tmp_path, monkeypatch, capsys, module, after, left) -> None:
    """After an interrupt while translating the second run, or while timing the first."""
    out, options = tmp_path / "out", ["--policies", "hold-n", "--hold", "1 2", "--repeats", "1"]
    with monkeypatch.context() as patch:
        interrupting(module, patch, after)
        assert curve(out, *options) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("leapformer: interrupted")
    kept = [path.read_text() for path in sorted(out.glob("runs/**/instances.log"))]
    assert sum(text.count("\n") for text in kept) >= after
    assert "Still to do" in (out / "table.md").read_text()
    names = counting(monkeypatch)
    assert curve(out, *options) == 0
    assert len(names) == left
    assert [row["repeats"] for row in found(out)] == [1, 1]
    now = [path.read_text() for path in sorted(out.glob("runs/**/instances.log"))]
    assert [text.count("\n") for text in now] == [3] * 4  # nothing twice
    assert all(any(text.startswith(old) for text in now) for old in kept)
    assert curve(out, *options) == 0
    assert len(names) == left  # nothing was done again


@pytest.mark.usefixtures("without_pictures")
def test_what_a_checkpoint_cannot_serve_is_refused(curve, tmp_path, capsys) -> None:
    out, options = tmp_path / "out", ["--engine", "incremental", "--k", "2"]
    assert curve(out, *options, models=("causal", "whole")) == 0
    content = json.loads((out / "curve.json").read_text())
    assert [row["checkpoint"] for row in content["rows"]] == ["causal"]
    assert [(run["checkpoint"], run["numbers"]) for run in content["refused"]] == [("whole", {"k": 2})]
    sentence = "Refused: whole, wait-k: --engine incremental: this encoder sees whole utterances"
    assert sentence in (out / "table.md").read_text() and sentence in capsys.readouterr().out
    assert curve(tmp_path / "none", *options, models=("whole",)) == 2
    assert "there is nothing to simulate: --engine incremental" in one_line_error(capsys)
    assert not (tmp_path / "none").exists()


def test_a_dry_run_lists_the_runs(curve, tmp_path, capsys) -> None:
    assert curve(tmp_path / "out", "--policies", "wait-k offline", "--segment-sizes", "40 80", "--dry-run") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "10 runs to do, 0 finished before, 0 refused"
    assert len([line for line in printed if line.startswith("leapformer simulate ")]) == 10
    assert not (tmp_path / "out").exists()


def one_line_error(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policies", "wait-k guess"], "--policy 'guess': choose from wait-k, hold-n"),
        (["--k", "1 0"], "--k 0: give at least 1"),
        (["--k", "1 x"], "--k 1 x: give whole numbers, e.g. --k '4 8'"),
        (["--agree", "1"], "--agree 1: give at least 2"),
        (["--hold=-1"], "--hold -1"),
        (["--hold", "3"], "--hold 3 is for the policy hold-n, not for wait-k; leave it out"),
        (["--pre-decision-ratios", "0"], "--pre-decision-ratios 0: it must be at least 1"),
        (["--segment-sizes", ""], "the grid is empty"),
        (["--names", "a", "b"], "--names has 2 names for 1 --checkpoints; give one for each"),
        (["--names", "a/b"], "--names 'a/b'"),
        (["--checkpoints", "a/best.pt", "b/best.pt"], "2 --checkpoints are called best; tell them apart with --names"),
        (["--checkpoints", "none.pt"], "none.pt"),
        (["--repeats", "-1"], "--repeats -1: give at least 0"),
        (["--limit", "0"], "--limit 0: give at least 1"),
        (["--max-len-b", "-1"], "--max-len-b -1"),
        (["--device", "tpu"], "--device tpu"),
    ],
)
def test_bad_options_end_with_one_line(curve, tmp_path, capsys, options, message) -> None:
    assert curve(tmp_path / "out", *options) == 2
    assert message in one_line_error(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_pictures")
def test_another_folder_is_not_written_into(curve, tmp_path, capsys) -> None:
    assert curve(tmp_path) == 2  # it holds the test set
    assert "is not empty and holds no curve; choose another folder" in one_line_error(capsys)
    out = tmp_path / "out"
    assert curve(out, "--k", "1") == 0
    capsys.readouterr()
    assert curve(out, "--k", "1", "--max-len-b", "9") == 2
    assert "holds a curve with another --max-len-b (12, not 9); choose another folder" in one_line_error(capsys)
    assert curve(out, "--k", "2", "--names", "causal") == 0  # more of the grid is welcome
    (out / "runs" / "causal-wait-k-k2-40ms" / "scores.json").write_text("{")
    capsys.readouterr()
    assert curve(out, "--k", "2") == 2
    assert "scores.json is damaged" in capsys.readouterr().err


def test_the_grid_has_every_combination_once() -> None:
    numbers: Callable = lambda **given: {"k": [], "hold": [], "agree": [], "align_frames": []} | given  # noqa: E731
    grid = Grid({"a": "a.pt", "b": "b.pt"}, ["wait-k", "offline"], numbers(k=[1, 3, 1]), [7, None], [40])
    settings = grid.settings()
    assert len(settings) == len(set(settings)) == 2 * (2 + 1) * 2
    assert len({setting.name for setting in settings}) == len(settings)
    assert Setting("a", "wait-k", (("k", 3),), 7, 40) in settings and Setting("b", "offline", (), None, 40) in settings
