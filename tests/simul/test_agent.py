"""The agent as SimulEval drives it, on a fake model; nothing here needs a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

pytest.importorskip("simuleval")

from simuleval.data.segments import EmptySegment, SpeechSegment, TextSegment  # noqa: E402

from leapformer_fairseq import simul as agents  # noqa: E402
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream  # noqa: E402
from leapformer_fairseq.simul import engine  # noqa: E402
from leapformer_fairseq.support.errors import LeapformerError  # noqa: E402

NEVER, ALWAYS = -1e4, 1e4  # bias of the fake model's end of sentence
LIMITED = ("--max-len-a", "0.05", "--max-len-b", "6")


@dataclass
class Run:
    """What came out: text written per call (None for a read), and whether the last said it has finished."""

    writes: list[str | None]
    n_finished: int

    @property
    def text(self) -> str:
        return " ".join(write for write in self.writes if write)


def segments(samples: np.ndarray, segment_ms: int) -> list[Any]:
    """Cut as SimulEval's SpeechInputInstance does; audio without samples is one empty segment."""
    size = segment_ms * 16
    pieces = [samples[start : start + size].tolist() for start in range(0, len(samples), size)]
    if not pieces:
        return [EmptySegment(finished=True)]
    last = len(pieces) - 1
    return [SpeechSegment(content=p, sample_rate=16_000, finished=i == last) for i, p in enumerate(pieces)]


def drive(agent: Any, samples: np.ndarray, segment_ms: int = 40, states: Any = None) -> Run:
    run = Run([], 0)
    for segment in segments(samples, segment_ms):
        output = agent.pushpop(segment, states)
        run.writes.append(None if output.is_empty else output.content)
        run.n_finished += output.finished
    if states is None:
        agent.reset()
    return run


def written_tokens(system: Any, options: DecodingOptions, samples: np.ndarray, size: int) -> list[int]:
    translation = TranslationStream(system, options)
    for start in range(0, len(samples), size):
        translation.push(samples[start : start + size])
        done = translation.advance(source_finished=start + size >= len(samples))
    assert done
    return translation.emitter._tokens


# -- wait-k ----------------------------------------------------------------------------------------------------------


