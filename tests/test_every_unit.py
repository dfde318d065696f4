"""Every unit is what it is called, of sounds whose length is known, and every clock counts what it should."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from leapformer_fairseq.attention import CAUSAL, TokenInfo, build
from leapformer_fairseq.attention.recurrent.gates import spread_half_lives
from leapformer_fairseq.data import joined
from leapformer_fairseq.data.corpus.plan import Utterance as Spoken
from leapformer_fairseq.data.corpus.synthesize import with_noise
from leapformer_fairseq.data.joined import Joining
from leapformer_fairseq.data.recordings import Recording
from leapformer_fairseq.data.tables import Measured, _span
from leapformer_fairseq.models.streaming_encoder import chunks_of
from leapformer_fairseq.runtime.audio import read_blocks
from leapformer_fairseq.runtime.formats.delays import queued
from leapformer_fairseq.runtime.sentences import BETWEEN, HOP, SentenceEnds, SentenceModel
from leapformer_fairseq.runtime.serve.talk import LONGEST_CHUNK, Talk
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.record import Recorder
from leapformer_fairseq.runtime.simul.segments import Place, Segmenter, SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.shown import Shown
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.runtime.simul.times import ComputeTimes
from leapformer_fairseq.scoring.table import spread
from leapformer_fairseq.simul import talks
from leapformer_fairseq.simul.simulate import Simulation, Utterance
from leapformer_fairseq.simul.states import States
from leapformer_fairseq.studies import launching
from leapformer_fairseq.studies.linearize.stages import _seconds
from leapformer_fairseq.studies.trainings import environment, speed
from leapformer_fairseq.support.errors import LeapformerError

from .scripted import RATE, ScriptedSystem, sound, talk


class Clock:
    """Seconds that pass when somebody computes, or waits, and not otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for name in ("perf_counter", "monotonic", "process_time"):
            monkeypatch.setattr(f"time.{name}", lambda: self.now)

    def computing(self, seconds: float, function: Any) -> Any:
        def run(*given: Any, **more: Any) -> Any:
            self.now += seconds
            return function(*given, **more)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def slow(clock: Clock, system: ScriptedSystem, seconds: float = 0.25) -> Any:
    """A system whose engine takes so long for each token."""
    begin = system.begin

    def made(times: ComputeTimes) -> Any:
        engine = begin(times)
        best = engine.best

        def counted(*given: Any) -> int:
            with times.measure("decoder_s"):
                clock.now += seconds
                times.decoder_steps += 1
                return best(*given)

        engine.best = counted
        return engine

    found = SimpleNamespace(**{name: getattr(system, name) for name in ScriptedSystem.__dataclass_fields__})
    found.begin = made
    return found


# ------------------------------------------------------------------------------------------------------- simulations
@pytest.mark.parametrize("segment_ms", [40, 70, 333, 5000])
def test_delays_of_an_utterance_of_a_second(segment_ms: int, clock: Clock, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "one.wav", sound(1.0), RATE, subtype="PCM_16")
    system = slow(clock, ScriptedSystem(PolicyOptions("wait-k", k=1), step_frames=16, ends=10**9))
    simulation = Simulation(system, DecodingOptions(max_len_b=9), segment_ms, "word")
    (outcome,) = simulation.translate([Utterance(3, tmp_path / "one.wav", "a b")])
    one, compute = outcome.instance, outcome.compute
    assert (one.index, one.reference, one.source_length) == (3, "a b", 1000.0)
    assert len(one.delays) == len(one.elapsed) == len(one.prediction.split()) > 3
    assert max(one.delays) == 1000.0 and list(one.delays) == sorted(one.delays)
    assert all(delay == 1000 or delay % segment_ms == 0 for delay in one.delays)
    assert compute is not None and compute["audio_s"] == 1.0
    assert (compute["decoder_s"], compute["decoder_steps"]) == (0.25 * compute["decoder_steps"], compute["tokens"])
    spent = [moment - delay for moment, delay in zip(one.elapsed, one.delays, strict=True)]
    assert spent[-1] == pytest.approx(250 * compute["tokens"]) and spent == sorted(spent)
    assert all(value % 250 == pytest.approx(0, abs=1e-6) for value in spent)


