"""A talk without pauses: what is forgotten, what the rest is then, and memory that does not grow."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from leapformer_fairseq.attention import MECHANISMS, PrefixMask
from leapformer_fairseq.attention.block import Memory
from leapformer_fairseq.cli import main as cli
from leapformer_fairseq.modules import PassOptions, attentions
from leapformer_fairseq.runtime.audio import SAMPLE_RATE, UNIT_SAMPLES, fbank
from leapformer_fairseq.runtime.beam import repeating
from leapformer_fairseq.runtime.cmvn import Cmvn
from leapformer_fairseq.runtime.commands import serve as serve_command
from leapformer_fairseq.runtime.commands import stream as stream_command
from leapformer_fairseq.runtime.simul import session as session_module
from leapformer_fairseq.runtime.simul.options import add_segment_options, add_system_options, segment_options
from leapformer_fairseq.runtime.simul.policies import WaitK
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Event, Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.runtime.simul.text import EMITTERS, WORD_START, Detokenizer, WordEmitter
from leapformer_fairseq.runtime.simul.window import LEAST, MARGIN, forgettable
from leapformer_fairseq.simul import loading
from leapformer_fairseq.simul.engine import IncrementalEngine
from leapformer_fairseq.simul.live import load_sessions
from leapformer_fairseq.simul.system import TranslationSystem
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import parse
from tests.covering import covering, each_with_one, in_turn, shared_out
from tests.models.tiny import PLANS, make_model
from tests.simul.sources import SOURCES
from tests.simul.test_session import heard, held_bytes, text_of
from tests.simul.test_threads import at_once

OPTIONS = DecodingOptions(max_len_b=40, max_draft=6)
WINDOW = SegmentOptions("seconds", history="window", history_words=3, min_seconds=0.2, max_seconds=60)
ENCODERS: dict[str, dict[str, Any]] = {
    "causal": {"encoder_causal": True},
    "ahead": {"encoder_chunk_ms": 240, "encoder_right_context_ms": 120},
    "whole": {},
}
POLICIES = [
    PolicyOptions(k=2, align_layer=2),
    PolicyOptions("hold-n", hold=2, align_layer=2),
    PolicyOptions("local-agreement", align_layer=2),
    PolicyOptions("alignatt", align_frames=2, align_layer=2),
]
WAIT_K = POLICIES[0]
Make = Callable[..., TranslationSystem]
by_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


@pytest.fixture
def system_of(spm_model: Path, symbols: list[str]) -> Make:
    """Builds a system around a small random model in float64 that ends no sentence; most pieces begin words."""
    begin = [piece for piece in symbols if piece.startswith(WORD_START) and len(piece) > 1]
    go_on = [piece for piece in symbols[4:] if not piece.startswith(("<0x", WORD_START))]
    pieces = [*symbols[:4], *((begin + go_on[:6]) * 9)[:30]]

    def make(
        encoder: str = "causal", policy: PolicyOptions = WAIT_K, plan: str = "leap", ends: bool = False
    ) -> TranslationSystem:
        options = {"fixed_pre_decision_ratio": 3, "input_feat_per_channel": 80, "waitk_lagging": "offline"}
        options["luna_packed"] = "learned"  # that of the encoder belongs to the states that it made with it
        model = make_model("leapformer_simulst_tiny", plan, **options, **ENCODERS[encoder])
        cmvn = Cmvn(np.full(80, 8.0, np.float32), np.full(80, 3.0, np.float32))
        never = (0, 1, 3) if ends else (0, 1, 2, 3)
        return TranslationSystem(model, 2, never, Detokenizer(pieces, spm_model), cmvn, policy, 12)

    return make


class Said(list[Tensor]):
    """The logits of every decoder step."""

    def __init__(self, system: TranslationSystem) -> None:
        super().__init__()
        system.model.decoder.register_forward_hook(lambda _, __, output: self.append(output[0][0, -1].detach().clone()))

    def taken(self) -> Tensor:
        steps, self[:] = torch.stack(self), []
        return steps


def goes_on(stream: TranslationStream, words: int) -> tuple[int, int]:
    """What is forgettable as if attention went on as the audio does; a random model's stays somewhere."""
    starts, step = stream.emitter.starts(), stream.step_states
    if len(starts) <= words or stream.engine.ready < LEAST + 18:
        return 0, 0
    return starts[-words], LEAST - LEAST % step + step