def check_visible_source(system: Any, lagging: int, n_frames: int, step: int) -> None:
    """Token t saw min(all, t + lagging) steps: compare with the lengths the decoder recorded."""
    seen = system.model.decoder.visible
    expected = [-(-min(n_frames, (t + lagging) * step) // 4) for t in range(len(seen))]
    if seen != expected:
        raise AssertionError(f"token by token, encoder states seen {seen}, wait-{lagging} sees {expected}")


@pytest.mark.parametrize("lagging", [1, 3, 5, 50])
@pytest.mark.parametrize("ratio", [2, 7])
def test_every_token_sees_exactly_k_steps_more(make_system, speech, lagging: int, ratio: int) -> None:
    system = make_system(lagging, ratio, NEVER)
    samples = speech(2.345)
    written_tokens(system, DecodingOptions(max_len_b=40), samples, 4480)
    check_visible_source(system, lagging, 1 + (len(samples) - 400) // 160, 4 * ratio)


def test_the_check_finds_an_agent_that_feeds_one_step_too_many(make_system, speech) -> None:
    system = make_system(4, 7, NEVER)
    samples = speech(2.345)
    written_tokens(system, DecodingOptions(max_len_b=40), samples, 4480)
    with pytest.raises(AssertionError, match="wait-3 sees"):
        check_visible_source(system, 3, 1 + (len(samples) - 400) // 160, 28)


@pytest.mark.parametrize("early_eos", ["mask", "wait"])
@pytest.mark.parametrize("eos_bias", [NEVER, 0.0, 6.0, ALWAYS])
@pytest.mark.parametrize("seconds", [0.9, 2.345, 1.415])  # 1.415 s are exactly 5 steps of 28 frames
def test_text_does_not_depend_on_the_segment_size(make_system, speech, early_eos, eos_bias, seconds) -> None:
    options = DecodingOptions(max_len_a=0.08, max_len_b=10, early_eos=early_eos)
    results = [
        written_tokens(make_system(2, 7, eos_bias), options, speech(seconds), segment_ms * 16)
        for segment_ms in (20, 40, 280, 1000, 100_000)
    ]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("segment_ms", [20, 40, 280, 1000, 100_000])
def test_agent_writes_the_same_text_at_any_segment_size(make_agent, speech, segment_ms: int) -> None:
    run = drive(make_agent(*LIMITED, eos_bias=NEVER), speech(3.21), segment_ms)
    whole = drive(make_agent(*LIMITED, eos_bias=NEVER), speech(3.21), 100_000)
    assert run.text == whole.text != ""
    assert run.n_finished == 1


# -- end of sentence and length ----------------------------------------------------------------------------------------


def test_early_end_is_masked(make_system, speech) -> None:
    system = make_system(2, 7, ALWAYS)
    tokens = written_tokens(system, DecodingOptions(), speech(2.345), 640)
    assert len(tokens) == 9 - 2 + 1  # 9 steps: one token after each from the second on, then the end is open


def test_early_end_makes_the_agent_wait(make_system, speech) -> None:
    system = make_system(2, 7, ALWAYS)
    translation = TranslationStream(system, DecodingOptions(early_eos="wait"))
    translation.push(speech(2.345))
    assert translation.advance(source_finished=True)
    assert translation.engine.n_tokens == 0
    assert translation.n_steps == 9


def test_a_held_end_is_not_tried_again_before_more_source(make_system, speech) -> None:
    system = make_system(1, 7, ALWAYS)
    translation = TranslationStream(system, DecodingOptions(early_eos="wait"))
    translation.push(speech(0.35))
    assert not translation.advance(source_finished=False)
    calls = len(system.model.decoder.visible)
    assert not translation.advance(source_finished=False)
    assert len(system.model.decoder.visible) == calls == 1


@pytest.mark.parametrize(("a", "b", "expected"), [(0.0, 7, 7), (0.0, 500, 63), (0.05, 2, 13)])
def test_length_limit(make_system, speech, a: float, b: int, expected: int) -> None:
    samples = speech(2.345)  # 233 frames; the fake decoder has 64 positions
    assert len(written_tokens(make_system(2, 7, NEVER), DecodingOptions(a, b), samples, 640)) == expected


@pytest.mark.parametrize("after", [0, 10])
def test_tokens_after_the_source_was_read_are_limited(make_system, speech, after: int) -> None:
    """As in the LeaPformer paper's table 10: what wait-k writes while it reads, and at most 10 more."""
    tokens = written_tokens(make_system(2, 7, NEVER), DecodingOptions(max_after_read=after), speech(2.345), 640)
    assert len(tokens) == 9 - 2 + 1 + after


@pytest.mark.parametrize(
    "values", [{"max_len_b": 0}, {"max_len_a": -1.0}, {"early_eos": "no"}, {"unit": "spm"}, {"max_after_read": -1}]
)
def test_impossible_options_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(LeapformerError):
        DecodingOptions(**values)


# -- utterances do not touch each other --------------------------------------------------------------------------------


def test_utterances_in_sequence_are_as_alone(make_agent, speech) -> None:
    agent = make_agent(*LIMITED, eos_bias=NEVER)
    together = [drive(agent, speech(2.0, seed)) for seed in (1, 2)]
    alone = [drive(make_agent(*LIMITED, eos_bias=NEVER), speech(2.0, seed)) for seed in (1, 2)]
    assert together == alone
    assert alone[0].text != alone[1].text


def test_four_interleaved_utterances_are_as_alone(make_agent, speech) -> None:
    agent = make_agent(*LIMITED, eos_bias=NEVER)
    states = [agent.build_states() for _ in range(4)]
    queues = [segments(speech(1.0 + 0.4 * seed, seed), 40) for seed in range(4)]
    runs = [Run([], 0) for _ in range(4)]
    for turn in range(max(map(len, queues))):
        for queue, state, run in zip(queues, states, runs, strict=True):
            if turn < len(queue):
                output = agent.pushpop(queue[turn], state)
                run.writes.append(None if output.is_empty else output.content)
                run.n_finished += output.finished
    alone = [drive(make_agent(*LIMITED, eos_bias=NEVER), speech(1.0 + 0.4 * seed, seed)) for seed in range(4)]
    assert runs == alone


def test_states_keep_no_samples(make_agent, speech) -> None:
    agent = make_agent(*LIMITED)
    for segment in segments(speech(2.0), 40)[:-1]:
        agent.pushpop(segment)
    assert agent.states.source == []
    assert agent.states.stream.features.n_pending < 28


# -- unusual audio -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_samples", [0, 1, 200, 399])
@pytest.mark.parametrize("early_eos", ["mask", "wait"])
def test_audio_shorter_than_a_window_finishes_empty(make_agent, speech, n_samples: int, early_eos: str) -> None:
    run = drive(make_agent("--early-eos", early_eos), speech(1.0)[:n_samples])
    assert run == Run([""], 1)


@pytest.mark.parametrize("samples", [np.zeros(16_000, np.float32), np.zeros(3000, np.float32)])
def test_silence_finishes(make_agent, samples: np.ndarray) -> None:
    assert drive(make_agent(*LIMITED), samples).n_finished == 1


def test_end_without_audio_in_the_last_segment(make_agent, speech) -> None:
    agent = make_agent(*LIMITED, eos_bias=NEVER)
    for segment in segments(speech(1.0), 40):
        agent.pushpop(replace(segment, finished=False))
    output = agent.pushpop(EmptySegment(finished=True))
    assert output.finished and not output.is_empty
    assert agent.pushpop(EmptySegment(finished=True)).is_empty  # nothing twice


BAD_SEGMENTS = {
    "2 channels": SpeechSegment(content=[[0.1, 0.1]] * 640, sample_rate=16_000),
    "8000 Hz": SpeechSegment(content=[0.1] * 320, sample_rate=8_000),
    r"\[-1, 1\]": SpeechSegment(content=[1000.0, -3000.0], sample_rate=16_000),
    "nan": SpeechSegment(content=[float("nan")] * 10, sample_rate=16_000),
    "translates speech": TextSegment(content="hallo"),
}


@pytest.mark.parametrize("message", BAD_SEGMENTS)
def test_bad_audio_is_one_clear_line(make_agent, message: str) -> None:
    with pytest.raises(LeapformerError, match=message) as error:
        make_agent().pushpop(BAD_SEGMENTS[message])
    assert "\n" not in str(error.value)


# -- the engine --------------------------------------------------------------------------------------------------------


def test_encoder_runs_only_for_new_frames_and_only_to_write(make_system, speech) -> None:
    system = make_system(3, 7, NEVER)
    translation = TranslationStream(system, DecodingOptions(max_len_b=30))
    translation.push(speech(2.345))
    translation.advance(source_finished=True)
    assert translation.times.decoder_steps == 30
    assert translation.times.encoder_passes == 9 - 3 + 1  # after step 3, 4, ..., 9


def test_restore_takes_back_steps_and_commits(make_system) -> None:
    torch.manual_seed(0)
    frames = torch.randn(84, 80)
    engines = [engine.RecomputeEngine(make_system().model, 2) for _ in range(2)]
    for one in engines:
        one.feed(frames[:28].numpy())
        one.step()
        one.commit(5)
    snapshot = engines[0].snapshot()
    for _ in range(2):  # a snapshot can be used more than once
        engines[0].step()
        engines[0].commit(6)
        engines[0].step()
        engines[0].restore(snapshot)
    assert engines[0].n_tokens == 1
    for one in engines:
        one.feed(frames[28:].numpy())
    assert torch.equal(engines[0].step(), engines[1].step())


def test_restore_over_a_new_encoder_pass_rebuilds_the_source(make_system) -> None:
    one = engine.RecomputeEngine(make_system().model, 2)
    one.feed(np.zeros((28, 80), np.float32))
    one.step()
    one.commit(5)
    snapshot = one.snapshot()
    one.feed(np.ones((28, 80), np.float32))
    expected = one.step()
    one.restore(snapshot)
    assert torch.equal(one.step(), expected)


def test_engine_refuses_misuse(make_system) -> None:
    one = engine.RecomputeEngine(make_system().model, 2)
    with pytest.raises(RuntimeError, match="before any frame"):
        one.step()
    one.feed(np.zeros((28, 80), np.float32))
    one.step()
    with pytest.raises(RuntimeError, match="twice"):
        one.step()


# -- options, devices, logs --------------------------------------------------------------------------------------------


def test_characters_come_out_before_words(make_agent, speech) -> None:
    by_char = drive(make_agent(*LIMITED, "--unit", "char", eos_bias=NEVER), speech(2.0))
    by_word = drive(make_agent(*LIMITED, eos_bias=NEVER), speech(2.0))
    assert "".join(filter(None, by_char.writes)).replace(" ", "") == by_word.text.replace(" ", "")
    assert sum(write is not None for write in by_char.writes) > sum(write is not None for write in by_word.writes)


def test_finishes_exactly_once_and_last(make_agent, speech) -> None:
    run = drive(make_agent(*LIMITED, eos_bias=ALWAYS), speech(2.0))
    assert run.n_finished == 1
    assert run.writes[-1] is not None


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "mps", "nonsense"])
def test_absent_device_is_refused(make_agent, monkeypatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LeapformerError, match=f"--device {device}"):
        make_agent().to(device, fp16=False)


def test_half_precision_needs_a_gpu(make_agent) -> None:
    with pytest.raises(LeapformerError, match="fp16"):
        make_agent().to("cpu", fp16=True)


def test_to_moves_the_model(make_agent, speech) -> None:
    agent = make_agent(*LIMITED, eos_bias=NEVER)
    expected = drive(agent, speech(1.0))
    agent._system.model.double()
    agent.to("cpu", fp16=False)
    assert agent._system.model.decoder.output.weight.dtype == torch.float32
    assert drive(agent, speech(1.0)) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fp16", [False, True])
def test_to_moves_the_model_to_a_gpu(make_agent, speech, fp16: bool) -> None:
    agent = make_agent(*LIMITED, eos_bias=NEVER)
    agent.to("cuda", fp16=fp16)
    assert agent._system.model.decoder.output.weight.is_cuda
    assert drive(agent, speech(1.0)).n_finished == 1


def test_bad_options_are_refused(make_agent) -> None:
    with pytest.raises(LeapformerError, match="--max-len-b"):
        make_agent("--max-len-b", "0")


def test_computation_is_logged_per_utterance(make_agent, speech, tmp_path: Path) -> None:
    log = tmp_path / "run" / "compute.jsonl"
    log.parent.mkdir()
    log.write_text("an earlier run\n")
    agent = make_agent(*LIMITED, eos_bias=NEVER, output=log.parent)
    drive(agent, speech(1.0))
    drive(agent, speech(2.0))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["audio_s"] for line in lines] == [1.0, 2.0]
    assert all(
        line[key] > 0 for line in lines for key in ("features_s", "encoder_s", "decoder_s", "prenet_s", "tokens")
    )
    assert all(line["prenet_s"] < line["encoder_s"] for line in lines)


# -- through SimulEval itself ------------------------------------------------------------------------------------------


def write_corpus(folder: Path, recordings: list[np.ndarray], rate: int = 16_000) -> list[str]:
    """Wav files and lists; returns the command line that evaluates them."""
    paths = [folder / f"{index}.wav" for index in range(len(recordings))]
    for path, samples in zip(paths, recordings, strict=True):
        soundfile.write(path, samples, rate)
    (folder / "source").write_text("".join(f"{path}\n" for path in paths))
    (folder / "target").write_text("hallo welt das ist ein test\n" * len(recordings))
    return [
        "simuleval", "--agent-class", "leapformer_fairseq.simul.LeapformerAgent", "--no-progress-bar",
        "--checkpoint", "x", "--data-root", "x", "--source", str(folder / "source"), "--target", str(folder / "target"),
        "--output", str(folder / "out"), "--source-segment-size", "40", "--quality-metrics", "BLEU",
    ]  # fmt: skip


@pytest.fixture
def simuleval(monkeypatch: pytest.MonkeyPatch, make_system):
    """Runs SimulEval's command in this process on the fake system."""
    from simuleval import cli
    from simuleval.utils import agent as agent_utils

    from leapformer_fairseq.simul import agent as agent_module

    def run(command: list[str], **system: Any) -> None:
        monkeypatch.setattr(agent_module, "open_system", lambda *args: make_system(**system))
        monkeypatch.setattr("sys.argv", command)
        agent_utils.EVALUATION_SYSTEM_LIST.clear()
        cli.main()

    return run


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / "instances.log").read_text().splitlines()]