def test_times_add_up_and_belong_to_whoever_computes(clock: Clock) -> None:
    times = ComputeTimes()
    for seconds in (1.0, 2.5):
        for part in ("features_s", "encoder_s", "decoder_s"):
            with times.measure(part):
                clock.now += seconds
    assert (times.features_s, times.encoder_s, times.decoder_s, times.total_s) == (3.5, 3.5, 3.5, 10.5)
    with pytest.raises(ValueError), times.measure("features_s"):
        clock.now += 1
        raise ValueError
    assert times.features_s == 4.5, "also of what fails"
    stream = TranslationStream(ScriptedSystem(), DecodingOptions())
    assert stream.engine.times is stream.times
    session = Session(slow(clock, ScriptedSystem()), DecodingOptions(), SegmentOptions("seconds", max_seconds=3))
    list(session.push(sound(10.0)))
    list(session.finish())
    assert session.n_segments == 4 and session.times.decoder_steps * 0.25 == session.times.decoder_s > 0
    assert session.audio_s == 10.0 and session.n_samples == 160_000


def test_a_session_tells_seconds_and_ends_segments_after_them() -> None:
    session = Session(ScriptedSystem(ends=10**9), DecodingOptions(), SegmentOptions("seconds", max_seconds=3.0))
    events = [*session.push(sound(7.0)), *session.finish()]
    assert [event.audio_s for event in events if event.ends] == [3.0, 6.0, 7.0]
    assert [event.segment for event in events if event.ends] == [1, 2, 3]


@pytest.mark.parametrize("pause_ms", [40, 400, 1000])
def test_a_pause_is_so_many_milliseconds(pause_ms: int) -> None:
    segmenter = Segmenter(SegmentOptions(pause_ms=pause_ms, min_seconds=0.5))
    audio = np.concatenate([sound(1.0), sound(3.0, -80)])
    found = []
    for start in range(0, len(audio), 640):
        places = [place for place, _ in segmenter.push(audio[start : start + 640], 0)]
        found += [start / RATE + 0.04] if Place.END in places else []
    assert found == [pytest.approx(1.0 + pause_ms / 1000)]


@pytest.mark.parametrize("lead_ms", [0, 40, 90, 200, 500])
def test_the_lead_of_a_segment_is_so_many_milliseconds(lead_ms: int) -> None:
    """Of the silence just before its sound; less only where there is less."""
    session = Session(ScriptedSystem(ends=10**9), DecodingOptions(), SegmentOptions(lead_ms=lead_ms))
    given: list[list[np.ndarray]] = []
    stream, give = session._input.stream, session._input.give

    def begun() -> TranslationStream:
        given.append([])
        return stream()

    def heard(one: TranslationStream, unit: np.ndarray) -> None:
        given[-1].append(unit)
        give(one, unit)

    session._input.stream, session._input.give = begun, heard  # type: ignore[method-assign]
    silence = [np.full(round(seconds * RATE), 1e-7, np.float32) for seconds in (2.0, 0.48)]
    parts = [sound(3.0), silence[0], sound(2.4, seed=1), silence[1], sound(2.0, seed=2)]
    list(session.push(np.concatenate(parts)))
    list(session.finish())
    lead = 16 * lead_ms
    expected = [parts[1][len(parts[1]) - lead :], parts[2]]
    found = np.concatenate(given[1])
    pause = round(0.4 * RATE)  # which ends a segment and belongs to it
    np.testing.assert_array_equal(found, np.concatenate([*expected, silence[1][:pause]]))
    between = round(0.08 * RATE)
    np.testing.assert_array_equal(
        np.concatenate(given[2]), np.concatenate([silence[1][: min(lead, between)], parts[4]])
    )


