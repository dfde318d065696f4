"""Many live sessions of one model: in threads, by turns, forked and cancelled, each writes what it writes alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leapformer_fairseq.attention import Mechanism, step_of
from leapformer_fairseq.attention import block as attention_block
from leapformer_fairseq.modules import PassContext, attentions
from leapformer_fairseq.modules.capture import capture, choose
from leapformer_fairseq.runtime.cmvn import Cmvn
from leapformer_fairseq.runtime.simul.policy import POLICIES, PolicyOptions
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream
from leapformer_fairseq.runtime.simul.text import Detokenizer
from leapformer_fairseq.runtime.simul.times import ComputeTimes
from leapformer_fairseq.simul.engine import RecomputeEngine
from leapformer_fairseq.simul.system import TranslationSystem
from tests.covering import kept
from tests.models.tiny import make_model
from tests.scripted import policy_of
from tests.simul.sources import SOURCES
from tests.simul.test_threads import ENCODERS, at_once

SESSIONS, THREADS = 12, 4  # two sessions of every policy, and two more
SEGMENTS = SegmentOptions("seconds", min_seconds=0.2, max_seconds=0.3)
Speech = Callable[[float, int], np.ndarray]
Found = list[Any]
Play = Callable[[Found], Iterator[None]]


class Cancelled(Exception):
    """A session that is stopped in the middle of a pass."""


_left = threading.local()  # layers that may still run in this thread


def _may_run(*_: Any) -> None:
    _left.layers = getattr(_left, "layers", 10**9) - 1
    if _left.layers < 0:
        raise Cancelled


@contextmanager
def cancelled_after(layers: int) -> Iterator[None]:
    """Cancel whatever runs in this block once so many layers have run."""
    _left.layers = layers
    try:
        yield
    except Cancelled:
        pass
    finally:
        _left.layers = 10**9


@pytest.fixture
def system_of(spm_model: Path, symbols: list[str]) -> Callable[[str], TranslationSystem]:
    """Builds a system around a small random model, as `load_system` leaves it; its own lagging is that of training."""
    words = [symbol for symbol in symbols if not symbol.startswith("<0x")]

    def make(encoder: str) -> TranslationSystem:
        # With the whole encoder, the carry rules out a lagging of the model.
        lagging = "offline" if encoder == "whole" else "1"
        options = {"waitk_lagging": lagging, "fixed_pre_decision_ratio": 3, "input_feat_per_channel": 80}
        model = make_model("leapformer_simulst_tiny", **{**options, **ENCODERS[encoder]}).float()
        model.make_generation_fast_(need_attn=False)
        for layer in (*model.encoder.transformer_layers, *model.decoder.layers):
            layer.fc1.register_forward_pre_hook(_may_run)
        cmvn = Cmvn(np.full(80, 8.0, np.float32), np.full(80, 3.0, np.float32))
        return TranslationSystem(model, 2, (0, 1, 3), Detokenizer(words, spm_model), cmvn, PolicyOptions(k=2), 12)

    return make


@dataclass
class Talk:
    """A session to play; what it writes and when goes to a list, step by step."""

    number: int
    system: TranslationSystem
    options: DecodingOptions
    pieces: list[np.ndarray]
    carry: str

    def session(self, found: Found) -> Iterator[None]:
        """Speech without end, with drafts in every second session; others may go on after every event."""
        session = Session(self.system, self.options, SEGMENTS, SOURCES[self.carry], drafts=self.number % 2 == 0)
        calls: list[Iterator[Any]] = [*map(session.push, self.pieces), session.finish()]
        for events in calls:
            for event in events:
                found.append((event, session.n_tokens, session.times.decoder_steps, session.times.encoder_passes))
                yield
            yield

    def stream(self, found: Found) -> Iterator[None]:
        """One utterance; at every piece a fork hears something else to its end, and another is cancelled midway."""
        stream = TranslationStream(self.system, self.options)
        for at, piece in enumerate(self.pieces):
            fork, doomed = stream.fork(), stream.fork()
            with cancelled_after(at + 1):
                hears(doomed, self.pieces[0], last=True)
            yield
            found.append(hears(stream, piece, at == len(self.pieces) - 1))
            yield
            found.append(hears(fork, self.pieces[-1], last=True))
            yield

    def unforked(self, found: Found) -> Iterator[None]:
        """What `stream` must find, by streams that are never forked."""
        for at, piece in enumerate(self.pieces):
            for then, last in ((piece, at == len(self.pieces) - 1), (self.pieces[-1], True)):
                stream = TranslationStream(self.system, self.options)
                for before in self.pieces[:at]:
                    hears(stream, before, last=False)
                found.append(hears(stream, then, last))
                yield

    def lost(self, found: Found) -> Iterator[None]:
        """A session that is cancelled in the middle of a pass, for good."""
        session = Session(self.system, self.options, SEGMENTS, SOURCES[self.carry], drafts=True)
        events, going = session.push(np.concatenate(self.pieces)), True
        while going:
            going = False
            with cancelled_after(7 + self.number):
                going = next(events, None) is not None
            yield


def hears(stream: TranslationStream, piece: np.ndarray, last: bool) -> tuple[Any, ...]:
    """Let a stream hear a piece of its utterance; what it writes, would write if it ended here, and wrote before."""
    stream.push(piece)
    stream.advance(source_finished=last)
    text, draft = stream.flush(final=last), None if last else stream.draft()
    return text, draft, stream.engine.tokens, stream.n_samples


def talks(system: TranslationSystem, speech: Speech, count: int, forks: bool = True) -> list[Play]:
    """Sessions and streams in turn, under all policies, with k from 1 to 4 and other numbers and options."""
    found: list[Play] = []
    for i in range(count):
        name, kind = list(POLICIES)[i % len(POLICIES)], i // len(POLICIES) % 2
        k = 1 + i % 4
        policy = policy_of(name, k=k, hold=k - 1, agree=2 + i % 2, align_frames=k, align_layer=1 + i % 2)
        options = DecodingOptions(
            max_len_b=4 + k,
            max_draft=5,
            unit=("word", "char")[i % 2],
            early_eos=("mask", "wait")[i // 2 % 2],
            no_repeat_ngram_size=i % 3,
        )
        carry = "encoder" if i % 3 == 1 and system.model.encoder.chunks is not None else "none"
        pieces = np.array_split(speech(0.36 + 0.02 * (i % 7), i), 2 + i % 3)
        talk = Talk(i, replace(system, policy=policy, step_frames=(12, 20)[i % 2]), options, pieces, carry)
        found.append((talk.stream if forks else talk.unforked) if kind else talk.session)
    return found


def by_turns(plays: list[Play], seed: int) -> list[Found]:
    """What each play finds when at every moment any of them goes on; an error ends them all."""
    found: list[Found] = [[] for _ in plays]
    going = [play(own) for play, own in zip(plays, found, strict=True)]
    draw = random.Random(seed)
    while going:
        chosen = draw.choice(going)
        if next(chosen, going) is going:
            going.remove(chosen)
    return found


def alone(plays: list[Play]) -> list[Found]:
    return [by_turns([play], 0)[0] for play in plays]


def in_threads(plays: list[Play], doomed: list[Play]) -> list[Found]:
    """The same in threads, each with some of them by turns and one that is cancelled."""
    groups = [[*plays[t::THREADS], *doomed[t::THREADS]] for t in range(THREADS)]
    results = at_once([lambda t=t, group=group: by_turns(group, t) for t, group in enumerate(groups)])
    return [results[i % THREADS][i // THREADS] for i in range(len(plays))]


@contextmanager
def other_users(model: Any) -> Iterator[None]:
    """Meanwhile another thread changes whatever a user of the same model may set for a use of its own."""
    over = threading.Event()

    def use() -> None:
        for k in iter(lambda: None if over.is_set() else random.randint(1, 3), None):
            model.set_lagging(k)
            for attention in attentions(model.decoder):
                attention.make_generation_fast_(need_attn=k > 1)
            model.eval()
            over.wait(0.001)

    user = threading.Thread(target=use)
    user.start()
    try:
        yield
    finally:
        over.set()
        user.join()


@contextmanager
def unowned(context: PassContext, options: Any) -> Iterator[None]:
    """A pass as it must not be: by the settings of the model."""
    yield


# ------------------------------------------------------------------------------------------------ in threads, by turns
def test_many_sessions_in_threads_write_what_they_write_alone(
    switching: None, system_of: Callable[[str], TranslationSystem], speech: Speech
) -> None:
    system = system_of("causal")
    plays = talks(system, speech, SESSIONS)
    doomed = [Talk(i, system, DecodingOptions(max_len_b=6), [speech(0.3, i)] * 2, "none").lost for i in range(THREADS)]
    expected = alone(talks(system, speech, SESSIONS, forks=False))
    assert sum(map(len, expected)) > 4 * SESSIONS and len({str(one) for one in expected}) == SESSIONS
    with other_users(system.model):
        assert in_threads(plays, doomed) == expected


@pytest.mark.parametrize("encoder", kept(ENCODERS, "causal"))
def test_sessions_by_turns_write_what_they_write_alone(
    system_of: Callable[[str], TranslationSystem], speech: Speech, encoder: str
) -> None:
    system = system_of(encoder)
    plays = talks(system, speech, 10)
    doomed = [Talk(i, system, DecodingOptions(max_len_b=6), [speech(0.3, i)] * 2, "none").lost for i in range(3)]
    expected = alone(talks(system, speech, 10, forks=False))
    with other_users(system.model) if encoder != "whole" else nullcontext():
        assert by_turns([*plays, *doomed], seed=1)[:10] == expected


def test_passes_by_the_settings_of_the_model_go_wrong(
    system_of: Callable[[str], TranslationSystem], speech: Speech, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inverted control: the same talks, without policies that need attention, which would not run at all."""
    system = system_of("causal")
    system.model.set_lagging(None)
    plays = [
        play for i, play in enumerate(talks(system, speech, 10)) if not [*POLICIES.values()][i % len(POLICIES)].attends
    ]
    expected = alone(plays)
    monkeypatch.setattr(PassContext, "own", unowned)
    assert alone(plays) == expected
    system.model.set_lagging(1)
    assert by_turns(plays, seed=1) != expected