def test_simuleval_runs_the_agent(simuleval, make_agent, speech, tmp_path: Path) -> None:
    recordings = [speech(1.5, 1), speech(2.0, 2), np.zeros(200, np.float32), speech(0.5, 3)]
    simuleval([*write_corpus(tmp_path, recordings), *LIMITED, "--waitk-lagging", "3"], eos_bias=NEVER)
    log = read_log(tmp_path)
    agent = make_agent(*LIMITED, eos_bias=NEVER)
    expected = [
        drive(agent, soundfile.read(tmp_path / f"{i}.wav", dtype="float32")[0]).text for i in range(len(recordings))
    ]
    assert [entry["prediction"] for entry in log] == expected
    assert [entry["prediction"] == "" for entry in log] == [False, False, True, False]
    assert len((tmp_path / "out" / "compute.jsonl").read_text().splitlines()) == len(recordings)


def test_simuleval_scores_are_ours_without_its_flag(simuleval, speech, tmp_path: Path) -> None:
    from leapformer_fairseq.scoring.report import score_run

    simuleval([*write_corpus(tmp_path, [speech(2.0, 1), speech(3.0, 2)]), *LIMITED], eos_bias=NEVER)
    names, values = ((tmp_path / "out" / "scores.tsv").read_text().splitlines()[row].split("\t") for row in (0, 1))
    theirs = dict(zip(names, map(float, values), strict=True))
    report = score_run(tmp_path / "out")
    assert {name: report["scores"][name] for name in theirs} == pytest.approx(theirs, abs=6e-4)
    assert all(report["scores"][name + "_CA"] > report["scores"][name] for name in ("AL", "LAAL", "DAL", "ATD", "AP"))
    assert report["compute"]["audio_s"] == 5.0