@pytest.mark.parametrize("lead_ms", [0, 40, 200])
def test_the_lead_of_an_encoder_that_goes_on_is_so_many_states(lead_ms: int) -> None:
    units: Any = list(range(9))
    assert States.last(object.__new__(States), units, lead_ms) == units[9 - lead_ms // 40 :]


def test_the_recent_level_is_that_of_ten_seconds() -> None:
    """What is 25 dB quieter than speech 9 s ago is a pause, than speech 11 s ago it is speech."""
    for quiet_s, ended in ((9.0, True), (11.0, False)):
        segmenter = Segmenter(SegmentOptions(pause_ms=400, min_seconds=0.5, pause_db=20, max_seconds=300))
        audio = np.concatenate([sound(1.0, -10), sound(quiet_s, -28), sound(1.0, -35)])
        ends = 0
        for start in range(0, len(audio), 640):
            ends += sum(place is Place.END for place, _ in segmenter.push(audio[start : start + 640], 0))
        assert bool(ends) == ended


def test_a_log_has_what_was_heard_and_the_time_of_computation_only(clock: Clock, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log.jsonl", "talk.wav", "word")
    session = Session(
        slow(clock, ScriptedSystem(PolicyOptions("wait-k", k=1), ends=10**9)), DecodingOptions(), drafts=True
    )
    recorder.begin(3.0)
    samples, heard = talk()[: 6 * RATE], []
    for start in range(0, len(samples), RATE):
        before = session.times.decoder_steps
        for _ in recorder.listen(session.push(samples[start : start + RATE]), RATE):
            clock.now += 1000  # whoever reads the events takes time
        heard.append((start / RATE + 1, 0.25 * (session.times.decoder_steps - before)))
    for _ in recorder.listen(session.finish()):
        clock.now += 1000
    recorder.close()
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert entries[0] == {"model_loading_time": 3.0}
    found = [(one["total_audio_processed"], one["computation_time"]) for one in entries if "computation_time" in one]
    assert found[: len(heard)] == [(pytest.approx(a), pytest.approx(b)) for a, b in heard]
    assert sum(seconds for _, seconds in found) == pytest.approx(0.25 * session.times.decoder_steps)
    assert any(seconds > 0.5 for _, seconds in found), "several tokens, all of which count"


def test_what_is_left_of_a_draft_is_taken_back_at_the_end(tmp_path: Path) -> None:
    from leapformer_fairseq.runtime.simul.session import Event

    recorder = Recorder(tmp_path / "log.jsonl", "talk.wav", "word")
    recorder.begin(0.0)
    events = [Event("one", True, False, 1, 1.0), Event("two three", False, False, 1, 1.0)]
    list(recorder.listen(iter(events), RATE))
    recorder.close()
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    tokens = [(one["generated_tokens"], one["deleted_tokens"]) for one in entries if "generated_tokens" in one]
    assert tokens == [(["\u2581one", "\u2581two", "\u2581three"], []), ([], ["\u2581two", "\u2581three"])]


def test_a_display_is_at_its_start_only_before_anything_is_shown() -> None:
    from leapformer_fairseq.runtime.simul.session import Event

    shown = Shown("word")
    first = shown.changed([Event("one", True, False, 1, 1.0)])
    second = shown.changed([Event("two", True, False, 1, 1.0)])
    third = shown.changed([Event("three", False, False, 1, 1.0)])
    fourth = shown.changed([Event("four", False, False, 1, 1.0)])
    assert [one.at_start for one in (first, second, third, fourth)] == [True, False, False, False]
    assert [one.strings for one in (first, second, third, fourth)] == [
        ("one", ""), (" two", ""), (" three", ""), (" four", " three")
    ]  # fmt: skip


def test_a_served_talk_tells_seconds_and_how_far_it_is_behind(clock: Clock) -> None:
    async def run(backlog_s: float) -> list[dict[str, Any]]:
        session = Session(slow(clock, ScriptedSystem(PolicyOptions("wait-k", k=1), ends=10**9)), DecodingOptions())
        found = []
        with ThreadPoolExecutor(1) as pool:
            one = Talk(lambda: session, "word", pool, backlog_s)
            one.placed.set()
            listener = one.join()
            one.hear(np.round(sound(3.0) * 2.0**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes())
            hearing = asyncio.ensure_future(one.room())
            await asyncio.sleep(0)
            assert one.behind_s == 3.0
            assert hearing.done() == (backlog_s > 3), "its sender has to wait"
            running = asyncio.ensure_future(one.run())
            await hearing
            one.end()
            await running
            while (message := await listener.next()) is not None:
                found.append(message)
        assert found[-2]["rtf"] == pytest.approx(session.times.decoder_s / 3.0), "of all that was computed"
        assert session.times.decoder_s > 0.5
        return found

    for backlog_s in (0.5, 100.0):
        messages = [message for message in asyncio.run(run(backlog_s)) if "heard_s" in message]
        assert messages[-1]["heard_s"] == 3.0 and messages[-1]["behind_s"] == 0
        heard = [message["heard_s"] for message in messages if message["heard_s"]]
        assert heard == sorted(heard) and heard[0] == LONGEST_CHUNK // 640 * 640 / RATE


@pytest.mark.parametrize("segment_ms", [40, 70, 333, 999, 1500, 5000])
def test_talks_are_heard_in_pieces_of_so_many_milliseconds(segment_ms: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "talk.wav", sound(3.3), RATE, subtype="PCM_16")
    (tmp_path / talks.LOGS).mkdir()
    simulation = talks.TalkSimulation(
        lambda: Session(ScriptedSystem(), DecodingOptions()), segment_ms, "word", 0.0, tmp_path / talks.LOGS
    )
    heard: list[float] = []
    simulation.translate(tmp_path / "talk.wav", heard.append)
    whole, rest = divmod(3.3, segment_ms / 1000)
    assert heard == [pytest.approx(segment_ms / 1000)] * int(whole) + [pytest.approx(rest)]
    entries = [json.loads(line) for line in simulation.log(tmp_path / "talk.wav").read_text().splitlines()]
    moments = [entry["total_audio_processed"] for entry in entries if "computation_time" in entry]
    assert moments[: len(heard)] == [pytest.approx(sum(heard[: n + 1])) for n in range(len(heard))]


# ------------------------------------------------------------------------------------------------ usage of whole talks
def usage(seconds: int, cpu_per_second: Any, held: Any) -> list[dict[str, Any]]:
    found, cpu = [], 0.0
    for moment in range(0, seconds + 1, 10):
        found.append({"audio_s": float(moment), "cpu_s": cpu, "resident_mib": held(moment), "features_s": cpu / 10,
                      "encoder_s": cpu / 2, "decoder_s": cpu / 4})  # fmt: skip
        cpu += 10 * cpu_per_second(moment)
    return found


def test_growth_leaves_the_first_minute_out() -> None:
    steady = usage(
        600, lambda moment: 9.0 if moment < 60 else 0.5, lambda moment: 1.0 if moment < 60 else 50 + moment / 60
    )
    found = talks.growth(steady)
    assert found["compute_growth"] == pytest.approx(0) and found["memory_growth_mib"] == pytest.approx(9)
    slower = talks.growth(usage(600, lambda moment: 0.5 if moment < 300 else 0.75, lambda moment: 5.0))
    assert slower["compute_growth"] == pytest.approx(0.5) and slower["memory_growth_mib"] == 0
    assert talks.growth(steady[:20])["compute_growth"] is None


def test_the_course_of_a_talk_is_in_minutes_and_its_pace_in_seconds_for_a_second() -> None:
    found = talks.course(usage(600, lambda moment: 0.5, lambda moment: float(moment)), points=10)
    assert found["minutes"][-1] == 10 and found["minutes"] == sorted(found["minutes"])
    assert found["memory_mib"] == [60 * minute for minute in found["minutes"]]  # type: ignore[operator]
    assert found["compute"] == [pytest.approx(0.5)] * len(found["minutes"])
    assert talks.pace({"audio_s": 10.0, "cpu_s": 4.0}, {"audio_s": 30.0, "cpu_s": 9.0}) == 0.25


def test_parts_of_computation_are_for_a_second_of_all_audio(tmp_path: Path) -> None:
    (tmp_path / talks.LOGS).mkdir()
    recordings = [tmp_path / "short.wav", tmp_path / "long.wav"]
    for path, seconds in zip(recordings, (100, 300), strict=True):
        lines = usage(seconds, lambda moment: 0.8, lambda moment: 5.0)
        log = talks.usage_log(tmp_path / talks.LOGS / f"{path.stem}.jsonl")
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = talks.summarise_usage(tmp_path, recordings)
    assert found["longest_talk"] == "long"
    assert found["parts"] == {
        part: pytest.approx(0.8 * share) for part, share in (("features", 0.1), ("encoder", 0.5), ("decoder", 0.25))
    }


def test_usage_is_noted_every_ten_seconds_and_at_the_end(clock: Clock) -> None:
    session: Any = SimpleNamespace(audio_s=0.0, times=ComputeTimes())

    def pieces() -> Any:
        for _ in range(57):
            session.audio_s += 0.5
            session.times.decoder_s += 0.125
            clock.now += 0.25
            yield

    found = list(talks._used(session, pieces()))
    assert [entry["audio_s"] for entry in found] == [0.5, 10.0, 20.0, 28.5]
    assert [entry["cpu_s"] for entry in found] == [0.25, 5.0, 10.0, 14.25]
    assert [entry["decoder_s"] for entry in found] == [0.125, 2.5, 5.0, 7.125]


# ------------------------------------------------------------------------------------------------------------ recipes
def test_time_that_is_left_is_rounded_to_minutes_from_a_minute_and_a_half() -> None:
    assert [launching.time_left(seconds) for seconds in (0.4, 89.4, 90, 187)] == [
        ", 0 s left", ", 89 s left", ", 2 min left", ", 3 min left"
    ]  # fmt: skip


def test_the_time_that_is_left_is_in_seconds_then_minutes(clock: Clock) -> None:
    said: list[str] = []
    watch = launching.Losses(["train", "--max-update", "1000"], said.append)
    for update, seconds in ((100, 0), (200, 60), (900, 420), (950, 30)):
        clock.now += seconds
        watch({"loss": "1", "num_updates": str(update)})
    assert [line.partition(", ")[2] for line in said] == ["", "8 min left", "60 s left", "30 s left"]


def test_speed_and_seconds_of_trainings(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [{"wps": str(wps), "ups": "2"} for wps in (0, 100, 900, 110, 120)]
    log.write_text("".join(f"2026 | INFO | train_inner | {json.dumps(line)}\n" for line in lines))
    assert speed(log, "wps") == 115 and speed(log, "ups") == 2 and speed(log, "lr") is None
    assert _seconds([{"train_train_wall": "30"}, {"loss": "1"}, {"train_train_wall": "12.5"}]) == 42.5


def test_threads_that_are_asked_for_count_whatever_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert {environment()[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"7"}
    assert {environment(3)[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"3"}


# --------------------------------------------------------------------------------------------------------------- data
def test_noise_is_so_many_decibels_below_the_speech() -> None:
    speech = (sound(2.0, -30) * np.repeat([1.0, 0.2], RATE)).astype(np.float64)
    for snr_db in (0.0, 10.0, 25.0):
        about = Spoken("train", 0, "", "", "en-us", 160, 50, snr_db, 1.0, 7)
        noise = with_noise(speech, about) - speech
        assert 10 * np.log10(np.mean(speech**2) / np.mean(noise**2)) == pytest.approx(snr_db, abs=0.01)


def test_talks_are_so_many_minutes_and_the_noise_so_far_below_their_speech(tmp_path: Path) -> None:
    found = []
    for number in range(5):
        path = tmp_path / f"{number}.wav"
        soundfile.write(path, sound(0.5, -30, number), RATE, subtype="PCM_16")
        found.append(Recording(str(number), path, "", "", ""))
    for snr_db in (None, 0.0, 20.0):
        folder = tmp_path / f"talks{snr_db}"
        folder.mkdir()
        joining = Joining(talks=1, minutes=0.1, gap_s=(1.0, 1.0), snr_db=snr_db)
        segments, _ = joined.join(found, joining, folder)
        samples, rate = soundfile.read(segments[0].path)
        assert rate == RATE and 6.0 <= len(samples) / RATE < 7.6
        assert segments[1].start - segments[0].start - (segments[0].duration or 0) == pytest.approx(1.0, abs=1e-4)
        said = np.concatenate(
            [samples[round(one.start * RATE) : round((one.start + (one.duration or 0)) * RATE)] for one in segments]
        )
        between = samples[round((segments[0].start + (segments[0].duration or 0)) * RATE) + 10 :][: RATE - 20]
        if snr_db is None:
            assert not between.any()
        else:
            ratio = (np.mean(said**2) - np.mean(between**2)) / np.mean(between**2)
            assert 10 * np.log10(ratio) == pytest.approx(snr_db, abs=1.5)


def test_tables_have_seconds_and_their_sizes_follow_from_hours() -> None:
    assert _span(Path("t"), 2, "2.5", "4") == (2.5, 1.5) and _span(Path("t"), 2, "", "") == (0.0, None)
    assert _span(Path("t"), 2, "1.5", "") == (1.5, None)
    small, middle, large = (Measured(hours, 0.3, 7) for hours in (0.1, 10, 100))
    assert (small.batch, small.updates) == (4_000, 6_000)
    assert (middle.batch, middle.updates) == (4_000, 60 * 10 * 360_000 // 4_000)
    assert (large.batch, large.updates) == (40_000, 40 * 100 * 360_000 // 40_000)


def test_a_wrong_sample_is_found_at_its_second(tmp_path: Path) -> None:
    samples = np.zeros(2 * RATE, np.float32)
    samples[round(1.6 * RATE)] = 100
    soundfile.write(tmp_path / "x.wav", samples, RATE, subtype="FLOAT")
    with pytest.raises(LeapformerError, match=r"at 1\.5 s, has samples of 100"):
        list(read_blocks(tmp_path / "x.wav", RATE // 2))


def test_milliseconds_of_an_encoder_become_states_of_40_ms() -> None:
    given = {"encoder_causal": False, "encoder_chunk_ms": 280, "encoder_right_context_ms": 120, "encoder_past_ms": None}
    chunks = chunks_of(Namespace(**given))
    assert chunks is not None and (chunks.size, chunks.ahead, chunks.past) == (7, 3, 250)
    chunks = chunks_of(Namespace(**{**given, "encoder_past_ms": 2000}))
    assert chunks is not None and chunks.past == 50


class Ends(SentenceEnds):
    """Tells that a sentence ended with so much chance at a step."""

    told: dict[int, tuple[float, float]]

    def step(self, frames: np.ndarray) -> tuple[float, float]:
        return self.told.get(self._steps, (0.0, 0.0))


@pytest.mark.parametrize(("threshold", "chance", "found"), [(0.5, 0.6, True), (0.7, 0.6, False), (0.2, 0.3, True)])
def test_the_end_of_a_sentence_is_a_sample_of_the_recording(threshold: float, chance: float, found: bool) -> None:
    bins, units, ahead = 4, 2, 3
    arrays = {"mean": np.zeros(bins), "std": np.ones(bins), "enter_weight": np.zeros((units, 4 * bins)),
              "enter_bias": np.zeros(units), "input_weight": np.zeros((6, 2)), "input_bias": np.zeros(6),
              "state_weight": np.zeros((6, 2)), "state_bias": np.zeros(6), "leave_weight": np.zeros((2, 2)),
              "leave_bias": np.zeros(2)}  # fmt: skip
    ends = Ends(SentenceModel(**arrays, ahead=ahead, threshold=threshold, about={}))
    ends.told = {20: (chance, 1.5)}
    samples = sound(2.0)
    told = [ends.push(samples[start : start + 640]) for start in range(0, len(samples), 640)]
    expected = round(((20 - ahead) * 4 + 1.5) * HOP) + BETWEEN
    assert [one for one in told if one is not None] == ([expected] if found else [])


# -------------------------------------------------------------------------------------------------------------- means
def test_means_of_repeats_and_queues() -> None:
    assert spread([1.0, None, 2.0, 6.0]) == {"mean": 3.0, "min": 1.0, "max": 6.0} and spread([None]) is None
    assert queued([1.0, 2.0, 3.0], [5.0, 1.0, 1.0]) == [6.0, 7.0, 8.0]


# ---------------------------------------------------------------------------------------------------------- attention
WINDOWS = {
    "abc-window": ({"abc_slots": 5}, {0, 1, 2, 3, 4}),
    "abc-dilated": ({"abc_slots": 5}, {0, 2, 4, 6, 8}),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("way", ["weights", "whole", "steps"])
def test_a_window_is_so_many_tokens(name: str, way: str) -> None:
    """A query sees its own token and those so far before it, whichever way it is computed."""
    options, distances = WINDOWS[name]
    mechanism, count = build(name, 4, 2, block="decoder-self", **options).double().eval(), 23
    q, k = (torch.randn(1, 2, count, 4, dtype=torch.float64) for _ in range(2))
    v = torch.eye(count, dtype=torch.float64).expand(1, 2, -1, -1)  # so that what comes out are the weights
    if way == "steps":
        tokens, rows = TokenInfo.whole(count).without_lengths(), []
        state = mechanism.init_state(1, count, k, tokens, CAUSAL)
        for t in range(count):
            at = tokens.narrow(t, t + 1)
            row, state = mechanism.scan(state, *(x[:, :, t : t + 1] for x in (q, k, v)), at, at)
            rows.append(row)
        found = torch.cat(rows, 2)
    else:
        found = mechanism.weights(q, k, mask=CAUSAL) if way == "weights" else mechanism(q, k, v, mask=CAUSAL)
    for t in range(count):
        assert set((t - found[0, 0, t].nonzero().flatten()).tolist()) == {d for d in distances if d <= t}, t


def test_half_lives_are_tokens_and_spread_over_their_logarithm() -> None:
    shares = spread_half_lives(5, 2, 32)
    torch.testing.assert_close(shares ** torch.tensor([2.0, 4.0, 8.0, 16.0, 32.0]), torch.full((5,), 0.5))


def test_random_features_are_those_of_softmax_on_average() -> None:
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 6, 4, dtype=torch.float64) for _ in range(2))
    performer = build("performer", 4, 1, performer_features=40_000).double()
    found = performer.weights(q, k)
    torch.testing.assert_close(found, (q @ k.mT / 2).softmax(-1), rtol=0.1, atol=0.01)