def test_a_session_that_was_left_midway_is_over(system_of: Callable[[str], TranslationSystem], speech: Speech) -> None:
    session = Session(system_of("causal"), DecodingOptions(max_len_b=6), SEGMENTS)
    events = session.push(speech(0.7, 0))
    next(events)
    with pytest.raises(RuntimeError, match="another call runs"):
        list(session.push(speech(0.1, 0)))
    events.close()
    with pytest.raises(RuntimeError, match="left midway"):
        list(session.finish())


# ------------------------------------------------------------------------------------------------ what sessions share
def test_weights_exist_once(
    switching: None, system_of: Callable[[str], TranslationSystem], speech: Speech, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the copies that decoding steps hold, however many sessions need the first one at the same moment."""
    system, together, prepared = system_of("causal"), threading.Barrier(THREADS), []

    def counted(mechanism: Mechanism, projections: Any) -> Any:
        prepared.append(mechanism)
        threading.Event().wait(0.05)  # the others come meanwhile
        return step_of(mechanism, projections)

    monkeypatch.setattr(attention_block, "step_of", counted)

    def first_token(i: int) -> set[int]:
        policy = PolicyOptions(k=1 + i % 4)
        stream = TranslationStream(replace(system, policy=policy), DecodingOptions(max_len_b=3))
        stream.push(speech(0.6, i))
        together.wait()
        stream.advance(source_finished=True)
        return {memory.step.weight.data_ptr() for memory in stream.engine._state.values()}

    used = at_once([lambda i=i: first_token(i) for i in range(THREADS)])
    blocks = len(list(attentions(system.model.decoder)))
    assert len(prepared) == blocks == len(set(prepared))
    assert all(one == used[0] for one in used) and len(used[0]) == blocks


def test_whoever_captures_sees_no_session(system_of: Callable[[str], TranslationSystem], speech: Speech) -> None:
    """Sessions in other threads, and one in the same thread, while a sentence is looked at."""
    system = system_of("whole")
    batch = {
        "src_tokens": torch.randn(1, 40, 80),
        "src_lengths": torch.tensor([40]),
        "prev_output_tokens": torch.tensor([[2, 5, 6]]),
    }
    chosen = choose(system.model)
    expected = [one.q for one in capture(system.model, batch, chosen)]
    plays, ran = talks(system, speech, 2), list[int]()

    def run_sessions(*_: Any) -> None:
        if not ran:
            ran.append(1)
            at_once([lambda: alone(plays)])
            alone(plays)

    hook = system.model.decoder.layers[0].fc1.register_forward_hook(run_sessions)
    found = [one.q for one in capture(system.model, batch, chosen)]
    hook.remove()
    assert ran and len(found) == len(expected) and all(map(torch.equal, found, expected))


def test_a_pass_inherits_and_leaves_nothing(system_of: Callable[[str], TranslationSystem], speech: Speech) -> None:
    """What a generator said in this thread, and what a cancelled session said, hold for themselves alone."""
    system = system_of("whole")
    play, context = talks(system, speech, 1)[0], system.model.decoder.context
    expected = alone([play])
    context.beam_size, context.prompt = 3, torch.tensor([[2, 5]])
    before = dict(vars(context))
    assert alone([play]) == expected
    stream = TranslationStream(system, DecodingOptions(max_len_b=6))
    stream.push(speech(0.4, 0))
    with cancelled_after(3):  # in the decoder, behind the first layer
        stream.advance(source_finished=True)
    assert stream.times.encoder_passes and not stream.n_tokens
    assert vars(context) == before and not context.facts.last


def test_a_source_is_read_again_though_times_begin_again(make_system: Callable[..., TranslationSystem]) -> None:
    """Whoever counts computation, per utterance or for all, has no influence on what is written."""
    one = RecomputeEngine(make_system().model, 2)
    one.feed(np.zeros((28, 80), np.float32))
    one.step()
    one.commit(5)
    snapshot = one.snapshot()
    one.times = ComputeTimes()
    one.feed(np.ones((28, 80), np.float32))
    expected = one.step()
    assert one.times.encoder_passes == 1
    one.restore(snapshot)
    assert torch.equal(one.step(), expected)
