"""The ends of sentences: the network without PyTorch, its training, its files, and segments that end there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.cli import main as cli
from leapformer_fairseq.data.manifests import FeatureArchive, write_manifest
from leapformer_fairseq.runtime.audio import UNIT_SAMPLES, fbank
from leapformer_fairseq.runtime.sentences import BUNDLED, SentenceEnds, SentenceModel, graph
from leapformer_fairseq.runtime.simul.segments import Place, Segmenter, SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.simul import loading, sentence_training
from leapformer_fairseq.simul.sentence_training import (
    Counts,
    Network,
    Settings,
    counts_of,
    evaluate,
    joined,
    labelled,
    steps_told,
    train,
    trimmed,
)
from leapformer_fairseq.support.errors import LeapformerError
from tests.simul.test_session import heard, text_of, whole_text

AHEAD = 3
QUIET, LOUD = -40.0, -10.0


def noise(pieces: int, decibels: float, seed: int = 0) -> np.ndarray:
    samples = np.random.default_rng(seed).normal(size=pieces * UNIT_SAMPLES)
    return (10 ** (decibels / 20) * samples).astype(np.float32)


def clicks(ahead: int = AHEAD, after: float = -0.75) -> SentenceModel:
    """A network without memory: a sentence ended `ahead` steps before each loud step, and so many frames after that.

    -0.75 is the time from a frame's middle to its beginning, so that pieces end with steps.
    """
    level = (fbank(noise(50, QUIET)).mean() + fbank(noise(50, LOUD)).mean()) / 2
    forgets = np.array([0, -30, 0], np.float32)  # reset, update, new
    return SentenceModel(
        mean=np.zeros(80, np.float32), std=np.ones(80, np.float32),
        enter_weight=np.full((1, 320), 1 / 320, np.float32), enter_bias=np.array([-level], np.float32),
        input_weight=np.array([[0], [0], [1]], np.float32), input_bias=forgets,
        state_weight=np.zeros((3, 1), np.float32), state_bias=np.zeros(3, np.float32),
        leave_weight=np.array([[20], [0]], np.float32), leave_bias=np.array([-10, after], np.float32),
        ahead=ahead, threshold=0.5, about={},
    )  # fmt: skip


def with_clicks(ends: list[int], pieces: int, ahead: int = AHEAD) -> np.ndarray:
    """Quiet noise, where `clicks` finds that the piece before each end is the last of a sentence."""
    samples = noise(pieces, QUIET)
    for end in ends:
        at = slice((end + ahead) * UNIT_SAMPLES, (end + ahead + 1) * UNIT_SAMPLES)
        samples[at] = noise(1, LOUD, seed=end)
    return samples


def options(after: float = -0.75) -> SegmentOptions:
    return SegmentOptions("sentence", pause_db=80, min_seconds=0.2, sentences=clicks(after=after))


def places(segmenter: Segmenter, samples: np.ndarray) -> list[Place]:
    pieces = [samples[at : at + UNIT_SAMPLES] for at in range(0, len(samples), UNIT_SAMPLES)]
    found = [pair for piece in pieces for pair in segmenter.push(piece, 0)] + list(segmenter.finish())
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in found]), samples, "nothing lost, in order")
    return [place for place, _ in found]


# ---------------------------------------------------------------------------------------------------- without PyTorch
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 999))
def test_the_network_without_pytorch_is_the_trained_one(steps: int, units: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    network, mean, std = Network(80, units), rng.normal(size=80), rng.random(80) + 0.5
    ends = SentenceEnds(network.numpy(np.float32(mean), np.float32(std), 0, 0.5, {}))
    frames = rng.normal(size=(steps * 4, 80)).astype(np.float32)
    given_ = torch.from_numpy(((frames - mean) / std).astype(np.float32).reshape(1, steps, -1))
    with torch.no_grad():
        logits, after = (part[0] for part in network(given_))
    found = np.array([ends.step(part) for part in frames.reshape(steps, 4, 80)])
    np.testing.assert_allclose(found[:, 0], logits.sigmoid().numpy(), atol=2e-6)
    np.testing.assert_allclose(found[:, 1], after.numpy(), atol=2e-5)


def test_the_bundled_graph_is_the_one_that_is_built() -> None:
    assert onnx.load_model_from_string(BUNDLED.read_bytes()) == onnx.load_model_from_string(graph())


def test_large_numbers_do_not_overflow() -> None:
    model = Network(80, 4).numpy(np.zeros(80, np.float32), np.full(80, 1e-30, np.float32), 0, 0.5, {})
    with np.errstate(over="raise", invalid="raise"):
        assert 0 <= SentenceEnds(model).step(np.full((4, 80), 1e3, np.float32))[0] <= 1


# ----------------------------------------------------------------------------------------------------------- segments
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(7, 25), min_size=1, max_size=6), st.integers(0, 12))
def test_segments_end_with_sentences(lengths: list[int], rest: int) -> None:
    """With the last piece of each, although that is known only later."""
    ends = list(np.cumsum(lengths))
    samples = with_clicks(ends, ends[-1] + AHEAD + 3 + rest)
    found = places(Segmenter(options()), samples)
    assert [at + 1 for at, place in enumerate(found) if place is Place.END] == ends
    assert Place.BETWEEN not in found


@pytest.mark.parametrize("after", [1.25, -0.25, -2.75, 1e30])
def test_a_sentence_may_end_within_a_piece(after: float) -> None:
    """Frames of 10 ms after what is told, but never far; an encoder that goes on has states of 40 ms."""
    samples_ = with_clicks([20], 40)
    for grid in (16, UNIT_SAMPLES):
        segmenter, found = Segmenter(options(after), grid), list[tuple[Place, np.ndarray]]()
        for at in range(0, len(samples_), UNIT_SAMPLES):
            found += segmenter.push(samples_[at : at + UNIT_SAMPLES], 0)
        found += segmenter.finish()
        last = next(n for n, (place, _) in enumerate(found) if place is Place.END)
        end = sum(len(piece) for _, piece in found[: last + 1])
        expected = 20 * UNIT_SAMPLES + round(160 * min(max(after, -8), 8)) + 120
        assert abs(end - expected) <= grid / 2 and end % grid == 0
        assert sum(len(piece) for _, piece in found) == len(samples_)


def test_a_place_is_known_after_the_delay() -> None:
    segmenter, delay = Segmenter(options()), clicks().delay
    counts = [len(list(segmenter.push(noise(1, QUIET), 0))) for _ in range(delay + 3)]
    assert delay == AHEAD + 2 and counts == [0] * delay + [1, 1, 1]
    assert len(list(segmenter.finish())) == delay


def test_pauses_end_segments_too_and_silence_is_not_translated() -> None:
    samples = np.concatenate([with_clicks([20], 40), np.zeros(30 * UNIT_SAMPLES, np.float32), noise(20, QUIET)])
    found = places(Segmenter(SegmentOptions("sentence", pause_db=45, min_seconds=0.2, sentences=clicks())), samples)
    assert [at for at, place in enumerate(found) if place is Place.END] == [19, 49]
    assert [at for at, place in enumerate(found) if place is Place.BETWEEN] == list(range(50, 70))


def test_after_a_sentence_silence_belongs_to_no_segment() -> None:
    samples = with_clicks([20], 60)
    samples[20 * UNIT_SAMPLES : (20 + AHEAD) * UNIT_SAMPLES] = 0
    found = places(Segmenter(SegmentOptions("sentence", pause_db=45, min_seconds=0.2, sentences=clicks())), samples)
    assert found[19] is Place.END and found[20 : 20 + AHEAD] == [Place.BETWEEN] * AHEAD
    assert set(found[20 + AHEAD :]) == {Place.SPEECH}


def test_without_the_network_sentences_are_not_found() -> None:
    samples = with_clicks([20, 40], 60)
    assert Place.END not in places(Segmenter(SegmentOptions("pause", pause_db=80, sentences=clicks())), samples)


def test_each_segment_is_what_its_sentence_alone_gives(make_system: Callable[..., Any]) -> None:
    system, ends, how = make_system(2, 3), [25, 45, 80], DecodingOptions(max_len_b=20)
    samples = with_clicks(ends, 100)
    cuts = zip([0, *ends], [*ends, 100], strict=True)
    alone = [whole_text(system, samples[first * UNIT_SAMPLES : last * UNIT_SAMPLES]) for first, last in cuts]
    for size in (100, 1600, 100_000):
        assert text_of(heard(Session(system, how, options()), samples, size)) == alone
    assert len(set(alone)) > 1


def test_sessions_share_the_network_and_not_what_they_hear(make_system: Callable[..., Any]) -> None:
    system, how, shared = make_system(2, 3), DecodingOptions(max_len_b=20), options()
    talks = [with_clicks([25, 45], 70), with_clicks([30], 70)]
    alone = [heard(Session(system, how, shared), talk) for talk in talks]
    sessions, turns = [Session(system, how, shared) for _ in talks], [list[Any](), list[Any]()]
    for at in range(0, 70 * UNIT_SAMPLES, 1000):
        for session, talk, events in zip(sessions, talks, turns, strict=True):
            events += session.push(talk[at : at + 1000])
    for session, events in zip(sessions, turns, strict=True):
        events += session.finish()
    texts = [text_of(events) for events in turns]
    assert texts == [text_of(events) for events in alone] and [len(one) for one in texts] == [3, 2]


# ----------------------------------------------------------------------------------------------------------- training
def sentence(seed: int, tells: bool = True) -> np.ndarray:
    """Frames of noise, some of them quiet, that begin high if anything tells that they begin."""
    rng = np.random.default_rng(seed)
    frames = rng.normal(8, 3, (int(rng.integers(60, 160)), 80)).astype(np.float32)
    frames[rng.random(len(frames)) < 0.12] -= 8
    if tells:
        frames[:12, 40:] += 6
    return frames


QUICK = Settings(updates=100, ahead_ms=80, units=32, rate=1e-2)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_training, "ROWS", 4)
    monkeypatch.setattr(sentence_training, "SECONDS", 5.0)


@pytest.mark.full
@pytest.mark.usefixtures("few_rows")
def test_where_nothing_tells_of_ends_they_are_not_found() -> None:
    """The same training as of the command below."""
    model = train([sentence(n, tells=False) for n in range(30)], [sentence(n, tells=False) for n in range(40)], QUICK)
    found = Counts(**model.about["found"])
    assert found.right + found.missed > 50 and found.f1 < 0.7


@pytest.mark.usefixtures("few_rows")
def test_training_is_the_same_again() -> None:
    short, recordings = Settings(updates=2, units=4), [sentence(n) for n in range(5)]
    first, second = (train(recordings, recordings, short) for _ in range(2))
    np.testing.assert_array_equal(first.input_weight, second.input_weight)
    third = train(recordings, recordings, Settings(updates=2, units=4, seed=2))
    assert not np.array_equal(first.input_weight, third.input_weight)


def test_an_interrupted_training_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sentence_training, "KEPT_EVERY", 2)
    recordings, kept = [sentence(n) for n in range(30)], tmp_path / "kept"
    settings = Settings(updates=5, units=4)
    whole = train(recordings, recordings, settings)

    def interrupted(update: int, updates: int) -> None:
        if update == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recordings, recordings, settings, watch=interrupted, unfinished=kept)
    for other in (replace(settings, seed=2), replace(settings, updates=6)):
        with pytest.raises(LeapformerError, match="holds an interrupted training with another (seed|updates); repeat"):
            train(recordings, recordings, other, unfinished=kept)
    with pytest.raises(LeapformerError, match="another recordings"):
        train(recordings[1:], recordings, settings, unfinished=kept)
    seen = list[int]()
    again = train(recordings, recordings, settings, watch=lambda update, _: seen.append(update), unfinished=kept)
    assert seen == [2, 3, 4, 5]
    for name, array in vars(whole).items():
        if isinstance(array, np.ndarray):
            assert np.array_equal(array, getattr(again, name)), name
    kept.write_bytes(b"x")
    with pytest.raises(LeapformerError, match="kept holds no training .*delete it to begin again"):
        train(recordings, recordings, settings, unfinished=kept)


def test_joined_sentences_and_their_ends() -> None:
    rows = [np.full((50, 80), value, np.float32) for value in (1.0, 9.0)]
    frames, ends = joined(rows, np.random.default_rng(0), pauses=0)
    assert ends == list(range(50, len(frames), 50)) and len(frames) >= 1200
    sample = labelled(frames[:205], [50, 100], ahead=2)
    assert len(sample.frames) == 204
    assert [(at, sample.ended[at], sample.after[at]) for at in np.flatnonzero(sample.ended)] == [
        (13, 0.5, 6), (14, 1, 2), (15, 0.5, -2), (26, 0.5, 4), (27, 1, 0), (28, 0.5, -4)
    ]  # fmt: skip
    assert labelled(frames[:20], [8], ahead=9).ended.sum() == 0, "what is known only later is not asked for"


def test_edges() -> None:
    frames = np.full((100, 80), -10.0, np.float32)
    frames[20:60] = 5
    assert len(trimmed(frames)) == 46 and len(trimmed(frames[20:60])) == 40


def test_what_is_found() -> None:
    assert steps_told(np.array([0, 0.6, 0.7, 0.2, *[0] * 12, 0.9]), 0.5) == [1, 16]
    assert counts_of([41, 132, 240], [40, 120, 300]) == Counts(right=2, missed=1, wrong=1, off_ms=130)
    assert counts_of([40, 44], [40]) == Counts(right=1, missed=0, wrong=1)
    assert counts_of([], []).f1 == 0 and Counts(2, 1, 1, 9.0) + Counts(1, 0, 2, 1.0) == Counts(3, 1, 3, 10.0)


def test_evaluation_hears_every_end() -> None:
    class Never(Network):
        def forward(self, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full(steps.shape[:2], -9.0), torch.zeros(steps.shape[:2])

    found = evaluate(Never(80, 1), np.zeros(80), np.ones(80), [sentence(n) for n in range(9)], 0)
    assert all(one.right == one.wrong == 0 and one.missed > 100 for one in found.values())


# ------------------------------------------------------------------------------------------------- files and commands
@pytest.fixture
def trained(tmp_path: Path) -> Path:
    clicks().save(tmp_path / "ends.npz")
    return tmp_path / "ends.npz"


def test_a_file_is_what_was_saved(trained: Path) -> None:
    model, again = clicks(), SentenceModel.load(trained)
    for name in model.shapes:
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert (again.ahead, again.threshold) == (AHEAD, 0.5)


def damage(path: Path, how: str) -> None:
    with np.load(path) as file:
        parts = dict(file)
    about = json.loads(str(parts["about"]))
    changes: dict[str, dict[str, Any]] = {
        "without a bias": {"input_bias": None},
        "other shape": {"leave_weight": np.zeros((1, 1), np.float32)},
        "not a number": {"mean": np.full(80, np.nan, np.float32)},
        "integers": {"mean": np.zeros(80, int)},
        "objects": {"mean": np.array([print] * 80, object)},
        "other format": {"about": json.dumps(about | {"format": 99})},
        "no format": {"about": json.dumps({})},
        "a list": {"about": "[]"},
        "no json": {"about": "{"},
        "threshold": {"about": json.dumps(about | {"threshold": 1.5})},
        "ahead": {"about": json.dumps(about | {"ahead": -1})},
    }
    changed = {**parts, **changes.get(how, {})}
    np.savez(path, **{name: array for name, array in changed.items() if array is not None})
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-900])
    if how == "text":
        path.write_text("hello")
    if how == "empty":
        path.write_bytes(b"")
    if how == "missing":
        path.unlink()


DAMAGES = (
    *("without a bias", "other shape", "not a number", "integers", "objects", "other format", "no format", "a list"),
    *("no json", "threshold", "ahead", "truncated", "text", "empty", "missing"),
)


@pytest.mark.parametrize("how", DAMAGES)
def test_files_that_are_no_such_network_are_one_line(trained: Path, how: str) -> None:
    damage(trained, how)
    with pytest.raises(LeapformerError, match=f"--sentence-ends {trained}.*leapformer sentence-ends") as error:
        SentenceModel.load(trained)
    assert "\n" not in str(error.value)


STREAM = ("--checkpoint", "x", "--data-root", "x", "--max-len-b", "9", "--pause-db", "80")


def test_stream_ends_segments_with_sentences(
    make_system: Callable[..., Any], trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(loading, "load_system", lambda *args: make_system(2, 3))
    path = trained.with_name("talk.wav")
    soundfile.write(path, with_clicks([25, 45], 70), 16_000, subtype="FLOAT")
    for more, segments in ((["--sentence-ends", str(trained)], 3), ([], 1)):
        assert cli.main(["stream", str(path), *STREAM, *more]) == 0
        out, err = capsys.readouterr()
        assert f"segments: {segments};" in err and len(out.splitlines()) == segments
    more = ["--sentence-ends", str(trained), "--min-seconds", "1.5"]  # the second is shorter
    assert cli.main(["stream", str(path), *STREAM, *more]) == 0
    assert "segments: 2;" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("stream", "t.wav", *STREAM, "--segment", "sentence"), "--segment sentence needs --sentence-ends FILE"),
        (("stream", "t.wav", *STREAM, "--sentence-ends", "nowhere"), "--sentence-ends nowhere: no such file"),
        (
            ("sentence-ends", "--train", "nowhere.tsv", "--valid", "v.tsv", "--out", "o"),
            "nowhere.tsv: no such manifest",
        ),
        (("sentence-ends", "--train", "t", "--valid", "v", "--out", "o", "--updates", "0"), "--updates 0"),
        (("sentence-ends", "--train", "t", "--valid", "v", "--out", "o", "--units", "-1"), "--units -1"),
        (("sentence-ends", "--train", "t", "--valid", "v", "--out", "o", "--ahead-ms", "50"), "--ahead-ms 50"),
        (("sentence-ends", "--train", "t", "--valid", "v", "--out", "o", "--lr", "nan"), "--lr nan"),
    ],
)
def test_wrong_options_are_one_line(
    words: tuple[str, ...], message: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("t.wav", noise(9, QUIET), 16_000)
    assert cli.main(list(words)) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


def write_recordings(folder: Path, split: str, rows: list[np.ndarray]) -> Path:
    with FeatureArchive(folder / f"{split}.zip", f"{split}.zip") as archive:
        placed = [archive.add(str(n), frames) for n, frames in enumerate(rows)]
    manifest = [[str(n), one.address, str(one.frames), "text", "speaker"] for n, one in enumerate(placed)]
    write_manifest(folder / f"{split}.tsv", manifest)
    return folder / f"{split}.tsv"


@pytest.mark.usefixtures("few_rows")
def test_the_command_trains_and_tells_what_is_found(tmp_path: Path, capsys: Any) -> None:
    parts = {"train": range(30), "valid": range(30, 40)}
    files = {name: write_recordings(tmp_path, name, [sentence(n) for n in part]) for name, part in parts.items()}
    out = tmp_path / "new" / "ends.npz"
    quick = ["--updates", "100", "--units", "32", "--lr", "1e-2", "--ahead-ms", "80"]
    given_ = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert cli.main(["sentence-ends", *given_, "--out", str(out), *quick]) == 0
    printed = capsys.readouterr().out
    model = SentenceModel.load(out)
    found = Counts(**model.about["found"])
    assert f"finds {found.right} of {found.right + found.missed} ends" in printed and f"F1 {found.f1:.3f}" in printed
    assert f"{found.off_ms / found.right:.0f} ms off" in printed and found.off_ms / found.right < 40
    assert found.f1 > 0.85 and model.ahead == 2 and "commit:" in model.about["signature"]
    write_recordings(tmp_path, "train", [sentence(0)])
    assert cli.main(["sentence-ends", *given_, "--out", str(out)]) == 2
    assert "fewer than two recordings" in capsys.readouterr().err
