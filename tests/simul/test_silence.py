"""Silence before speech becomes no text and changes none, in utterances, sessions, the server and exported models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli import curve
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.runtime.__main__ import main as runtime
from leapformer_fairseq.runtime.audio import read_speech
from leapformer_fairseq.runtime.commands import demo
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.silence import SILENCE_DB, Beginning
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.simul.states import States
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import parse
from tests.covering import each_with_one
from tests.scripted import ScriptedSystem, sound
from tests.simul.test_loading import data_root  # noqa: F401  (a fixture)
from tests.simul.test_session import arriving  # noqa: F401  (a fixture)
from tests.simul.test_simulate import checkpoints, log, simulate, test_set  # noqa: F401  (fixtures)


def zeros(seconds: float) -> np.ndarray:
    return np.zeros(round(16_000 * seconds), np.float32)


SILENCES = {
    "zeros": zeros,
    "-90 dB": lambda seconds: sound(seconds, -90),
    "-60 dB": lambda seconds: sound(seconds, -60),
    "-45 dB": lambda seconds: sound(seconds, -45),
    "zeros, then noise": lambda seconds: np.concatenate([zeros(seconds / 2), sound(seconds / 2, -60)]),
}
silences = pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES)


# ----------------------------------------------------------------------------------------------------- the beginning
def passed_on(beginning: Beginning, samples: np.ndarray, size: int = 640) -> np.ndarray:
    found = [beginning.push(samples[at : at + size]) for at in range(0, len(samples), size)]
    return np.concatenate([*found, beginning.finish()])


@pytest.mark.parametrize(
    ("silence", "silent_s", "kept_s", "lead_s"),
    each_with_one([*SILENCES.values()], [(3.0, 0.1, 0.0), (3.017, 0.1, 0.04), (3.0, 1.0, 0.2)]),
)
def test_long_silence_is_left_out_however_the_audio_is_cut(
    silence: Callable[[float], np.ndarray], silent_s: float, kept_s: float, lead_s: float
) -> None:
    """To 10 ms."""
    speech = sound(1.0)
    samples = np.concatenate([silence(silent_s), speech])
    found = [
        passed_on(Beginning(SILENCE_DB, round(1000 * kept_s), round(1000 * lead_s)), samples, size)
        for size in (1, 7, 640, 1_000, len(samples))
    ]
    lead = len(found[0]) - len(speech)
    assert 0 <= lead - 16_000 * lead_s < 160
    np.testing.assert_array_equal(found[0], samples[len(samples) - len(found[0]) :])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@silences
def test_silence_alone_is_nothing(silence: Callable[[float], np.ndarray]) -> None:
    beginning = Beginning(SILENCE_DB, 1_000)
    assert not len(passed_on(beginning, silence(65.0), 1_600)) and beginning.n_left_out == 65 * 16_000
    assert len(beginning._held) <= 16_000, "memory is constant"


@pytest.mark.parametrize(
    "samples", [sound(2.0), np.concatenate([sound(0.09, -70), sound(2.0)]), sound(0.013), zeros(0)]
)
def test_audio_that_begins_with_a_sound_is_passed_on(samples: np.ndarray) -> None:
    for kept_ms, silence_db in ((100, SILENCE_DB), (1_000, SILENCE_DB), (0, None)):
        beginning = Beginning(silence_db, kept_ms)
        np.testing.assert_array_equal(passed_on(beginning, samples), samples)
        assert not beginning.n_left_out


def test_short_silence_is_kept_and_off_keeps_all() -> None:
    samples = np.concatenate([zeros(0.9), sound(1.0)])
    np.testing.assert_array_equal(passed_on(Beginning.of_utterance(SILENCE_DB, None), samples), samples)
    np.testing.assert_array_equal(passed_on(Beginning.of_utterance(SILENCE_DB, 0), samples), samples[14_400:])
    silent = np.concatenate([zeros(30.0), sound(1.0)])
    np.testing.assert_array_equal(passed_on(Beginning.of_utterance(None, None), silent), silent)


def test_a_quiet_speaker_is_heard_after_quiet_noise() -> None:
    """Speech at -48 dB, which steady noise could be as loud as."""
    samples = np.concatenate([sound(3.0, -75), sound(2.0, -48)])
    assert len(passed_on(Beginning(SILENCE_DB, 100), samples)) == 32_000


def test_levels_are_below_full_scale() -> None:
    for silence_db in (0.0, float("nan")):
        with pytest.raises(LeapformerError, match=rf"--silence-db {silence_db}: give decibels .* as in -55, or off"):
            DecodingOptions(silence_db=silence_db)


# -------------------------------------------------------------------------------------------------------- utterances
def utterance(samples: np.ndarray, size: int = 640, **options: Any) -> tuple[str, list[int], int]:
    stream = TranslationStream(ScriptedSystem(), DecodingOptions(**options))
    words = []
    for at in range(0, len(samples), size):
        stream.push(samples[at : at + size])
        words.append(stream.flush(stream.advance(at + size >= len(samples))))
    return " ".join(filter(None, words)), stream.engine.tokens, stream.engine.n_frames


@silences
def test_an_utterance_is_the_same_with_silence_before_it(silence: Callable[[float], np.ndarray]) -> None:
    speech = sound(4.0)
    text, tokens, frames = utterance(speech)
    assert len(tokens) > 5
    after = np.concatenate([silence(3.0), speech])
    for size in (160, 640, 16_000):
        assert utterance(after, size) == (text, tokens, frames)
    assert utterance(after, silence_db=None)[2] == frames + 300, "off"
    assert utterance(silence(65.0))[:2] == ("", []) and utterance(zeros(3.0), silence_db=None)[1]


def test_a_fork_of_a_silent_stream_hears_for_itself() -> None:
    speech, stream = sound(4.0), TranslationStream(ScriptedSystem(), DecodingOptions())
    stream.push(zeros(3.0))
    other = stream.fork()
    for one in (other, stream):
        one.push(speech)
        one.advance(source_finished=True)
        assert one.engine.tokens == utterance(speech, len(speech))[1]


@pytest.mark.full
def test_batches_leave_out_what_single_utterances_do(simulate, tmp_path, monkeypatch, capsys) -> None:  # noqa: F811
    from leapformer_fairseq.simul import simulate as module

    for index, silent_s in ((0, 3.0), (3, 0.6)):
        path = tmp_path / f"{index}.wav"
        speech = soundfile.read(path, dtype="float32")[0]
        soundfile.write(path, np.concatenate([zeros(silent_s), speech]), 16_000)
    assert simulate(tmp_path / "batches") == 0
    told = "1 recordings begin with long silence, 3.0 s of it were left out; --silence-db off translates it"
    assert told in capsys.readouterr().out
    assert simulate(tmp_path / "all", "--silence-db", "off") == 0
    assert "long silence" not in capsys.readouterr().out
    assert simulate(tmp_path / "live", "--lead-ms", "0") == 0
    assert "2 recordings begin with long silence, 3.6 s" in capsys.readouterr().out
    monkeypatch.setattr(module, "serves_batches", lambda *system: False)
    assert simulate(tmp_path / "one") == 0
    found = {name: log(tmp_path / name) for name in ("batches", "all", "live", "one")}
    assert found["batches"] == found["one"] != found["all"]
    assert [one["prediction"] for one in found["batches"]][3] == [one["prediction"] for one in found["all"]][3]
    assert found["live"][3] != found["batches"][3] and found["live"][0] == found["batches"][0]
    assert found["one"][0]["delays"][0] > 3_000, "silence was heard, and nothing written in it"


def test_the_agent_of_simuleval_is_silent_in_silence(make_agent) -> None:
    from tests.simul.test_agent import drive

    made = make_agent("--max-len-a", "0.05", "--max-len-b", "6", eos_bias=-1e4)
    speech = sound(2.4)
    run, after = (drive(made, np.concatenate([zeros(silent_s), speech])) for silent_s in (0, 3.0))
    assert run.text == after.text != "" and after.writes[:75] == [None] * 75
    quiet = drive(made, sound(65.0, -60), 1_000)
    assert quiet.text == "" and quiet.n_finished == 1


# ---------------------------------------------------------------------------------------------------------- sessions
def said(session: Session, samples: np.ndarray, size: int = 1_600) -> list[tuple[str, bool]]:
    events = [event for at in range(0, len(samples), size) for event in session.push(samples[at : at + size])]
    return [(event.text, event.ends) for event in [*events, *session.finish()]]


@pytest.mark.parametrize(
    ("silence", "segments"),
    each_with_one(
        [*SILENCES.values()],
        [
            {},
            {"kind": "tokens", "tokens": 6},
            {"kind": "seconds", "history": "window", "history_words": 3},
            {"lead_ms": 0},
        ],
    ),
)
def test_a_session_is_the_same_with_silence_before_it(silence: Callable[[float], np.ndarray], segments: Any) -> None:
    speech = sound(7.0)

    def heard(samples: np.ndarray, **more: Any) -> list[tuple[str, bool]]:
        session = Session(ScriptedSystem(), DecodingOptions(), SegmentOptions(**segments, **more))
        found = said(session, samples)
        assert session.n_samples == len(samples), "silence was heard, too"
        return found

    expected = heard(speech)
    assert any(text for text, _ in expected)
    assert heard(np.concatenate([silence(3.0), speech])) == heard(np.concatenate([silence(65.0), speech])) == expected
    assert heard(np.concatenate([silence(3.0), speech]), silence_db=None) != expected
    assert heard(silence(65.0)) == [] != heard(zeros(3.0), silence_db=None)
    assert heard(speech, silence_db=None) == expected, "speech without silence is the same without the rule"


@pytest.mark.parametrize("kind", ["causal", "ahead"])
def test_an_encoder_that_goes_on_does_not_hear_the_silence(arriving, kind: str) -> None:  # noqa: F811
    speech = sound(3.0)

    def heard(samples: np.ndarray) -> list[tuple[str, bool]]:
        return said(Session(arriving(kind), DecodingOptions(max_len_b=20), source=States), samples)

    assert heard(np.concatenate([zeros(3.0), speech])) == heard(speech) != []
    assert heard(sound(20.0, -60)) == []


def test_a_speaker_of_the_server_is_the_same_after_silence() -> None:
    pytest.importorskip("websockets", reason="the extra live")
    from tests.simul import test_serve as serve

    def session(drafts: bool) -> Session:
        return Session(ScriptedSystem(), DecodingOptions(), drafts=drafts)

    async def body() -> None:
        async with serve.running(session) as server, server.connect() as client:
            texts = []
            for samples in (sound(3.0), np.concatenate([zeros(3.0), sound(3.0)]), zeros(65.0)):
                await client.send(json.dumps({"drafts": True}))
                messages = await serve.speak(client, samples)
                texts.append(serve.shown(messages))
                assert messages[-1]["heard_s"] == len(samples) / 16_000
            assert texts[0] == texts[1] != "" == texts[2]

    serve.test(body())


# --------------------------------------------------------------------------------------------------- exported models
@pytest.fixture
def recordings(tmp_path: Path) -> dict[str, str]:
    """The bundled recording alone and after silence, and silence alone."""
    speech = read_speech(demo.FOLDER / "example.flac")
    parts = {
        "speech": speech,
        "zeros": np.concatenate([zeros(3.0), speech]),
        "noise": np.concatenate([sound(3.0, -60), speech]),
        "silence": sound(20.0, -60),
    }
    for name, samples in parts.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, 16_000, "FLOAT")
    return {name: str(tmp_path / f"{name}.wav") for name in parts}


@pytest.mark.parametrize("run", ["stream", "runtime"])
def test_the_bundled_model_is_silent_in_silence(recordings: dict[str, str], capsys, run: str) -> None:
    def text(name: str, *options: str) -> str:
        more = [*demo.LIMITS, "--waitk-lagging", "3", *options]
        if run == "stream":
            assert main(["stream", recordings[name], "--checkpoint", str(demo.MODEL), *more]) == 0
        else:
            assert runtime([str(demo.MODEL), recordings[name], *more]) == 0
        return capsys.readouterr().out

    expected = text("speech")
    assert expected.startswith("Ein kluger Mann")
    assert text("zeros") == text("noise") == text("speech", "--silence-db", "off") == expected
    assert text("zeros", "--silence-db", "off") != expected
    assert text("silence") == ""


def test_a_curve_passes_the_levels_on(tmp_path: Path, capsys) -> None:
    """`off`, too, which is no number."""
    for name in ("model.pt", "0.wav"):
        (tmp_path / name).write_bytes(b"")
    for given, expected in (("off", None), ("-40.5", -40.5)):
        words = ["--out", str(tmp_path), "--checkpoints", "model.pt", "--silence-db", given, "--lead-ms", "80"]
        runs = curve._runs(parse(curve, [*words, "--source", "s", "--target", "t"]))
        assert {(run.args.silence_db, run.args.lead_ms) for run in runs} == {(expected, 80)}


def test_a_segment_after_a_pause_begins_with_a_quiet_speaker() -> None:
    """Who is 15 dB quieter, and as steady as noise, which only the first sound of all may not be."""
    found = []
    for level in (-30, -45):
        session = Session(ScriptedSystem(), DecodingOptions(), SegmentOptions(min_seconds=1.0))
        found.append(said(session, np.concatenate([sound(3.0, -30), zeros(1.0), sound(4.0, level)])))
    assert found[0] == found[1] and sum(ends for _, ends in found[0]) == 2
