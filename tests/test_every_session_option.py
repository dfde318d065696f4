"""Every option of simultaneous translation reaches what it is for, there it changes what is written or when."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leapformer_fairseq.runtime.simul import exported
from leapformer_fairseq.runtime.simul import live as sessions
from leapformer_fairseq.runtime.simul.options import add_segment_options, add_system_options
from leapformer_fairseq.runtime.simul.policy import OPTIONS, POLICIES, PolicyOptions
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.simul import live, loading
from leapformer_fairseq.simul.states import States
from leapformer_fairseq.studies.curve import Grid

from .scripted import ScriptedSystem, policy_of, sound, talk

# ----------------------------------------------------------------------------------- from the command line to objects
# option -> another value, where it arrives, and what it needs beside it
ARRIVES: dict[str, tuple[str, str, list[str]]] = {
    "--data-root": ("elsewhere", "load.data_root", []),
    "--config-yaml": ("other.yaml", "load.config_yaml", []),
    "--policy": ("offline", "policy.name", ["--policy", "shared-prefix"]),
    "--waitk-lagging": ("7", "policy.k", []),
    "--catch-up": ("1.5", "policy.catch_up", []),
    "--hold": ("11", "policy.hold", ["--policy", "hold-n"]),
    "--agree": ("13", "policy.agree", ["--policy", "local-agreement"]),
    "--align-frames": ("17", "policy.align_frames", ["--policy", "alignatt"]),
    "--edatt-alpha": ("0.3", "policy.edatt_alpha", ["--policy", "edatt"]),
    "--edatt-frames": ("3", "policy.edatt_frames", ["--policy", "edatt"]),
    "--align-layer": ("2", "policy.align_layer", []),
    "--engine": ("recompute", "load.engine", []),
    "--pre-decision-ratio": ("19", "load.ratio", []),
    "--max-draft": ("23", "decoding.max_draft", []),
    "--beam": ("5", "decoding.beam", []),
    "--max-len-a": ("0.3", "decoding.max_len_a", []),
    "--max-len-b": ("29", "decoding.max_len_b", []),
    "--max-after-read": ("31", "decoding.max_after_read", []),
    "--no-repeat-ngram-size": ("37", "decoding.no_repeat_ngram_size", []),
    "--unit": ("char", "decoding.unit", []),
    "--early-eos": ("wait", "decoding.early_eos", []),
    "--num-threads": ("41", "threads", []),
    "--segment": ("tokens", "segments.kind", []),
    "--history": ("window", "segments.history", ["--segment", "tokens"]),
    "--history-words": ("43", "segments.history_words", []),
    "--pause-ms": ("440", "segments.pause_ms", []),
    "--pause-db": ("47.5", "segments.pause_db", []),
    "--silence-db": ("-53.5", "decoding.silence_db segments.silence_db", []),
    "--lead-ms": ("80", "decoding.lead_ms segments.lead_ms", []),
    "--segment-tokens": ("59", "segments.tokens", []),
    "--min-seconds": ("6.1", "segments.min_seconds", []),
    "--max-seconds": ("67.5", "segments.max_seconds", []),
    "--carry": ("encoder", "session.source", []),
}
ELSEWHERE = {"--checkpoint", "--sentence-ends", "--policy-file"}  # files; tests of loading, sentences, own policies


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser()
    add_system_options(found)
    add_segment_options(found)
    found.add_argument("--device", default="cpu")
    return found


def arrived(monkeypatch: pytest.MonkeyPatch, folder: Any, words: list[str]) -> dict[str, Any]:
    """What a session is built from, by name."""
    found: dict[str, Any] = {}

    def load(checkpoint: str, root: str, config: str, policy: Any, ratio: Any, engine: str) -> Any:
        found.update({"load.data_root": root, "load.config_yaml": config, "load.ratio": ratio, "load.engine": engine})
        found.update({"policy.name": policy.name, **{f"policy.{name}": value for name, value in policy.values.items()}})
        return SimpleNamespace(to=lambda device: None, carried=lambda: States)

    def session(system: Any, options: Any, segments: Any, source: Any, drafts: bool) -> None:
        for name, one in (("decoding", options), ("segments", segments)):
            found.update({f"{name}.{field.name}": getattr(one, field.name) for field in fields(one)})
        found.update({"session.source": "encoder" if source.goes_on else "none", "session.drafts": drafts})

    monkeypatch.setattr(loading, "load_system", load)
    monkeypatch.setattr(live, "set_threads", lambda count: found.setdefault("threads", []).append(count))
    monkeypatch.setattr(sessions, "Session", session)
    args = parser().parse_args(["--checkpoint", str(folder / "model.pt"), *words])
    _, _, make = live.load_sessions(args)
    make(True)
    prepare = live.prepare_thread(args)
    assert prepare is not None
    prepare()
    assert len(set(found["threads"])) == 1, "every thread computes with as many"
    found["threads"] = found["threads"][0]
    return found


def test_every_option_of_a_session_is_known_here() -> None:
    known = {action.option_strings[0] for action in parser()._actions} - {"-h", "--device"}
    assert known == ARRIVES.keys() | ELSEWHERE


@pytest.mark.parametrize("option", ARRIVES)
def test_every_option_of_a_session_arrives_in_one_place(option: str, monkeypatch: Any, tmp_path: Any) -> None:
    value, place, more = ARRIVES[option]
    common = ["--data-root", "data", *more]
    before = arrived(monkeypatch, tmp_path, common)
    after = arrived(monkeypatch, tmp_path, [*common, f"{option}={value}"])
    changed = {name for name in before if before[name] != after[name]}
    places = set(place.split())  # two where utterances and sessions have an option in common
    assert changed == places and {str(after[name]) for name in places} == {value}


def test_the_options_of_an_exported_model_arrive(monkeypatch: Any, tmp_path: Any) -> None:
    found = []
    monkeypatch.setattr(exported.ExportedSystem, "load", lambda *given: found.append(given))
    words = ["--checkpoint", str(tmp_path), "--waitk-lagging", "7", "--pre-decision-ratio", "19", "--num-threads", "41"]
    live.open_system(parser().parse_args(words))
    ((path, policy, ratio, threads),) = found
    assert (path, policy, ratio, threads) == (tmp_path, PolicyOptions("wait-k", k=7), 19, 41)


# ------------------------------------------------------------------------------------------- from a grid to commands
GRID: dict[str, Any] = {
    "checkpoints": {"a": "/a.pt", "b": "/b.pt"}, "policies": ["wait-k", "hold-n", "offline"],
    "numbers": {
        "k": [3, 5], "hold": [7, 11], "agree": [2, 13], "align_frames": [17, 19], "edatt_alpha": [0.2, 0.5],
        "edatt_frames": [2], "catch_up": [1.0],
    }, "ratios": [None, 23, 29],
    "segment_sizes": [310, 370], "segments": [("--segment", "pause"), ("--segment", "seconds")],
}  # fmt: skip


def points(**changed: Any) -> list[Any]:
    return Grid(**{**GRID, **changed}).settings()


@pytest.mark.parametrize("axis", [field.name for field in fields(Grid) if field.name != "numbers"])
def test_every_value_of_every_axis_of_a_grid_has_as_many_points(axis: str) -> None:
    """All points with it, and no point twice."""
    every, values = points(), list(GRID[axis])
    assert len({(one.checkpoint, one.name) for one in every}) == len(set(every)) == len(every)
    of_value = [points(**{axis: {one: values_[one]} if isinstance(values_ := GRID[axis], dict) else [one]})
                for one in values]  # fmt: skip
    assert sorted(map(str, every)) == sorted(str(one) for found in of_value for one in found)
    assert axis == "policies" or len({len(found) for found in of_value}) == 1
    assert len(every) == 2 * (2 + 2 + 1) * 3 * 2 * 2


@pytest.mark.parametrize("policy", [name for name, policy in POLICIES.items() if policy.options])
def test_every_number_of_a_policy_is_a_point_and_a_flag(policy: str) -> None:
    first = POLICIES[policy].options[0]
    found = points(policies=[policy], checkpoints={"a": "/a.pt"}, ratios=[23], segments=[("--segment", "pause")])
    expected = [(number, size) for number in GRID["numbers"][first.name] for size in GRID["segment_sizes"]]
    assert [(dict(one.numbers)[first.name], one.segment_ms) for one in found] == expected
    for one in found:
        words = {name: one.flags[one.flags.index(name) + 1] for name in one.flags if name.startswith("--")}
        assert words == {
            "--policy": policy, first.flag: str(one.numbers[0][1]), "--pre-decision-ratio": "23", "--segment": "pause",
            "--source-segment-size": str(one.segment_ms),
        }  # fmt: skip


def test_all_options_of_a_policy_are_combined() -> None:
    """Of the second and later ones, only other values than the default are worth a name."""
    numbers = {"edatt_alpha": [0.2, 0.5], "edatt_frames": [2, 4]}
    found = points(policies=["edatt"], numbers=numbers, checkpoints={"a": "/a.pt"}, ratios=[None], segment_sizes=[40])
    assert len(found) == 2 * 4 and len({one.name for one in found}) == 8
    assert found[0].flags[-4:] == ["--edatt-alpha", "0.2", "--edatt-frames", "2"]
    assert found[0].name == "a-edatt-edatt_alpha0.2-edatt_frames2-40ms-pause"


# ------------------------------------------------------------------------------------------- from objects to the text
def written(system: ScriptedSystem, silent_s: float = 0.0, **options: Any) -> list[tuple[float, str]]:
    """What an utterance of 9 s becomes, and when, after so much steady noise at -50 dB."""
    stream = TranslationStream(system, DecodingOptions(**options))
    found, samples = [], np.concatenate([sound(silent_s, -50), sound(9.0)])
    for start in range(0, len(samples), 4_000):
        stream.push(samples[start : start + 4_000])
        done = stream.advance(source_finished=start + 4_000 >= len(samples))
        found.append((stream.n_samples / 16_000, stream.flush(final=done)))
    return [*found, (stream.engine.n_tokens, str(stream.engine.tokens))]


# field -> values that have to differ from each other, and the policy and system that it is about
DECODING: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "max_len_a": ([0.0, 0.005, 0.011], {}, {"max_len_b": 3}),
    "max_len_b": ([200, 5, 8], {}, {}),
    "max_draft": ([40, 3, 2], {"policy": PolicyOptions("hold-n", hold=1), "ends": 10**9}, {}),
    "early_eos": (["mask", "wait"], {}, {}),
    "unit": (["word", "char"], {}, {}),
    "max_after_read": ([None, 0, 1], {"ends": 10**9}, {"max_len_b": 30}),
    "no_repeat_ngram_size": ([0, 1, 2], {"variety": 3}, {}),
    "silence_db": ([None, -55.0, -10.0], {}, {"silent_s": 2.0}),
    "lead_ms": ([None, 0, 200], {}, {"silent_s": 0.8}),
    "beam": ([1, 2, 6], {"policy": PolicyOptions("hold-n", hold=1)}, {}),
}
POLICY: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "name": ([*POLICIES], {"k": 2, "align_frames": 12}, {"ends": 10**9}),
    "k": ([1, 3, 7], {"name": "wait-k"}, {}),
    "catch_up": ([1.0, 0.5, 2.0], {"name": "wait-k", "k": 2}, {}),
    "hold": ([0, 1, 5], {"name": "hold-n"}, {"ends": 10**9}),
    "agree": ([2, 3, 5], {"name": "local-agreement"}, {"ends": 10**9}),
    "align_frames": ([1, 8, 40], {"name": "alignatt"}, {"ends": 10**9}),
    "align_layer": ([1, 2, -2], {"name": "alignatt"}, {}),
    "edatt_alpha": ([0.01, 0.6, 1.0], {"name": "edatt", "edatt_frames": 9}, {"ends": 10**9}),
    "edatt_frames": ([1, 8, 40], {"name": "edatt"}, {"ends": 10**9}),
}


@pytest.mark.parametrize("name", [field.name for field in fields(DecodingOptions)])
def test_every_decoding_option_changes_what_is_written(name: str) -> None:
    values, about, more = DECODING[name]
    found = [written(replace(ScriptedSystem(), **about), **more, **{name: value}) for value in values]
    assert len(set(map(str, found))) == len(values)


@pytest.mark.parametrize("name", ["name", *OPTIONS])
def test_every_option_of_a_policy_changes_what_is_written(name: str) -> None:
    values, about, more = POLICY[name]
    found = [written(replace(ScriptedSystem(), policy=policy_of(**{**about, name: value}), **more)) for value in values]
    assert len(set(map(str, found))) == len(values)


def test_limits_are_what_they_say() -> None:
    endless = ScriptedSystem(ends=10**9, policy=PolicyOptions("offline"))
    count = 98 * 9 // 9 + 98 * 8 + 16  # frames of 25 ms every 10 ms
    assert written(endless, max_len_b=7)[-1][0] == 7
    assert written(endless, max_after_read=7)[-1][0] == 7
    assert written(endless, max_len_a=0.1, max_len_b=2)[-1][0] == pytest.approx(0.1 * count + 2, abs=1)
    (_, one), (_, other) = (
        written(replace(endless, policy=PolicyOptions("hold-n", hold=0)), max_draft=n)[-1] for n in (1, 3)
    )
    assert one != other


def spoken(
    segments: SegmentOptions, drafts: bool = False, samples: np.ndarray | None = None, **system: Any
) -> list[Any]:
    session = Session(ScriptedSystem(**system), DecodingOptions(), segments, drafts=drafts)
    given = talk() if samples is None else samples
    found: list[Any] = [*session.push(given), *session.finish()]
    return [*found, session.n_segments, session.n_tokens, session.audio_s]


SEGMENTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "kind": (["pause", "tokens", "seconds"], {"tokens": 7}),
    "pause_ms": ([400, 200, 800], {}),
    "pause_db": ([20.0, 5.0, 40.0], {}),
    "tokens": ([60, 5, 9], {"kind": "tokens"}),
    "min_seconds": ([2.0, 4.0, 8.0], {}),
    "max_seconds": ([30.0, 3.0, 5.0], {}),
    "history": (["segment", "window"], {"kind": "seconds", "history_words": 3}),
    "history_words": ([10, 2, 5], {"kind": "seconds", "history": "window"}),
    "silence_db": ([None, -15.0, -25.0], {}),
    "lead_ms": ([0, 200, 500], {}),
}


@pytest.mark.parametrize("name", [field.name for field in fields(SegmentOptions) if field.name != "sentences"])
def test_every_option_of_a_segment_changes_the_session(name: str) -> None:
    values, more = SEGMENTS[name]
    found = [spoken(SegmentOptions(**{**more, name: value}), ends=10**9) for value in values]
    assert len(set(map(str, found))) == len(values), "\n".join(map(str, found))


def test_drafts_and_another_k_change_the_session() -> None:
    plain, drafts, other = (
        spoken(SegmentOptions(), drafts, policy=PolicyOptions("wait-k", k=k))
        for drafts, k in ((False, 2), (True, 2), (False, 5))
    )
    assert plain != drafts and plain != other
    assert [event for event in drafts if getattr(event, "final", True)] == plain
    session = Session(ScriptedSystem(policy=PolicyOptions("wait-k", k=2, catch_up=0.5)), DecodingOptions())
    session.use_lagging(5)
    assert session._input.system.policy == PolicyOptions("wait-k", k=5, catch_up=0.5), "nothing else changes"
