"""Sessions of many segments: the text of their streams, the states of the whole, and memory that does not grow."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from leapformer_fairseq.attention.ops import cpu as native
from leapformer_fairseq.models.streaming_encoder import ArrivingSource
from leapformer_fairseq.modules import MechanismAttention
from leapformer_fairseq.runtime.audio import fbank
from leapformer_fairseq.runtime.cmvn import Cmvn
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Event, Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.runtime.simul.text import Detokenizer
from leapformer_fairseq.simul.engine import EncodedEngine, IncrementalEngine
from leapformer_fairseq.simul.states import States
from leapformer_fairseq.simul.system import TranslationSystem
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import in_turn
from tests.models.tiny import make_model
from tests.simul.sources import SOURCES

OPTIONS = DecodingOptions(max_len_b=20)
ONE = SegmentOptions("seconds", max_seconds=1000)
KINDS = {
    "causal": {"encoder_causal": True},
    "ahead": {"encoder_chunk_ms": 240, "encoder_right_context_ms": 120},
}
WHOLE: dict[str, Any] = {"whole": {}}


@pytest.fixture
def arriving(spm_model: Path, symbols: list[str]) -> Callable[..., TranslationSystem]:
    """Builds a system around a small random model whose encoder reads arriving speech."""
    words = [symbol for symbol in symbols if not symbol.startswith("<0x")]

    def make(kind: str, policy: PolicyOptions | None = None) -> TranslationSystem:
        options = {"waitk_lagging": 2, "fixed_pre_decision_ratio": 3, "input_feat_per_channel": 80}
        options |= {**KINDS, **WHOLE}[kind]
        options["max_source_positions"] = 50  # sessions are longer than the encoder's table of positions
        model = make_model("leapformer_simulst_tiny", "leap", **options).float()
        cmvn = Cmvn(np.full(80, 8.0, np.float32), np.full(80, 3.0, np.float32))
        detokenizer = Detokenizer(words, spm_model)
        return TranslationSystem(model, 2, (0, 1, 3), detokenizer, cmvn, policy or PolicyOptions(k=2), 12)

    return make


@pytest.fixture(params=["none", "causal", "ahead"])
def any_system(request, make_system, arriving) -> tuple[TranslationSystem, str]:
    """A system and what it can carry on: all that is possible."""
    if request.param == "none":
        return make_system(2, 3), "none"
    return arriving(request.param), "encoder"


def talk(speech, n: int, seconds: float = 0.8) -> np.ndarray:
    """n times the same speech and half as much silence; 0.8 s make 30 encoder states."""
    once = speech(seconds)
    return np.tile(np.concatenate([once, np.zeros(len(once) // 2, np.float32)]), n)


def heard(session: Session, samples: np.ndarray, size: int = 1600) -> list[Event]:
    events = [event for at in range(0, len(samples), size) for event in session.push(samples[at : at + size])]
    return [*events, *session.finish()]


def text_of(events: Iterable[Event]) -> list[str]:
    """The final text of each segment."""
    found: list[list[str]] = []
    for event in events:
        found += [[] for _ in range(event.segment - len(found))]
        if event.final and event.text:
            found[-1].append(event.text)
    return [" ".join(words) for words in found]


def whole_text(system: TranslationSystem, samples: np.ndarray) -> str:
    stream = TranslationStream(system, replace(OPTIONS, silence_db=None))
    stream.push(samples)
    assert stream.advance(source_finished=True)
    return stream.flush(final=True)


class Said(list[torch.Tensor]):
    """The logits of every decoder step; a random model's text alone hardly depends on what it hears."""

    def __init__(self, system: TranslationSystem) -> None:
        super().__init__()
        system.model.decoder.register_forward_hook(lambda _, __, output: self.append(output[0][0, -1].detach().clone()))

    def taken(self) -> torch.Tensor:
        """What came since the last time, (steps, V)."""
        steps, self[:] = torch.stack(self), []
        return steps


