"""`leapformer simulate --talks` and `curve --talks`: logs of what `stream` writes, scores, resuming, memory, time."""

from __future__ import annotations

import json
import mmap
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli import curve as curve_command
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.runtime.formats.streamlog import read_stream_log
from leapformer_fairseq.runtime.formats.talks import read_talks
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.times import ComputeTimes
from leapformer_fairseq.simul import talks as talks_module
from leapformer_fairseq.simul.talks import TalkSimulation, course, growth
from leapformer_fairseq.support import processes
from leapformer_fairseq.support.memory import resident_bytes
from tests.covering import in_turn
from tests.scoring.pictures.images import texts
from tests.simul.test_loading import data_root  # noqa: F401  (a fixture)
from tests.simul.test_simulate import checkpoints, test_set  # noqa: F401  (fixtures)

SHORT = ["--max-len-b", "9", "--source-segment-size", "100"]
NAMES = ("a", "b")


@pytest.fixture
def talk_set(tmp_path: Path, speech) -> Path:
    """Two talks of two sentences, with a pause between them."""
    folder = tmp_path / "talks"
    (folder / "wav").mkdir(parents=True)
    entries = []
    for seed, name in enumerate(NAMES):
        parts = [speech(2.0, 2 * seed), np.zeros(12_000, np.float32), speech(2.2, 2 * seed + 1)]
        soundfile.write(folder / f"wav/{name}.wav", np.concatenate(parts), 16_000, subtype="PCM_16")
        entries += [{"wav": f"{name}.wav", "offset": 0, "duration": 2.0}]
        entries += [{"wav": f"{name}.wav", "offset": 2.75, "duration": 2.2}]
    (folder / "segments.yaml").write_text("".join(f"- {json.dumps(one)}\n" for one in entries))
    (folder / "references.txt").write_text("hallo welt das ist ein test\n" * 4)
    (folder / "recordings.txt").write_text("".join(f"wav/{name}.wav\n" for name in NAMES))
    return folder


@pytest.fixture
def system(checkpoints, data_root: Path) -> list[str]:  # noqa: F811
    return ["--checkpoint", str(checkpoints["causal"]), "--data-root", str(data_root)]