# ------------------------------------------------------------------------------------------------ nothing is forgotten
@covering(
    lambda encoder, policy, way: (encoder, way[1]) != ("whole", "encoder"),
    encoder=list(ENCODERS),
    policy=POLICIES,
    way=[("seconds", "none"), ("pause", "none"), ("seconds", "encoder")],
)
def test_what_forgets_nothing_writes_what_a_segment_writes(
    system_of: Make, speech, encoder: str, policy: PolicyOptions, way: tuple[str, str]
) -> None:
    """Tokens, delays and logits, with drafts and without, each encoder in one segment and between pauses."""
    (kind, carry), system = way, system_of(encoder, policy, ends=True)
    said, samples = Said(system), np.concatenate([speech(0.6), np.zeros(4800, np.float32), speech(0.3, 1)])
    plain = SegmentOptions(kind, pause_ms=200, min_seconds=0.5)
    found = []
    for segments in (plain, replace(plain, history="window", history_words=1000)):
        session = Session(system, OPTIONS, segments, SOURCES[carry], drafts=kind == "pause")
        found.append((heard(session, samples), session.n_tokens, session.times.decoder_steps, said.taken()))
    (*expected, logits), (*same, same_logits) = found
    assert same == expected and expected[1] > 0
    assert torch.equal(same_logits, logits)


# --------------------------------------------------------------------------------------------------- what is forgotten
def fake(pieces: str, aligned: list[int], ready: int, step: int = 1, chunk: int = 1) -> Any:
    """A stream as `forgettable` sees it; capital letters begin words."""
    starts = [i for i, piece in enumerate(pieces) if piece.isupper() or not i]
    return SimpleNamespace(
        emitter=SimpleNamespace(starts=lambda: starts), aligned=aligned, step_states=step,
        engine=SimpleNamespace(ready=ready), system=SimpleNamespace(chunk_states=chunk),
    )  # fmt: skip


def test_by_hand() -> None:
    aligned = [3, 9, 50, 41, 60]
    assert forgettable(fake("AbCdE", aligned, 80), 2) == (2, 41 - MARGIN)
    assert forgettable(fake("AbCdE", aligned, 80), 1) == (4, 60 - MARGIN)
    assert forgettable(fake("AbCdE", aligned, 80, step=9), 2) == (2, 36), "whole steps"
    assert forgettable(fake("AbCdE", aligned, 58, step=9), 1) == (4, 45), "a step stays"
    assert forgettable(fake("AbCdE", aligned, 58, step=9, chunk=6), 1) == (4, 36), "and what a chunk may lack"
    assert forgettable(fake("AbCdE", aligned, 80), 3) == (0, 0), "no word is left over"
    assert forgettable(fake("", [], 80), 1) == (0, 0)
    at = LEAST + MARGIN
    assert forgettable(fake("ABC", [0, 0, at], 80), 1) == (2, LEAST)
    assert forgettable(fake("ABC", [0, 0, at - 1], 80), 1) == (0, 0), "less than a second"
    assert forgettable(fake("ABCD", [70, 70, 2, 70], 80), 2) == (0, 0), "kept text looks at the beginning"
    assert forgettable(fake("abc", [70, 70, 70], 80), 1) == (0, 0), "a word has no end yet"


@pytest.fixture
def looking(system_of: Make) -> Make:
    """Systems whose cross-attention looks about; else all tokens look at the same state."""

    def make(*args: Any, **settings: Any) -> TranslationSystem:
        system = system_of(*args, **settings)
        for attention in attentions(system.model.decoder):
            if attention.encoder_decoder_attention:
                attention.q_proj.weight.data.mul_(6)
                attention.k_proj.weight.data.mul_(6)
        return system

    return make


@pytest.mark.parametrize("plan", ["leap", "softmax"])
def test_a_token_is_aligned_with_what_it_attends_to_most(looking: Make, speech, monkeypatch, plan: str) -> None:
    """As the decoder of training says, which has the whole source before it and a mask for what was not heard."""
    monkeypatch.setattr(WaitK, "lag", None)  # as if the schedule did not tell
    system, samples = looking("ahead", plan=plan), speech(2.4)
    stream = TranslationStream(system, OPTIONS, aligns=True)
    stream.push(samples)
    stream.advance(source_finished=False)
    states, tokens = states_of(system, samples)[: stream.n_states], torch.tensor([[2, *stream.engine.tokens]])
    for i in range(stream.n_tokens):
        options = PassOptions(PrefixMask(2, 3), weights=True)
        _, weights = whole_pass(system, tokens[:, : i + 1], states, options, layer=1)
        assert int(weights.argmax()) == stream.aligned[i]
    assert len(stream.aligned) == stream.n_tokens > 10 and len(set(stream.aligned)) > 2