@pytest.mark.parametrize(("shape", "rate", "message"), [((8000, 2), 16_000, "mono"), ((8000,), 8_000, "8000 Hz")])
def test_simuleval_stops_at_bad_audio(simuleval, tmp_path: Path, shape, rate: int, message: str) -> None:
    command = write_corpus(tmp_path, [np.zeros(shape, np.float32)], rate)
    with pytest.raises(LeapformerError, match=message):
        simuleval(command)


def test_simuleval_characters(simuleval, speech, tmp_path: Path) -> None:
    command = [*write_corpus(tmp_path, [speech(2.0, 1)]), *LIMITED, "--eval-latency-unit", "char"]
    simuleval(command, eos_bias=NEVER)
    (entry,) = read_log(tmp_path)
    assert len(entry["delays"]) == len(entry["prediction"]) > 0
    assert " " not in entry["prediction"]


def test_simuleval_units_that_are_not_supported(simuleval, speech, tmp_path: Path) -> None:
    with pytest.raises(LeapformerError, match="--eval-latency-unit spm"):
        simuleval([*write_corpus(tmp_path, [speech(1.0)]), "--eval-latency-unit", "spm"])


# -- SimulEval itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["1.0.0", "1.2.0"])
def test_another_simuleval_is_named(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(agents, "version", lambda name: found)
    with pytest.raises(LeapformerError, match=rf"SimulEval {found} is installed.*pip install simuleval==1\.1\.4"):
        agents.LeapformerAgent  # noqa: B018


def test_no_simuleval_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(agents, "version", missing)
    with pytest.raises(ModuleNotFoundError, match=r"needs SimulEval: pip install 'leapformer-fairseq\[simul\]'"):
        agents.LeapformerAgent  # noqa: B018


def test_under_simuleval_an_error_is_one_line() -> None:
    code = (
        "import sys; sys.argv[0] = '/usr/bin/simuleval'\n"
        "from leapformer_fairseq.simul import LeapformerAgent\n"
        "from leapformer_fairseq.support.errors import LeapformerError\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + "raise LeapformerError('bad; mend it')"], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "leapformer: error: bad; mend it"
    assert "Traceback" not in done.stderr
