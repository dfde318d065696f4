"""`leapformer simulate` against the real SimulEval, in batches and one by one, interrupted, and with bad input."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.simul import batch
from leapformer_fairseq.simul import simulate as simulation_module
from leapformer_fairseq.simul.batch import serves_batches
from leapformer_fairseq.simul.loading import load_system
from leapformer_fairseq.support import processes
from leapformer_fairseq.support.errors import LeapformerError
from tests.simul.test_loading import PLAN, data_root  # noqa: F401  (a fixture)
from tests.untrained import save_checkpoint

ENCODERS = {
    "whole": [],
    "causal": ["--encoder-causal"],
    "ahead": ["--encoder-chunk-ms", "120", "--encoder-right-context-ms", "80"],
}
SECONDS = (1.31, 0.02, 2.4, 0.7)  # the second is shorter than a window
EXACT = ("index", "prediction", "delays", "reference", "source_length", "prediction_length")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, data_root: Path, symbols: list[str]) -> dict[str, Path]:  # noqa: F811
    """Untrained models that like to begin words and to end their sentences."""
    liked = [2, *(index for index, symbol in enumerate(symbols) if symbol.startswith("\u2581"))]
    folder = tmp_path_factory.mktemp("checkpoints")
    flags = [*PLAN, "--waitk-lagging", "1-3", "--fixed-pre-decision-ratio", "5", "--encoder-layers", "2"]
    paths = {}
    for name, encoder in ENCODERS.items():
        path = folder / f"{name}.pt"
        scaled = dict.fromkeys(liked, 4.0)
        paths[name] = save_checkpoint(path, data_root, "leapformer_simulst_tiny", *flags, *encoder, scaled=scaled)
    return paths


@pytest.fixture
def test_set(tmp_path: Path, speech) -> list[str]:
    for seed, seconds in enumerate(SECONDS):
        soundfile.write(tmp_path / f"{seed}.wav", speech(seconds, seed), 16_000)
    (tmp_path / "source").write_text("".join(f"{tmp_path / str(i)}.wav\n" for i in range(len(SECONDS))))
    (tmp_path / "target").write_text("hallo welt das ist ein test\n" * len(SECONDS), encoding="utf-8")
    return ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]


@pytest.fixture
def simulate(checkpoints, data_root: Path, test_set: list[str]):  # noqa: F811
    """Runs the command: `simulate(out, *options, model=...)` gives the exit status."""

    def run(out: Path, *options: str, model: str = "causal") -> int:
        system = ["--checkpoint", str(checkpoints[model]), "--data-root", str(data_root)]
        return main(["simulate", *system, *test_set, "--out", str(out), *options])

    return run


def log(folder: Path) -> list[dict]:
    entries = [json.loads(line) for line in (folder / "instances.log").read_text().splitlines()]
    return [{name: entry[name] for name in EXACT} for entry in entries]


def simuleval(out: Path, checkpoint: Path, root: Path, *options: str) -> None:
    """The real evaluator with the agent, in this process."""
    pytest.importorskip("simuleval")
    from simuleval import cli
    from simuleval.utils import agent as agent_utils

    fixed = "simuleval --agent-class leapformer_fairseq.simul.LeapformerAgent --quality-metrics BLEU --no-progress-bar"
    command = [*fixed.split(), "--checkpoint", str(checkpoint), "--data-root", str(root), "--output", str(out)]
    agent_utils.EVALUATION_SYSTEM_LIST.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [*command, *options])
        cli.main()


full = partial(pytest.param, marks=pytest.mark.full)
CASES = [
    ("causal", ["--source-segment-size", "40"], []),
    ("ahead", ["--source-segment-size", "70"], ["--waitk-lagging", "1", "--max-len-a", "0.05", "--max-len-b", "4"]),
    ("ahead", ["--source-segment-size", "280", "--eval-latency-unit", "char"], ["--waitk-lagging", "2"]),
    full("causal", ["--source-segment-size", "40"], ["--policy", "hold-n", "--hold", "2"]),
    ("whole", ["--source-segment-size", "320"], ["--policy", "local-agreement", "--max-len-b", "30"]),
    full("whole", ["--source-segment-size", "40"], ["--waitk-lagging", "2"]),
]


@pytest.mark.parametrize(("model", "sent", "policy"), CASES)
def test_log_and_scores_are_those_of_simuleval(
    simulate, checkpoints, data_root, test_set, tmp_path, capsys, model, sent, policy  # noqa: F811
) -> None:  # fmt: skip
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    simuleval(theirs, checkpoints[model], data_root, *test_set, *sent, *policy)
    capsys.readouterr()
    assert simulate(ours, *sent, *policy, model=model) == 0
    printed = capsys.readouterr().out
    assert log(ours) == log(theirs)
    assert sum(len(set(entry["delays"])) > 1 for entry in log(ours)) >= 2  # it wrote while it listened
    unit = "char" if "char" in sent else "word"
    if unit == "word":  # SimulEval counts the spaces of references as characters
        names, values = ((theirs / "scores.tsv").read_text().splitlines()[row].split("\t") for row in (0, 1))
        scores = json.loads((ours / "scores.json").read_text())["scores"]
        expected = dict(zip(names, map(float, values), strict=True))
        assert ("AL_CA" in scores) == (ours / "compute.jsonl").exists()
        assert {name: scores[name] for name in names} == pytest.approx(expected, abs=6e-4)
    main(["score", str(ours), "--unit", unit])
    assert printed.startswith(capsys.readouterr().out)
    batched = model != "whole" and "--policy" not in policy
    assert ("decoded in batches" in printed) == batched == (not (ours / "compute.jsonl").exists())


def test_batches_of_any_size_write_the_same(simulate, tmp_path, monkeypatch) -> None:
    logs = []
    for seconds in (200.0, 3.0):
        monkeypatch.setattr(simulation_module, "BATCH_SECONDS", seconds)
        assert simulate(tmp_path / str(seconds)) == 0
        logs.append(log(tmp_path / str(seconds)))
    assert logs[0] == logs[1]
    assert [entry["index"] for entry in logs[0]] == list(range(len(SECONDS)))


def test_one_by_one_gives_the_same_delays(simulate, tmp_path, monkeypatch) -> None:
    """And, as inverted control, not those of an encoder that would not wait for what is ahead of its chunks."""
    options = ("--waitk-lagging", "1")
    assert simulate(tmp_path / "batches", *options, model="ahead") == 0
    with monkeypatch.context() as patch:
        patch.setattr(batch._Replay, "ready", property(lambda self: self.n_frames // 4))
        assert simulate(tmp_path / "early", *options, model="ahead") == 0
    monkeypatch.setattr(simulation_module, "serves_batches", lambda *system: False)
    assert simulate(tmp_path / "one", *options, model="ahead") == 0
    assert log(tmp_path / "batches") == log(tmp_path / "one") != log(tmp_path / "early")
    timed = [json.loads(line) for line in (tmp_path / "one" / "instances.log").read_text().splitlines()]
    assert all(np.less(one["delays"], one["elapsed"]).all() for one in timed)


@pytest.mark.parametrize("options", [("--waitk-lagging", "2"), ("--policy", "local-agreement", "--max-draft", "9")])
def test_nothing_is_repeated_in_batches_or_one_by_one(simulate, tmp_path, monkeypatch, options) -> None:
    """An untrained model repeats itself."""
    size = ("--no-repeat-ngram-size", "2", "--max-len-b", "60")
    assert simulate(tmp_path / "free", *options, "--max-len-b", "60", model="ahead") == 0
    assert simulate(tmp_path / "batches", *options, *size, model="ahead") == 0
    monkeypatch.setattr(simulation_module, "serves_batches", lambda *system: False)
    assert simulate(tmp_path / "one", *options, *size, model="ahead") == 0
    assert log(tmp_path / "batches") == log(tmp_path / "one") != log(tmp_path / "free")


def test_processes_write_the_same(simulate, tmp_path, monkeypatch) -> None:
    # Processes that start from scratch import everything again, which takes seconds.
    monkeypatch.setattr(processes, "get_context", lambda method: get_context("fork"))
    assert simulate(tmp_path / "one", "--policy", "hold-n", model="ahead") == 0
    assert simulate(tmp_path / "two", "--policy", "hold-n", "--jobs", "2", model="ahead") == 0
    assert log(tmp_path / "one") == log(tmp_path / "two")
    assert len((tmp_path / "two" / "compute.jsonl").read_text().splitlines()) == len(SECONDS)


def named(args: Namespace) -> Callable[[str], tuple[str, bool]]:
    return lambda name: (f"{args.prefix} {name}", "fairseq" in sys.modules)


@pytest.mark.full
def test_processes_that_start_from_scratch_log_warnings_only(capfd) -> None:
    spread = simulation_module.spread(named(Namespace()), named, Namespace(prefix="talk"), ["1"], jobs=2)
    assert list(spread) == [("talk 1", True)]
    assert capfd.readouterr() == ("", "")


def failing(args: Namespace) -> Callable[[str], str]:
    raise LeapformerError("the model cannot be read")


def test_processes_that_cannot_begin_say_why(monkeypatch) -> None:
    monkeypatch.setattr(processes, "get_context", lambda method: get_context("fork"))
    with pytest.raises(LeapformerError, match="the model cannot be read"):
        list(simulation_module.spread(str, failing, Namespace(), ["1", "2"], jobs=2))


def test_the_same_command_goes_on(simulate, tmp_path, monkeypatch, capsys) -> None:
    options, out = ["--policy", "hold-n"], tmp_path / "out"
    assert simulate(tmp_path / "whole", *options) == 0
    write = simulation_module.log_outcome

    def interrupted(folder, outcome):
        if outcome.utterance.index == 2:
            raise KeyboardInterrupt
        write(folder, outcome)

    monkeypatch.setattr(simulation_module, "log_outcome", interrupted)
    assert simulate(out, *options) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("leapformer: interrupted")
    assert main(["score", str(out)]) == 0  # what there is can be used
    monkeypatch.setattr(simulation_module, "log_outcome", write)
    kept = (out / "instances.log").read_text()
    with (out / "instances.log").open("a") as file:
        file.write('{"index": 2, "predi')  # killed while writing
    assert simulate(out, *options) == 0
    assert (out / "instances.log").read_text().startswith(kept)
    assert log(out) == log(tmp_path / "whole")
    assert simulate(out, *options) == 0  # nothing to do but to score
    (out / "instances.log").write_text("damaged\n" + kept)
    assert simulate(out, *options) == 2
    assert "instances.log:1 is not JSON" in capsys.readouterr().err
    capsys.readouterr()
    assert simulate(out, *options, "--num-threads", "2") == 2, "its times are others"
    assert "another num_threads in options (1, not 2)" in capsys.readouterr().err
    assert simulate(out, "--policy", "hold-n", "--hold", "1") == 2
    another = "holds a simulation with another hold in options (3, not 1); choose another folder or delete it"
    assert another in capsys.readouterr().err


def test_another_folder_is_not_written_into(simulate, tmp_path, capsys) -> None:
    assert simulate(tmp_path) == 2  # it holds the test set
    assert "is not empty and holds no simulation; choose another folder" in capsys.readouterr().err


def one_line_error(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "none"], "--source none cannot be read: No such file or directory; give a file"),
        (["--jobs", "0"], "--jobs 0: give at least 1"),
        (["--source-segment-size", "0"], "--source-segment-size 0: give milliseconds, at least 1"),
        (["--tokenize", "nope"], "sacreBLEU has no tokenizer 'nope'"),
        (["--device", "tpu"], "--device tpu"),
        (["--num-threads", "0"], "--num-threads is 0"),
        (["--hold", "-1", "--policy", "hold-n"], "--hold -1"),
        (["--hold", "40", "--policy", "hold-n"], "--hold 40 of the --max-draft 40 tokens looked ahead leaves none"),
        (["--max-draft", "0"], "--max-draft 0: give the tokens to look ahead, at least 1"),
        (["--no-repeat-ngram-size", "-1"], "--no-repeat-ngram-size -1: give tokens, or 0 for no limit"),
        (["--max-len-a", "nan"], "--max-len-a nan and --max-len-b 200 allow no output"),
        (["--max-len-a", "inf"], "--max-len-a inf and --max-len-b 200 allow no output"),
    ],
)
def test_bad_options_end_with_one_line(simulate, tmp_path, capsys, options, message) -> None:
    assert simulate(tmp_path / "out", *options) == 2
    assert message in one_line_error(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("target", "ein Satz\n", "--source lists 4 recordings, --target 1 references; give one for each"),
        ("source", "a.wav\nb.wav\nc.wav\nd.wav\n", "line 1: no audio file at 'a.wav'; check the list"),
        ("3.wav", "nonsense", "3.wav cannot be read as audio"),
    ],
)
def test_bad_test_sets_end_with_one_line(simulate, test_set, tmp_path, capsys, name, content, message) -> None:
    (tmp_path / name).write_text(content)
    assert simulate(tmp_path / "out") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38, 9.0])
def test_samples_that_are_no_speech_are_named(simulate, tmp_path, capsys, bad) -> None:
    samples, rate = soundfile.read(tmp_path / "2.wav", dtype="float32")
    samples[700] = bad
    soundfile.write(tmp_path / "2.wav", samples, rate, subtype="FLOAT")
    assert simulate(tmp_path / "out", "--policy", "hold-n") == 2
    assert "2.wav has samples of " in capsys.readouterr().err.splitlines()[-1]
    assert len(log(tmp_path / "out")) == 2, "what came before it is kept"


@pytest.mark.parametrize(
    ("model", "policy", "options", "expected"),
    [
        ("causal", {}, {}, True),
        ("ahead", {"k": 1}, {"max_len_a": 0.05}, True),
        ("whole", {}, {}, False),
        ("causal", {"name": "hold-n"}, {}, False),
        ("causal", {"catch_up": 1.5}, {}, False),
        ("causal", {}, {"early_eos": "wait"}, False),
        ("causal", {}, {"max_len_a": 0.01}, False),
    ],
)
def test_what_is_decoded_in_batches(checkpoints, data_root, model, policy, options, expected) -> None:  # noqa: F811
    system = load_system(checkpoints[model], data_root, policy=PolicyOptions(**policy))
    assert serves_batches(system, DecodingOptions(**options)) == expected


def test_recordings_are_cut_into_batches_by_length(checkpoints, data_root, tmp_path, monkeypatch) -> None:  # noqa: F811
    utterances = []
    for index, seconds in enumerate((1, 4, 2, 3, 1)):
        soundfile.write(tmp_path / f"{index}.wav", np.zeros(16_000 * seconds), 16_000)
        utterances.append(simulation_module.Utterance(index, tmp_path / f"{index}.wav", ""))
    monkeypatch.setattr(simulation_module, "BATCH_SECONDS", 6.0)
    system = load_system(checkpoints["causal"], data_root)
    portions = simulation_module.Simulation(system, DecodingOptions(), 40, "word").portions(utterances)
    assert [[one.index for one in portion] for portion in portions] == [[1], [3, 2], [0, 4]]