@by_policy
def test_under_every_policy_tokens_are_aligned_when_they_are_written(
    looking: Make, speech, monkeypatch: pytest.MonkeyPatch, policy: PolicyOptions
) -> None:
    """Not when the policy drafts them."""
    system = looking("causal", policy, "softmax")
    stream, seen = TranslationStream(system, OPTIONS, aligns=True), list[int]()
    commit = TranslationStream._commit
    monkeypatch.setattr(
        TranslationStream, "_commit", lambda self, token: seen.append(self.n_states) or commit(self, token)
    )
    for piece in np.split(speech(2.4), 12):
        stream.push(piece)
        stream.advance(source_finished=False)
    assert len(set(stream.aligned)) > 3
    if policy.name == "wait-k":  # where its first step begins
        lag = policy.k * stream.step_states
        assert stream.aligned == [max(0, visible - lag) for visible in seen]
        return
    again = IncrementalEngine(system.model, 2)
    again.feed(system.cmvn(fbank(speech(2.4))))
    for token, visible, state in zip(stream.engine.tokens, seen, stream.aligned, strict=True):
        again.step(visible, layer=1)
        again.commit(token)
        assert again.attention.argmax() == state


@torch.no_grad()
def states_of(system: TranslationSystem, samples: np.ndarray, n_frames: int | None = None) -> Tensor:
    """Encoder states (S, 1, C) of audio, or its first frames, that is encoded as a whole."""
    frames = torch.from_numpy(system.cmvn(fbank(samples))[:n_frames]).double()
    return system.model.encoder(frames[None], torch.tensor([len(frames)]))["encoder_out"][0]


@torch.no_grad()
def whole_pass(
    system: TranslationSystem, tokens: Tensor, states: Tensor, options: PassOptions, layer: int | None = None
) -> Any:
    """The logits (V,) after tokens (1, T) by the decoder of training, and the last token's weights in a layer."""
    decoder = system.model.decoder
    encoder_out = {"encoder_out": [states], "encoder_padding_mask": [torch.zeros(1, len(states), dtype=torch.bool)]}
    wanted = {} if layer is None else {"alignment_layer": layer}
    with decoder.context.own(options):
        logits, extra = decoder(tokens, encoder_out=encoder_out, **wanted)
    return logits[0, -1], None if layer is None else extra["attn"][0][0, -1]