@pytest.fixture
def simulate(system, talk_set: Path):
    """Runs the command: `simulate(out, *options)` gives the exit status."""
    return lambda out, *options: main(
        ["simulate", *system, "--talks", str(talk_set), "--out", str(out), *SHORT, *options]
    )


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def error(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


WAYS = [
    ("--segment", "pause"),
    ("--segment", "tokens", "--segment-tokens", "4", "--carry", "encoder"),
    ("--segment", "seconds", "--policy", "local-agreement", "--max-draft", "9"),
]


@in_turn(way=WAYS, drafts=[True, False])
def test_a_talk_is_what_stream_writes_of_it(simulate, system, talk_set, tmp_path, capsys, way, drafts) -> None:
    """Final words and, with --drafts, what was taken back; both formats say the same."""
    out = tmp_path / "out"
    assert simulate(out, *way, *(["--drafts"] if drafts else [])) == 0
    shown = ["--json"] if drafts else []
    for name in NAMES:
        log, recording = tmp_path / f"{name}.jsonl", talk_set / f"wav/{name}.wav"
        options = [*system, *way, "--max-len-b", "9", "--log", str(log), *shown]
        assert main(["stream", str(recording), *options]) == 0
        (theirs,), (ours,) = (read_stream_log(path, "word") for path in (log, out / f"logs/{name}.jsonl"))
        assert (ours.units, ours.delays) == (theirs.units, theirs.delays) and len(ours.units) > 4
        assert ours.effort.erased == theirs.effort.erased and bool(ours.effort.erased) == drafts
    together = read_stream_log(out / "metrics.jsonl", "word")
    assert [(one.recording, one.units, one.delays, one.source_length) for one in together] == [
        (one.recording, one.units, one.delays, one.source_length) for one in read_talks(out / "talks.jsonl", "word")
    ]
    assert [Path(one.recording).stem for one in together] == [*NAMES]
    assert [entry["id"] for entry in lines(out / "metrics.jsonl") if "metadata" in entry] == [0, 1]
    assert sum("model_loading_time" in entry for entry in lines(out / "metrics.jsonl")) == 1


def test_scores_are_those_of_score(simulate, talk_set, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    assert simulate(out, "--waitk-lagging", "1") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("4 segments of 2 recordings, segmenter soft")
    references = ["--segments", str(talk_set / "segments.yaml"), "--references", str(talk_set / "references.txt")]
    scores = json.loads((out / "scores.json").read_text())
    for log, known in (("metrics.jsonl", True), ("talks.jsonl", False)):
        assert main(["score", str(out / log), *references, "--json", str(tmp_path / "again.json")]) == 0
        again = json.loads((tmp_path / "again.json").read_text())
        for name in ("BLEU", "chrF", "LongYAAL", "LongLAAL"):
            assert scores["scores"][name] == again["scores"][name]
        assert (again["erasure"] == scores["erasure"] == 0) == known
    assert scores["StreamLAAL_s"]["CA_queued"] > scores["StreamLAAL_s"]["source heard"]
    usage = scores["usage"]
    assert usage["longest_talk"] in NAMES and usage["memory_growth_mib"] is None  # too short to say
    assert all(usage["parts"][part] > 0 for part in ("features", "encoder", "decoder"))
    assert scores["model"]["signature"] and not list(out.glob("**/*.partial"))


def without_times(path: Path) -> list[dict]:
    return [{**entry, "computation_time": 0, "model_loading_time": 0} for entry in lines(path)]


def test_the_same_command_goes_on_after_the_last_talk(simulate, tmp_path, monkeypatch, capsys) -> None:
    whole, out, heard = tmp_path / "whole", tmp_path / "out", []
    assert simulate(whole) == 0
    push = Session.push

    def interrupted(self, samples):
        heard.append(len(samples))
        if sum(heard) > 100_000:  # in the second talk
            raise KeyboardInterrupt
        return push(self, samples)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "push", interrupted)
        assert simulate(out) == 130
    assert "interrupted" in capsys.readouterr().err
    assert sorted(path.name for path in (out / "logs").iterdir()) == ["a.jsonl", "a.usage.jsonl"]
    (out / "logs" / ".b.jsonl.partial").write_text("of a process that was killed")
    before = (out / "logs/a.jsonl").read_bytes()
    assert simulate(out) == 0
    assert (out / "logs/a.jsonl").read_bytes() == before
    for name in ("logs/a.jsonl", "logs/b.jsonl", "metrics.jsonl"):
        assert without_times(out / name) == without_times(whole / name)
    monkeypatch.setattr(Session, "push", lambda *_: pytest.fail("heard again"))
    assert simulate(out, "--tokenize", "char") == 0  # scored anew, not translated
    assert simulate(out, "--segment", "tokens") == 2
    assert "holds a simulation with another segment in options" in capsys.readouterr().err


def test_several_processes_write_the_same(simulate, tmp_path, monkeypatch) -> None:
    # Processes that start from scratch import everything again, which takes seconds.
    monkeypatch.setattr(processes, "get_context", lambda method: get_context("fork"))
    assert simulate(tmp_path / "one") == 0 and simulate(tmp_path / "two", "--jobs", "2") == 0
    one, two = (without_times(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert one == two and len(one) > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "x"], "leave --source and --target out"),
        (["--pause-ms", "3"], "--pause-ms 3"),
        (["--source-segment-size", "0"], "--source-segment-size 0"),
        (["--jobs", "0"], "--jobs 0"),
        (["--talks", "nowhere"], "--talks nowhere has no recordings.txt"),
    ],
)
def test_bad_options_are_one_line(simulate, tmp_path, capsys, options, message) -> None:
    assert simulate(tmp_path / "out", *options) == 2
    assert message in error(capsys) and not (tmp_path / "out").exists()


def test_an_encoder_that_cannot_go_on_is_refused_before_a_talk(checkpoints, simulate, tmp_path, capsys) -> None:  # noqa: F811
    assert simulate(tmp_path / "out", "--carry", "encoder", "--checkpoint", str(checkpoints["whole"])) == 2
    assert "--carry encoder: this encoder sees whole utterances" in error(capsys) and not (tmp_path / "out").exists()


def test_options_of_talks_are_not_for_utterances(system, test_set, tmp_path, capsys) -> None:  # noqa: F811
    for options in (["--segment", "tokens"], ["--drafts"], ["--carry", "encoder"], ["--lang", "de"]):
        assert main(["simulate", *system, *test_set, "--out", str(tmp_path / "out"), *options]) == 2
        assert f"{options[0]} is for --talks" in error(capsys)
    assert main(["simulate", *system, "--out", str(tmp_path / "out")]) == 2
    assert "give --source and --target" in error(capsys)
    record = tmp_path / "out" / "simulate.json"
    assert main(["simulate", *system, *test_set, "--out", str(record.parent), "--max-len-b", "3"]) == 0
    assert not {"talks", "segment", "drafts"} & json.loads(record.read_text())["options"].keys()  # as before talks


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("recordings.txt", "wav/a.wav\n", "has segments of b.wav, but no such recording"),
        ("segments.yaml", '- {"wav": "a.wav", "offset": 0, "duration": 1}\n', "4 lines for the 1 segments"),
        ("references.txt", "hallo\n", "1 lines for the 4 segments"),
    ],
)
def test_a_folder_that_does_not_fit_together(simulate, talk_set, tmp_path, capsys, name, text, message) -> None:
    (talk_set / name).write_text(text)
    assert simulate(tmp_path / "out") == 2
    assert message in error(capsys)