def test_a_session_that_begins_where_all_was_settled_writes_the_rest(make_system, speech):
    """Silence that was left out before the first segment counts, too."""
    samples = np.concatenate([np.zeros(48_000, np.float32), speech(9.0)])
    options, system = SegmentOptions("seconds", min_seconds=1, max_seconds=2), make_system()
    session, settled, words = Session(system, OPTIONS, options), list[tuple[int, int]](), list[str]()
    for start in range(0, len(samples), 640):
        for event in session.push(samples[start : start + 640]):
            words += [event.text] if event.text else []
            if event.ends:
                settled.append((session.settled, len(words)))
    words += [event.text for event in session.finish() if event.text]
    assert [place for place, _ in settled] == [80_000, 112_000, 144_000, 176_000]
    for place, count in settled:
        again = Session(system, OPTIONS, options)
        rest = [*again.push(samples[place:]), *again.finish()]
        assert [event.text for event in rest if event.text] == words[count:], place


@pytest.mark.parametrize("carry", [False, True])
def test_one_segment_is_what_one_stream_writes_however_the_audio_is_cut(any_system, speech, carry: bool) -> None:
    system, can = any_system
    said, samples = Said(system), talk(speech, 2)[:-3333]
    expected, logits = whole_text(system, samples), said.taken()
    for size in (100, 1600, 100_000):
        session = Session(system, OPTIONS, ONE, SOURCES[can if carry else "none"])
        assert text_of(heard(session, samples, size)) == [expected] != [""]
        torch.testing.assert_close(said.taken(), logits, rtol=1e-4, atol=1e-4)
        assert session.n_samples == len(samples)


def test_each_segment_is_what_its_audio_alone_gives(any_system, speech) -> None:
    system, _ = any_system
    said, samples = Said(system), np.concatenate([speech(0.8, 1), 0.1 * speech(0.8, 2)])
    alone = [(whole_text(system, part), said.taken()) for part in samples.reshape(2, -1)]
    session = Session(system, OPTIONS, SegmentOptions("seconds", min_seconds=0.5, max_seconds=0.8))
    assert text_of(heard(session, samples)) == [text for text, _ in alone]
    torch.testing.assert_close(said.taken(), torch.cat([logits for _, logits in alone]), rtol=1e-4, atol=1e-4)
    assert (alone[0][1][:3] - alone[1][1][:3]).abs().max() > 0.01


@pytest.mark.parametrize("carry", ["none", "encoder"])
def test_segments_do_not_depend_on_how_the_audio_is_cut(arriving, speech, carry: str) -> None:
    system, segments = arriving("ahead"), SegmentOptions(pause_ms=200, min_seconds=0.5)
    samples = np.concatenate([talk(speech, 2), np.zeros(9000, np.float32), talk(speech, 2)])
    found = [
        text_of(heard(Session(system, OPTIONS, segments, SOURCES[carry]), samples, size))
        for size in (100, 7777, 200_000)
    ]
    assert found[0] == found[1] == found[2] and len(found[0]) == 4


# -- the encoder goes on ----------------------------------------------------------------------------------------------


def given_states(monkeypatch, system: TranslationSystem, samples: np.ndarray, segments: SegmentOptions) -> list[Any]:
    """The encoder states that each segment got, (m, C)."""
    given: list[tuple[int, torch.Tensor]] = []
    feed = EncodedEngine.feed
    monkeypatch.setattr(
        EncodedEngine, "feed", lambda engine, rows: given.append((id(engine), rows)) or feed(engine, rows)
    )
    streams: list[Any] = []  # so that no id is used twice
    init = EncodedEngine.__init__
    monkeypatch.setattr(EncodedEngine, "__init__", lambda engine, *args: streams.append(engine) or init(engine, *args))
    heard(Session(system, OPTIONS, segments, States), samples)
    return [torch.cat([rows[:, 0] for owner, rows in given if owner == id(one)]) for one in streams]