# -------------------------------------------------------------------------------------------- the rest is a new session
@dataclass
class Follower:
    """Compares each stream that takes over with what it must be, by the audio and text that it was left."""

    samples: np.ndarray
    carry: str
    session: Session
    said: Said
    n_states = n_checked = 0

    def check(self, stream: TranslationStream, kept: list[int], n_states: int) -> None:
        system, engine = stream.system, stream.engine
        self.n_states += n_states
        window, visible = len(self.session._window), stream.n_states
        if self.carry == "encoder":
            states = states_of(system, self.samples)[self.n_states :][:window]
        else:
            heard = self.samples[self.n_states * UNIT_SAMPLES :][: window * UNIT_SAMPLES]
            states = states_of(system, heard, engine.n_frames)
        assert 0 < visible <= len(states) and engine.tokens == kept
        # what each cross-attention has read, against one state after the other
        for attention in attentions(system.model.decoder):
            if not attention.encoder_decoder_attention:
                continue
            memory = engine._state[attention.slot]
            assert 0 < memory.written == visible
            self.same(memory.state.tensors(), self.read_singly(attention, states[:visible]), visible)
        # what is written next, against all of the text and audio at once
        tokens = torch.tensor([[2, *engine.tokens]])
        logits, _ = whole_pass(system, tokens, states[:visible], PassOptions())
        stream.fork().engine.step(visible)
        torch.testing.assert_close(self.said.taken()[-1], logits, rtol=1e-10, atol=1e-10)
        self.n_checked += 1

    @staticmethod
    def same(found: dict[str, Tensor], expected: dict[str, Tensor], n_read: int) -> None:
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            pair = found[name], tensor
            if pair[0].shape != tensor.shape:  # a cache with room for more keys
                pair = tuple(one.narrow(2 if one.dim() == 4 else 1, 0, n_read) for one in pair)
            torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10)

    @staticmethod
    @torch.no_grad()
    def read_singly(attention: Any, states: Tensor) -> dict[str, Tensor]:
        memory, singly = Memory(None), attention.mechanism.capabilities.append
        with attention.context.own(PassOptions()):
            for end in range(1 if singly else len(states), len(states) + 1):
                attention._source_state(memory, states[:end], None, attention.mask)
        return memory.state.tensors()


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Follower]:
    """Plays a session whose streams take over in turn, with a check of each of them."""
    monkeypatch.setattr(session_module, "forgettable", goes_on)
    follow = TranslationStream.follow

    def play(system: TranslationSystem, samples: np.ndarray, carry: str, n_more: int = 0) -> Follower:
        made = Follower(samples, carry, Session(system, OPTIONS, WINDOW, SOURCES[carry]), Said(system))

        def checked(self: TranslationStream, before: TranslationStream, n_tokens: int, n_states: int) -> None:
            kept, aligned = before.engine.tokens[n_tokens:], before.aligned[n_tokens:]
            with monkeypatch.context() as patch:  # the policy, which writes more, comes after the check
                patch.setattr(type(self.policy), "write", lambda *_: None)
                follow(self, before, n_tokens + n_more, n_states)
            made.check(self, kept, n_states)
            assert self.aligned == [max(0, state - n_states) for state in aligned] and len(aligned) == len(kept)
            self.policy.write(self)

        monkeypatch.setattr(TranslationStream, "follow", checked)
        heard(made.session, samples)
        monkeypatch.setattr(TranslationStream, "follow", follow)
        return made

    return play


def cross_plans() -> list[str]:
    """All mechanisms that serve cross-attention while the source arrives."""
    about = {plan: MECHANISMS[plan].capabilities for plan in PLANS}
    return [plan for plan, one in about.items() if "decoder-cross" in one.blocks and one.incremental]


@in_turn(plan=shared_out(cross_plans(), 0), encoder=["causal", "whole"])
def test_states_are_those_of_the_kept_audio_and_text(
    system_of: Make, follower, speech, plan: str, encoder: str
) -> None:
    try:
        system = system_of(encoder, plan=plan)
    except LeapformerError:
        assert encoder == "causal"  # it reads whole utterances only
        system = system_of("whole", plan=plan)
    assert follower(system, speech(4.0), "none").n_checked >= 2


@pytest.mark.parametrize(
    ("policy", "plan", "carry", "encoder"),
    each_with_one(
        POLICIES,
        [
            ("leap", "encoder", "ahead"),
            ("softmax", "encoder", "causal"),
            ("leap", "none", "causal"),
            ("softmax", "none", "ahead"),
        ],
    ),
)
def test_states_under_every_policy(
    system_of: Make, follower, speech, plan: str, carry: str, encoder: str, policy: PolicyOptions
) -> None:
    played = follower(system_of(encoder, policy, plan), speech(4.0), carry)
    assert played.n_checked >= 2 and played.session.n_tokens > 20