# ---------------------------------------------------------------------------------------------------- memory and time


def used(minutes: float, mib=lambda s: 300.0, cpu=lambda s: 0.1 * s) -> list[dict]:
    """A usage log with these functions of seconds."""
    moments = [0.1, *(10.0 * n for n in range(1, round(6 * minutes) + 1))]
    return [{"audio_s": s, "cpu_s": cpu(s), "resident_mib": mib(s)} for s in moments]


def test_growth_is_that_after_the_first_minute() -> None:
    assert growth(used(4)) == {"memory_growth_mib": None, "compute_growth": None}
    flat = growth(used(150, lambda s: 200 + min(s, 60)))  # the first minute loads what is needed
    assert flat["memory_growth_mib"] == 0 and flat["compute_growth"] == pytest.approx(0)
    grows = growth(used(150, lambda s: 300 + s / 60, lambda s: 0.1 * s + 0.1 * s * s / 9000))
    assert grows["memory_growth_mib"] == pytest.approx(149) and grows["compute_growth"] == pytest.approx(
        1.182, abs=0.005
    )
    peak = growth(used(60, lambda s: 340.0 if s == 1800 else 300.0))
    assert peak["memory_growth_mib"] == 40
    assert growth(used(60, lambda s: None))["memory_growth_mib"] is None  # not on Linux


def test_the_course_of_a_talk_has_all_of_its_time() -> None:
    found = course(used(150, cpu=lambda s: 0.2 * s), points=50)
    assert 45 <= len(found["minutes"]) <= 60 and found["minutes"][-1] == 150
    assert found["compute"] == pytest.approx([0.2] * len(found["minutes"]))
    assert course(used(0.2))["minutes"] == [pytest.approx(1 / 6)] and course(used(0))["minutes"] == []


class Hoarding:
    """A session that keeps what it hears, or forgets it."""

    def __init__(self, keeps: bool) -> None:
        self.keeps, self.kept, self.audio_s = keeps, [], 0.0
        self.times = ComputeTimes()

    def push(self, samples):
        self.audio_s += len(samples) / 16_000
        if self.keeps:
            pages = mmap.mmap(-1, 32 * len(samples))  # new ones: numpy's may have been freed by an earlier test
            pages.write(b"x" * len(pages))
            self.kept.append(pages)
        return iter(())

    def finish(self):
        return iter(())


@pytest.mark.skipif(resident_bytes() is None, reason="memory of a process is not known here")
@pytest.mark.parametrize("keeps", [False, True])
def test_the_log_of_memory_sees_what_a_session_keeps(tmp_path, keeps) -> None:
    """Six minutes; what is kept of them are 176 MiB, 146 of them after the first minute."""
    recording = tmp_path / "talk.wav"
    soundfile.write(recording, np.zeros(6 * 60 * 16_000, np.int16), 16_000)
    (tmp_path / "logs").mkdir()
    simulation = TalkSimulation(lambda: Hoarding(keeps), 1000, "word", 0.0, tmp_path / "logs")
    simulation.translate(recording)
    usage = talks_module.read_usage(simulation.log(recording))
    assert [round(entry["audio_s"]) for entry in usage] == [1, *range(10, 361, 10)]
    grown = growth(usage)["memory_growth_mib"]
    assert grown > 120 if keeps else grown < 5
    assert all(a["cpu_s"] <= b["cpu_s"] for a, b in zip(usage, usage[1:], strict=False))


def test_large_pieces_are_noted_once(tmp_path) -> None:
    recording = tmp_path / "talk.wav"
    soundfile.write(recording, np.zeros(70 * 16_000, np.int16), 16_000)
    (tmp_path / "logs").mkdir()
    simulation = TalkSimulation(lambda: Hoarding(False), 25_000, "word", 0.0, tmp_path / "logs")
    simulation.translate(recording)
    assert [entry["audio_s"] for entry in lines(tmp_path / "logs/talk.usage.jsonl")] == [25, 50, 70]