@torch.no_grad()
def states_of_the_whole(system: TranslationSystem, samples: np.ndarray) -> torch.Tensor:
    frames = torch.from_numpy(system.cmvn(fbank(samples)))
    return system.model.encoder.extend(ArrivingSource(), frames, final=True)[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_carried_encoder_gives_the_states_of_the_whole(monkeypatch, arriving, speech, kind: str) -> None:
    system, samples = arriving(kind), talk(speech, 4)[:-2000]
    segments = SegmentOptions("seconds", min_seconds=0.5, max_seconds=1.0)
    given = given_states(monkeypatch, system, samples, segments)
    assert [len(states) for states in given] == [25, 25, 25, 25, 17]
    torch.testing.assert_close(torch.cat(given), states_of_the_whole(system, samples), rtol=0, atol=1e-5)


def test_silence_between_segments_is_heard_and_not_translated(monkeypatch, arriving, speech) -> None:
    system, pause = arriving("ahead"), np.zeros(16_000, np.float32)
    samples = np.concatenate([speech(1.0), pause, speech(1.0), pause, speech(1.0)])
    whole = states_of_the_whole(system, samples)
    given = given_states(monkeypatch, system, samples, SegmentOptions(min_seconds=0.5, lead_ms=200))
    # until 400 ms of a pause are over, and from 200 ms before the next sound
    for states, (start, stop) in zip(given, [(0, 35), (45, 85), (95, 125)], strict=True):
        torch.testing.assert_close(states, whole[start:stop], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lead_ms", "size"), [(0, 100), (0, 7777), (30, 7777), (200, 100), (200, 200_000)])
def test_a_segment_has_what_was_asked_for_before_its_sound(make_system, monkeypatch, lead_ms: int, size: int) -> None:
    sound = 0.1 * np.random.default_rng(0).normal(size=16_000).astype(np.float32)
    samples = np.concatenate([sound, np.zeros(16_400, np.float32), sound])
    given: dict[TranslationStream, list[np.ndarray]] = {}
    push = TranslationStream.push
    monkeypatch.setattr(
        TranslationStream, "push", lambda one, unit: given.setdefault(one, []).append(unit) or push(one, unit)
    )
    heard(Session(make_system(2, 3), OPTIONS, SegmentOptions(min_seconds=0.5, lead_ms=lead_ms)), samples, size)
    _, second = given.values()
    begins = 32_320 - lead_ms * 16  # the third 10 ms of a piece have the first sample of the sound
    np.testing.assert_array_equal(np.concatenate(second), samples[begins:])


def test_a_lead_has_nothing_of_an_earlier_silence(make_system, monkeypatch) -> None:
    """The second pause leaves less before the next sound than is asked for."""
    sound, silence = 0.1 * np.random.default_rng(0).normal(size=16_000).astype(np.float32), np.zeros(16_000, np.float32)
    samples = np.concatenate([silence, sound, silence[:4480], sound])
    given: dict[TranslationStream, list[np.ndarray]] = {}
    push = TranslationStream.push
    monkeypatch.setattr(
        TranslationStream, "push", lambda one, unit: given.setdefault(one, []).append(unit) or push(one, unit)
    )
    options = SegmentOptions(min_seconds=0.5, pause_ms=200, lead_ms=200, silence_db=-50)
    heard(Session(make_system(2, 3), OPTIONS, options), samples)
    first, second = map(np.concatenate, given.values())
    np.testing.assert_array_equal(np.concatenate([first, second]), samples[12_800:])


def test_a_lead_of_an_encoder_that_goes_on_is_of_whole_states(arriving) -> None:
    with pytest.raises(LeapformerError, match="--lead-ms 30 with --carry encoder: give a multiple of 40"):
        Session(arriving("ahead"), OPTIONS, SegmentOptions(lead_ms=30), States)


def test_a_carried_encoder_is_not_one_that_begins_again(arriving, speech) -> None:
    system, samples = arriving("causal"), np.concatenate([speech(1.2, 1), speech(1.2, 2)])
    whole, alone = states_of_the_whole(system, samples), states_of_the_whole(system, samples[19_200:])
    assert (whole[30:] - alone).abs().max() > 0.1


def test_an_encoder_of_whole_utterances_cannot_go_on(make_system) -> None:
    with pytest.raises(LeapformerError, match="--carry encoder: .*train with --encoder-causal"):
        Session(make_system(2, 3), OPTIONS, source=States)


# -- memory -----------------------------------------------------------------------------------------------------------


def held_bytes(root: Any) -> int:
    """Bytes of all tensors and arrays that can be reached from an object."""
    seen, found, todo = set(), {}, [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, np.ndarray):
            base = one if one.base is None else one.base
            found[id(base)] = getattr(base, "nbytes", 0)
        todo += gc.get_referents(one)
    return sum(found.values())


def test_memory_and_computation_of_a_segment_do_not_grow(any_system, speech) -> None:
    system, carry = any_system
    system = replace(system, forbidden=(*system.forbidden, system.eos))  # all segments are equally long then
    calls = {"decoder": 0, "layer": 0}
    system.model.decoder.register_forward_pre_hook(lambda *_: calls.update(decoder=calls["decoder"] + 1))
    layer = getattr(system.model.encoder, "transformer_layers", [system.model.encoder])[0]
    layer.register_forward_pre_hook(lambda *_: calls.update(layer=calls["layer"] + 1))
    segments = SegmentOptions(pause_ms=80, min_seconds=0.2)
    session, once = (
        Session(system, DecodingOptions(max_len_b=3), segments, SOURCES[carry], drafts=True),
        talk(speech, 2, 0.32),
    )
    counts, held = [], {}
    for n in range(2, 31, 2):  # two segments at a time, which are a whole number of chunks
        before = dict(calls)
        list(session.push(once))
        counts.append(tuple(calls[name] - before[name] for name in calls))
        if n in (10, 30):
            held[n] = held_bytes(session)
    assert session.n_segments >= 29
    assert held[10] == held[30] and len(set(counts[4:])) == 1
    session.kept = [torch.zeros(1000)]
    assert held_bytes(session) == held[30] + 4000


def counted(call: Callable[[], object]) -> int:
    """FLOPs of matrix products, with the decoding step in PyTorch, where they can be seen."""
    with native.turned_off(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def flops_of_a_token(system: TranslationSystem, seconds: int) -> int:
    """Of the token after the one that has read so much source."""
    system.model.make_generation_fast_(need_attn=False)  # as `load_system` does
    engine = IncrementalEngine(system.model, system.eos)
    engine.feed(torch.randn(100 * seconds, 80).numpy())
    with native.turned_off():
        engine.step()
    engine.commit(5)
    return counted(engine.step)


def test_a_token_costs_the_same_after_any_source(arriving, monkeypatch) -> None:
    system = arriving("causal")
    first = flops_of_a_token(system, 1)
    assert first > 0 and flops_of_a_token(system, 20) == first
    read = MechanismAttention._source_state

    def read_again(self, memory, *args):
        memory.state, memory.written = None, 0
        return read(self, memory, *args)

    monkeypatch.setattr(MechanismAttention, "_next_token", lambda *_: None)  # the short way reads no source
    monkeypatch.setattr(MechanismAttention, "_source_state", read_again)
    assert flops_of_a_token(system, 20) > 1.5 * flops_of_a_token(system, 1), "an inverted control"


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_of_speech_costs_the_same_whatever_was_heard(arriving, kind: str) -> None:
    encoder, source = arriving(kind).model.encoder, ArrivingSource()
    costs = [counted(lambda: encoder.extend(source, torch.randn(96, 80), False)) for _ in range(20)]
    assert costs[-1] > 0 and len(set(costs[2:])) == 1


def test_alignatt_takes_every_token_once(arriving, speech) -> None:
    """A token that was looked at and written is not decoded again."""
    system = arriving("causal", PolicyOptions("alignatt", align_frames=1, align_layer=2))
    stream = TranslationStream(
        replace(system, forbidden=(*system.forbidden, system.eos)), DecodingOptions(max_len_b=30)
    )
    stream.push(talk(speech, 4))
    stream.advance(source_finished=True)
    assert stream.n_tokens == 30
    assert stream.times.decoder_steps <= 30 + stream.n_steps, "and one look a step that is taken back"


POLICY_OPTIONS = [
    PolicyOptions(k=2),
    PolicyOptions("hold-n", hold=2),
    PolicyOptions("local-agreement"),
    PolicyOptions("alignatt", align_frames=2, align_layer=2),
]


@in_turn(policy=POLICY_OPTIONS, kind=[*KINDS, "whole"])
def test_a_fork_is_independent(arriving, speech, kind: str, policy: PolicyOptions) -> None:
    """At a random moment: what a copy goes on to hear changes nothing, and with the same audio it writes the same."""
    system = replace(arriving(kind, policy), forbidden=(0, 1, 2, 3))
    samples, draw = talk(speech, 3), np.random.default_rng(len(policy.name + kind))
    pieces = np.split(samples, np.sort(draw.integers(0, len(samples), 12)))
    moment = int(draw.integers(0, len(pieces)))

    def play(stream: TranslationStream, pieces: list[np.ndarray]) -> list[str]:
        texts = []
        for piece in pieces:
            stream.push(piece)
            stream.advance(source_finished=False)
            texts.append(stream.flush(final=False))
        stream.advance(source_finished=True)
        return [*texts, stream.flush(final=True)]

    whole = play(TranslationStream(system, OPTIONS), pieces)
    stream = TranslationStream(system, OPTIONS)
    texts = []
    for piece in pieces[:moment]:
        stream.push(piece)
        stream.advance(source_finished=False)
        texts.append(stream.flush(final=False))
    disturbing, other = stream.fork(), stream.fork()
    play(disturbing, [speech(2, 50)])
    assert texts + play(stream, pieces[moment:]) == whole
    assert texts + play(other, pieces[moment:]) == whole
    assert other.times.decoder_steps == stream.times.decoder_steps > 0


# -- what else can happen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [PolicyOptions(k=2), PolicyOptions("local-agreement"), PolicyOptions("hold-n", hold=2)]
)
def test_drafts_change_no_text(arriving, speech, policy: PolicyOptions) -> None:
    system, samples = arriving("causal", policy), talk(speech, 2)
    segments = SegmentOptions(pause_ms=200, min_seconds=0.5)
    plain, drafted = (heard(Session(system, OPTIONS, segments, drafts=drafts), samples) for drafts in (False, True))
    assert [event for event in drafted if event.final] == plain
    assert any(event.text for event in drafted if not event.final)


def test_a_draft_is_what_would_be_written_if_the_source_ended(arriving, speech) -> None:
    system, samples = arriving("causal", PolicyOptions("hold-n", hold=2)), speech(1.0)
    stream = TranslationStream(system, DecodingOptions(max_len_b=15))
    stream.push(samples)
    stream.advance(source_finished=False)
    said = stream.flush(final=False)
    steps = stream.times.decoder_steps
    draft = stream.draft()
    assert stream.times.decoder_steps == steps  # the policy has asked for the same
    assert f"{said} {draft}".strip() == system.detokenizer.decode(
        stream.engine.tokens + [token.id for token in stream.continuation()]
    )


def test_with_more_source_a_draft_is_made_again(arriving, speech) -> None:
    stream, steps = TranslationStream(arriving("causal", PolicyOptions("offline")), OPTIONS), []
    for part in np.split(speech(1.0), 2):
        stream.push(part)
        stream.advance(source_finished=False)
        assert stream.draft() == stream.draft() != ""
        steps.append(stream.times.decoder_steps)
    assert steps[1] == 2 * steps[0] > 0


def test_a_segment_ends_after_so_many_tokens(arriving, speech) -> None:
    system = arriving("ahead")
    system = replace(system, forbidden=(*system.forbidden, system.eos))
    session = Session(system, DecodingOptions(), SegmentOptions("tokens", tokens=5, min_seconds=0.1), States)
    samples, counts = speech(3.0), list[int]()
    for at in range(0, len(samples), 640):
        before = session.n_segments, session.n_tokens
        list(session.push(samples[at : at + 640]))
        counts += [session.n_tokens - before[1]] * (session.n_segments - before[0])
    assert len(counts) >= 2 and min(counts) >= 5


@pytest.mark.parametrize("carry", ["none", "encoder"])
@pytest.mark.parametrize("samples", [0, 1, 200, 399, 640, 1000])
def test_audio_without_a_window_gives_no_text(arriving, carry: str, samples: int) -> None:
    session = Session(arriving("ahead"), OPTIONS, source=SOURCES[carry], drafts=True)
    events = heard(session, np.ones(samples, np.float32))
    assert all(event.text == "" for event in events) or samples >= 400
    assert len(events) == session.n_segments <= 1


@pytest.mark.parametrize("carry", ["none", "encoder"])
def test_clipping_and_silence_if_wanted_are_audio_as_any_other(arriving, speech, carry: str) -> None:
    for samples in (np.zeros(40_000, np.float32), (100 * speech(2.0)).clip(-1, 1)):
        session = Session(arriving("causal"), OPTIONS, SegmentOptions(silence_db=None), SOURCES[carry])
        assert text_of(heard(session, samples)) == [whole_text(arriving("causal"), samples)]