def test_what_is_not_that_is_found(system_of: Make, follower, speech, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inverted control: a token more or less is kept, or other audio."""
    for n_more in (-1, 1):
        with pytest.raises(AssertionError):
            follower(system_of(), speech(3.0), "none", n_more)
    give = session_module.Samples.give
    monkeypatch.setattr(session_module.Samples, "give", lambda self, stream, unit: give(self, stream, unit * 0.99))
    with pytest.raises(AssertionError):
        follower(system_of(), speech(3.0), "none")


# ------------------------------------------------------------------------------------------------------ the whole talk
@pytest.fixture
def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions forget in turn."""
    monkeypatch.setattr(session_module, "forgettable", goes_on)


def finals(events: list[Event]) -> list[Event]:
    return [event for event in events if event.final]


@pytest.mark.parametrize("unit", EMITTERS)
def test_the_text_goes_on_as_if_nothing_was_forgotten(
    system_of: Make, forgetting, speech, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    """Words are whole, none is lost and none comes twice, though each emitter keeps the last words only."""
    pushed, kept = list[int](), list[int]()
    push = WordEmitter.push
    monkeypatch.setattr(WordEmitter, "push", lambda self, tokens: pushed.extend(tokens) or push(self, tokens))
    forget = WordEmitter.forget
    monkeypatch.setattr(WordEmitter, "forget", lambda self, n: forget(self, n) or kept.append(len(self._tokens)))
    system = system_of()
    session = Session(system, replace(OPTIONS, unit=unit), WINDOW)
    text, size = "", None
    for event in heard(session, speech(9.0)):
        text += event.text if unit == "char" else " " + event.text
        size = event.segment
    expected = system.detokenizer.decode(pushed)
    assert text.replace(" ", "") == expected.replace(" ", "") and size == session.n_segments == 1
    assert unit == "char" or text.split() == expected.split()
    assert len(kept) > 5 and max(kept) < len(pushed) / 3 and session.n_tokens == len(pushed)


@in_turn(policy=POLICIES, carry=["none", "encoder"])
def test_what_is_written_depends_on_the_audio_alone(
    system_of: Make, forgetting, speech, carry: str, policy: PolicyOptions
) -> None:
    """Not on how it is cut, nor on drafts."""
    system, samples = system_of("ahead", policy), speech(2.0)
    expected = heard(Session(system, OPTIONS, WINDOW, SOURCES[carry]), samples, 640)
    assert len(expected) > 2
    for size, drafts in (999, False), (64_000, True):
        found = heard(Session(system, OPTIONS, WINDOW, SOURCES[carry], drafts), samples, size)
        assert finals(found) == expected and drafts == (len(found) > len(expected))


def test_attention_itself_decides(looking: Make, speech) -> None:
    """Nothing in place of it: a softmax model whose attention happens to go on."""
    system, samples = looking(plan="softmax"), speech(20.0)
    session = Session(system, OPTIONS, replace(WINDOW, max_seconds=8))
    longest, forgotten = 0, set()
    for start in range(0, len(samples), UNIT_SAMPLES):
        list(session.push(samples[start : start + UNIT_SAMPLES]))
        longest = max(longest, len(session._window))
        forgotten.add(session._forgotten)
    assert len(forgotten) > 3 and longest <= 8 * 25 and session.n_segments <= 2
    assert all(units >= LEAST for _, units in forgotten if units)


@pytest.mark.parametrize("kind", ["seconds", pytest.param("pause", marks=pytest.mark.full)])
def test_what_is_settled_is_what_was_forgotten(
    system_of: Make, speech, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By sample and by letter, with silence that has no place, at the beginning and twice in what is kept."""
    monkeypatch.setattr(
        session_module, "forgettable", lambda *its: goes_on(*its) if its[0].engine.ready > 94 else (0, 0)
    )
    system = system_of()
    silence = [np.zeros(round(seconds * SAMPLE_RATE), np.float32) for seconds in (0.7, 1.8, 1.6, 1.211, 1.511)]
    parts = [part for i, quiet in enumerate(silence) for part in (quiet, speech(0.7 + 0.2 * i, i))]
    samples = np.concatenate(parts)
    session, text, places = Session(system, OPTIONS, replace(WINDOW, kind=kind)), "", set[int]()
    for piece in np.split(samples, range(2777, len(samples), 2777)):
        for event in session.push(piece):
            text = "" if event.ends else text + "".join(event.text.split())
        places.add(session.settled)
        window = np.concatenate([np.zeros(0, np.float32), *session._window])
        window, rest = (part[part != 0] for part in (window, samples[session.settled : session.n_samples]))
        np.testing.assert_array_equal(rest[: len(window)], window)
        assert len(rest) - len(window) < 2 * UNIT_SAMPLES or kind == "pause"
        if session._stream is not None:
            assert (text[session.settled_letters :]) == "".join(kept_text(session._stream).split())
    assert len(places) > 2 and max(places) > len(samples) - 4 * SAMPLE_RATE


def kept_text(stream: TranslationStream) -> str:
    """What was flushed of the text that a stream has in mind."""
    emitter = stream.emitter
    return emitter._detokenizer.decode(emitter._tokens[: emitter._n_sent])


def test_a_window_that_cannot_forget_ends_the_segment_when_it_is_full(system_of: Make, speech) -> None:
    """As one without a window does: text that looks at the beginning only, or no text at all."""
    window = replace(WINDOW, history_words=1000, max_seconds=1.0)
    plain = replace(window, history="segment")
    found = [heard(Session(system_of(), OPTIONS, segments), speech(3.5)) for segments in (window, plain)]
    assert found[0] == found[1] and found[0][-1].segment == 4


def test_a_pause_ends_a_segment_of_which_much_is_forgotten(system_of: Make, forgetting, speech) -> None:
    segments = replace(WINDOW, kind="pause", pause_ms=200, max_seconds=3.0)
    samples = np.concatenate([speech(6.0), np.zeros(16_000, np.float32), speech(4.0)])
    session = Session(system_of(), OPTIONS, segments)
    events = heard(session, samples)
    assert [round(event.audio_s, 2) for event in events if event.ends] == [6.2, 11.0]
    assert not [event for event in events if 6.2 < event.audio_s <= 7.0], "silence gives no text"


def test_tokens_of_a_segment_are_counted_though_they_are_forgotten(system_of: Make, forgetting, speech) -> None:
    session = Session(system_of(), OPTIONS, replace(WINDOW, kind="tokens", tokens=30))
    counts, before = list[int](), 0
    for event in heard(session, speech(10.0), 640):
        if event.ends:
            counts.append(session.n_tokens - before)
            before = session.n_tokens
    assert session.n_segments >= 2 and before > 60


def held(session: Session, speech, times: int) -> list[tuple[int, int]]:
    """What a session holds after each of so many times the same sound: bytes of tensors and arrays, items of lists."""
    once, found = speech(27 * 0.04), list[tuple[int, int]]()  # as much as `goes_on` forgets
    for i in range(times):
        list(session.push(once))
        if i % 4 == 3:
            stream = session._stream
            lists = session._window, stream.engine.tokens, stream.emitter._tokens, stream.aligned
            found.append((held_bytes(session), sum(map(len, lists))))
    return found


@in_turn(plan=["leap", "softmax"], carry=["encoder", "none"])
def test_nothing_grows(system_of: Make, forgetting, speech, plan: str, carry: str) -> None:
    system = system_of(plan=plan)
    words = [i for i in range(4, 34) if system.detokenizer.piece(i).startswith(WORD_START)]
    system = replace(system, forbidden=tuple(set(range(34)) - set(words)))  # the same number is always kept then
    session = Session(system, OPTIONS, WINDOW, SOURCES[carry])
    found = held(session, speech, 16)
    assert session.n_segments == 0 and session._forgotten[1] > 12 * LEAST
    assert len(found) == 4 and len(set(found[2:])) == 1


def test_audio_that_comes_at_once_is_not_kept(system_of: Make, forgetting, speech) -> None:
    session, samples = Session(system_of(), OPTIONS, WINDOW), speech(10.0)
    list(session.push(samples))
    assert sum(piece.base.nbytes if piece.base is not None else piece.nbytes for piece in session._window) < 400_000


def test_a_policy_that_compares_drafts_has_one_after_a_cut(
    system_of: Make, forgetting, speech, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else local agreement would be a step late after every cut."""
    follow, drafts = TranslationStream.follow, list[int]()
    monkeypatch.setattr(
        TranslationStream,
        "follow",
        lambda self, *args: follow(self, *args) or drafts.append(len(self.policy._drafts)),
    )
    heard(Session(system_of(policy=PolicyOptions("local-agreement", align_layer=2)), OPTIONS, WINDOW), speech(4.0))
    assert drafts and set(drafts) == {1}


def test_without_a_window_it_grows(system_of: Make, speech) -> None:
    """The inverted control."""
    found = held(Session(system_of(), OPTIONS, replace(WINDOW, history_words=1000)), speech, 12)
    assert found[2] > found[1] > found[0]


def test_no_ngram_of_the_window_comes_again(system_of: Make, forgetting, speech) -> None:
    """Also over a cut, and what was forgotten may be said again."""
    written = {n: Written(system_of(), n, speech(6.0)) for n in (0, 2, 3)}
    for size in (2, 3):
        assert written[0].repeats(size) > 3 and written[size].repeats(size) == 0
        tokens = written[size].tokens
        grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
        assert len(set(grams)) < len(grams)


class Written:
    """All tokens of a session, each with those before it that were kept in mind."""

    def __init__(self, system: TranslationSystem, guard: int, samples: np.ndarray) -> None:
        self.tokens, self.before = list[int](), list[list[int]]()
        commit, written = TranslationStream._commit, self

        def noted(self: TranslationStream, token: int) -> None:
            written.before.append(self.engine.tokens)
            written.tokens.append(token)
            commit(self, token)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TranslationStream, "_commit", noted)
            session = Session(system, replace(OPTIONS, no_repeat_ngram_size=guard), WINDOW)
            heard(session, samples)
        assert len(self.tokens) > 50 and max(map(len, self.before)) < len(self.tokens) / 2

    def repeats(self, size: int) -> int:
        return sum(token in repeating(kept, size) for token, kept in zip(self.tokens, self.before, strict=True))


def test_another_k_holds_since_something_is_forgotten(system_of: Make, forgetting, speech) -> None:
    session = Session(system_of(), OPTIONS, WINDOW)
    list(session.push(speech(2.0)))
    session.use_lagging(9)
    list(session.push(speech(0.04)))
    list(session.push(speech(3.0)))
    assert session._forgotten[1] and session._stream.system.policy.k == 9


def test_sessions_in_threads_write_what_they_write_alone(system_of: Make, forgetting, switching, speech) -> None:
    systems = [replace(system_of("ahead"), policy=policy) for policy in POLICIES]
    systems = [replace(systems[0], policy=system.policy) for system in systems]  # one model

    def work(i: int) -> Any:
        carry = "encoder" if i % 2 else "none"
        return lambda: heard(Session(systems[i], OPTIONS, WINDOW, SOURCES[carry], drafts=i > 1), speech(1.9, i))

    works = [work(i) for i in range(len(systems))]
    alone = [one() for one in works]
    assert at_once(works) == alone and len({str(one) for one in alone}) == len(works)


# ------------------------------------------------------------------------------------------------------------- options
def parsed(*words: str) -> SegmentOptions:
    parser = ArgumentParser()
    add_system_options(parser)
    add_segment_options(parser)
    return segment_options(parser.parse_args(["--checkpoint", "x", *words]))


def test_a_window_needs_no_pauses_unless_they_are_asked_for() -> None:
    assert parsed() == SegmentOptions()
    assert parsed("--history", "window", "--history-words", "7") == SegmentOptions(
        "seconds", history="window", history_words=7
    )
    both = parsed("--history", "window", "--segment", "pause", "--silence-db", "-50")
    assert both == SegmentOptions("pause", history="window", silence_db=-50)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history": "all"}, "--history 'all': choose from segment, window"),
        ({"history_words": 0}, "--history-words 0: give"),
        ({"silence_db": 0.0}, "--silence-db 0.0: give"),
        ({"silence_db": float("nan")}, "--silence-db nan: give"),
    ],
)
def test_impossible_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(LeapformerError, match=message):
        SegmentOptions(**options)