def test_a_damaged_usage_log_is_named(tmp_path) -> None:
    (tmp_path / "a.usage.jsonl").write_text('{"audio_s": 1}\n')
    with pytest.raises(talks_module.LeapformerError, match=r"a.usage.jsonl:1 has no cpu_s; delete"):
        talks_module.read_usage(tmp_path / "a.jsonl")


# -------------------------------------------------------------------------------------------------------------- curves


@pytest.fixture
def curve(checkpoints, data_root: Path, talk_set: Path):  # noqa: F811
    fixed = ["--checkpoints", str(checkpoints["causal"]), "--data-root", str(data_root), "--max-len-b", "9"]
    talks = ["--talks", str(talk_set)]
    return lambda out, *options: main(["curve", "--out", str(out), *fixed, *talks, "--segment-sizes", "100", *options])


@pytest.mark.full
def test_a_curve_of_talks_is_that_of_single_simulations(curve, simulate, tmp_path, capsys) -> None:
    out, options = tmp_path / "out", ["--k", "3", "--segment", "pause", "tokens", "--segment-tokens", "4"]
    assert curve(out, *options, "--drafts") == 0
    printed = capsys.readouterr().out
    rows = json.loads((out / "curve.json").read_text())["rows"]
    assert [(row["segment"], row["numbers"]["k"]) for row in rows] == [("pause", 3), ("tokens", 3)]
    for row in rows:
        scores = json.loads((out / "runs" / row["run"] / "scores.json").read_text())
        assert row["LongYAAL"] == scores["scores"]["LongYAAL"]
        assert row["StreamLAAL"] == scores["StreamLAAL_s"]["source heard"] < row["StreamLAAL_CA"]["mean"]
        assert row["erasure"] == scores["erasure"] > 0 and row["regime"] == scores["regime"]
        assert row["compute"]["total"]["mean"] == scores["compute"]["seconds_per_second"]
    alone = tmp_path / "alone"
    assert simulate(alone, "--waitk-lagging", "3", "--segment", "tokens", "--segment-tokens", "4", "--drafts") == 0
    row = rows[1]
    of_grid = without_times(out / "runs" / row["run"] / "metrics.jsonl")
    assert without_times(alone / "metrics.jsonl") == of_grid
    assert texts(out / "curve.svg")
    text = (out / "table.md").read_text()
    assert "LongYAAL_CA ms" in text and "StreamLAAL s" in printed and "Still to do" not in text
    assert (out / "commands.sh").read_text().count("--segment tokens") == 1
    (out / "runs" / row["run"] / "scores.json").unlink()  # as if interrupted there
    late = out / "runs" / rows[0]["run"] / "scores.json"
    scores = json.loads(late.read_text())
    scores["scores"]["LongYAAL_CA_queued"], scores["StreamLAAL_s"]["CA_queued"] = 5000.0, 6.0  # as of a slow machine
    late.write_text(json.dumps(scores))
    assert curve(out, *options, "--drafts") == 0
    again = json.loads((out / "curve.json").read_text())["rows"]
    assert [row["BLEU"] for row in again] == [row["BLEU"] for row in rows]
    assert (again[0]["LongYAAL_CA"]["mean"], again[0]["StreamLAAL_CA"]["mean"]) == (5000, 6)


def test_a_history_is_one_more_item() -> None:
    args = SimpleNamespace(talks="x", segment=["pause", "window tokens"])
    ways = [("--segment", "pause"), ("--history", "window"), ("--segment", "tokens")]
    assert curve_command._segments(args) == ways
    args.segment = ["segment"]
    with pytest.raises(
        talks_module.LeapformerError, match="--segment segment: choose from pause, sentence, tokens, seconds"
    ):
        curve_command._segments(args)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--segment", "noise"], "--segment noise: choose from pause, sentence, tokens, seconds"),
        (["--repeats", "2"], "--repeats 2 is for utterances"),
        (["--limit", "2"], "--limit 2 is for utterances"),
        (["--talks", "nowhere"], "nowhere has no recordings.txt"),
        (["--segment", ""], "the grid is empty"),
    ],
)
def test_bad_options_of_a_curve(curve, tmp_path, capsys, options, message) -> None:
    assert curve(tmp_path / "out", *options) == 2
    assert message in error(capsys) and not (tmp_path / "out").exists()


def test_a_curve_of_utterances_has_no_segments(checkpoints, data_root, test_set, tmp_path, capsys) -> None:  # noqa: F811
    fixed = ["--checkpoints", str(checkpoints["causal"]), "--data-root", str(data_root), *test_set]
    assert main(["curve", "--out", str(tmp_path / "out"), *fixed, "--segment", "tokens"]) == 2
    assert "--segment tokens is for --talks" in error(capsys)