def test_a_policy_that_never_writes_is_refused(system_of: Make) -> None:
    system = system_of(policy=PolicyOptions("offline"))
    with pytest.raises(LeapformerError, match="--history window: --policy offline .*take another policy") as error:
        Session(system, OPTIONS, WINDOW)
    assert "\n" not in str(error.value)
    Session(system, OPTIONS)


NEEDED = ["--checkpoint", "x", "--data-root", "x", "--history", "window", "--history-words", "3", "--max-len-b", "40"]


@pytest.mark.parametrize("command", [stream_command, serve_command], ids=["stream", "serve"])
def test_commands_make_sessions_that_forget(
    system_of: Make, monkeypatch: pytest.MonkeyPatch, command: ModuleType
) -> None:
    monkeypatch.setattr(loading, "load_system", lambda *args: system_of())
    args = parse(command, [*(["talk.wav"] if command is stream_command else []), *NEEDED])
    session = load_sessions(args)[2](True)
    assert session.segments == SegmentOptions("seconds", history="window", history_words=3)


def test_a_recording_is_streamed(
    system_of: Make, forgetting, speech, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    system, samples = system_of(), speech(6.0)
    soundfile.write(tmp_path / "talk.wav", samples, 16_000, subtype="FLOAT")
    monkeypatch.setattr(loading, "load_system", lambda *args: system)
    assert cli.main(["stream", str(tmp_path / "talk.wav"), *NEEDED]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == text_of(heard(Session(system, OPTIONS, WINDOW), samples)) != [""]
    assert "segments: 1;" in err
    system = system_of(policy=PolicyOptions("offline"))
    assert cli.main(["stream", str(tmp_path / "talk.wav"), *NEEDED, "--policy", "offline"]) != 0
    assert len(capsys.readouterr().err.splitlines()) == 1
