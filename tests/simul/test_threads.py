"""One model in many threads at once: every thread writes what it writes alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding

from leapformer_fairseq.modules import PassContext, swap
from leapformer_fairseq.modules.positions import grow_in_turn
from leapformer_fairseq.runtime.cmvn import Cmvn
from leapformer_fairseq.runtime.simul.policy import POLICIES, PolicyOptions
from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.runtime.simul.text import Detokenizer
from leapformer_fairseq.simul.batch import translate_batch
from leapformer_fairseq.simul.system import TranslationSystem
from tests.models import test_lm as lm
from tests.models import test_nmt as nmt
from tests.models.tiny import make_model, text_batch
from tests.scripted import policy_of
from tests.simul.sources import SOURCES

THREADS = 8
Work = Callable[[], Any]
OPTIONS = DecodingOptions(max_len_b=6, max_draft=4)
SEGMENTS = SegmentOptions("seconds", min_seconds=0.2, max_seconds=0.3)
ENCODERS: dict[str, dict[str, Any]] = {
    "whole": {"plan": "luna"},  # with a carry from layer to layer and to the decoder
    "causal": {"plan": "leap", "encoder_causal": True},
    "chunks": {"plan": "softmax,leap", "encoder_chunk_ms": 240, "encoder_right_context_ms": 120},
}


class SharedContext:
    """A PassContext as it must not be: every thread has the same one."""

    __init__, hand_over = PassContext.__init__, PassContext.hand_over
    own, value = PassContext.own, PassContext.value


def at_once(works: list[Work]) -> list[Any]:
    """What each work gives in a thread of its own; all begin at the same moment. Raises what one of them raised."""
    found: list[Any] = [None] * len(works)
    start = threading.Barrier(len(works))

    def run(i: int) -> None:
        start.wait()
        try:
            found[i] = works[i]()
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in filter(lambda one: isinstance(one, Exception), found):
        raise AssertionError(f"a thread failed: {error!r}") from error
    return found


def check(works: list[Work], rounds: int = 1) -> None:
    """Raise AssertionError where a work, which gives text and scores, gives others at once with the rest than alone."""
    alone = [work() for work in works]
    for _ in range(rounds):
        for (text, scores), (expected, expected_scores) in zip(at_once(works), alone, strict=True):
            assert text == expected
            torch.testing.assert_close(scores, expected_scores, rtol=0, atol=1e-5)


def check_fails(works: list[Work]) -> None:
    """The inverted control: with one context for all threads it must go wrong, here or in the middle of a pass."""
    with pytest.raises(AssertionError):
        check(works, rounds=20)


# ---------------------------------------------------------------------------------------------- speech that arrives
@pytest.fixture
def sessions(spm_model: Path, symbols: list[str], speech: Callable[[float, int], np.ndarray]) -> Callable[..., Any]:
    """Builds as many works as threads with one model: sessions with other audio, under all policies in turn."""
    words = [symbol for symbol in symbols if not symbol.startswith("<0x")]

    def make(encoder: str) -> list[Work]:
        options = {"waitk_lagging": 2, "fixed_pre_decision_ratio": 3, "input_feat_per_channel": 80}
        model = make_model("leapformer_simulst_tiny", **{**options, "waitk_lagging": "offline", **ENCODERS[encoder]})
        model = model.float()
        cmvn = Cmvn(np.full(80, 8.0, np.float32), np.full(80, 3.0, np.float32))
        system = TranslationSystem(model, 2, (0, 1, 3), Detokenizer(words, spm_model), cmvn, PolicyOptions(k=2), 12)
        said = threading.local()
        model.decoder.register_forward_hook(lambda _, __, output: said.logits.append(output[0][0, -1].detach()))

        def work(i: int, policy: str) -> Any:
            carry = "encoder" if i % 2 and encoder != "whole" else "none"
            own = replace(system, policy=policy_of(policy, k=2, hold=1, align_layer=2))
            samples = speech(0.4 + 0.03 * i, i)

            def listen() -> Any:
                said.logits = []
                session = Session(own, OPTIONS, SEGMENTS, SOURCES[carry], drafts=i % 3 == 0)
                events = [event for part in np.array_split(samples, 4) for event in session.push(part)]
                events += session.finish()
                return [(event.text, session.times.decoder_steps) for event in events], torch.stack(said.logits)

            return listen

        def in_a_batch() -> Any:
            """Whole utterances, by the schedule of wait-k: no session may follow it meanwhile."""
            said.logits = []
            streams = translate_batch(system, OPTIONS, [speech(0.4, i) for i in range(3)])
            return [stream.engine._script for stream in streams], torch.stack(said.logits)

        works = [work(i, policy) for i, policy in zip(range(THREADS), cycle(POLICIES), strict=False)]
        return works if encoder == "whole" else [*works[1:], in_a_batch]

    return make


@pytest.mark.parametrize("encoder", ENCODERS)
def test_sessions_write_what_they_write_alone(switching: None, sessions: Callable[..., Any], encoder: str) -> None:
    check(sessions(encoder))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_sessions_of_one_context_go_wrong(
    switching: None, sessions: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, encoder: str
) -> None:
    monkeypatch.setattr(swap, "PassContext", SharedContext)
    check_fails(sessions(encoder))


# ------------------------------------------------------------------------------------------------ fairseq's generator
def translations(plan: str, **options: Any) -> list[Work]:
    """Beam search in every thread, of other sentences and with other beams."""
    model = nmt.nmt(plan, **options)

    def work(i: int) -> Work:
        torch.manual_seed(i)
        batch = text_batch((9, 5 + i, 4))
        return lambda: hypotheses(nmt.generate([model], batch, beam=1 + i % 3))

    return [work(i) for i in range(THREADS)]


def continuations(plan: str = "leap") -> list[Work]:
    """A language model goes on with other prompts in every thread."""
    model = lm.lm(plan)

    def work(i: int) -> Work:
        torch.manual_seed(i)
        prompts = lm.sample((4 + i, 3 + i % 2))
        return lambda: hypotheses(lm.continued(model, prompts, beam=1 + i % 3))

    return [work(i) for i in range(THREADS)]


def hypotheses(found: list[list[dict[str, Any]]]) -> tuple[list[list[int]], torch.Tensor]:
    every = [hypothesis for best in found for hypothesis in best]
    return [one["tokens"].tolist() for one in every], torch.cat([one["positional_scores"] for one in every])


GENERATIONS: dict[str, Callable[[], list[Work]]] = {
    "carry": lambda: translations("luna"),
    "lengths": lambda: translations("cosformer", length_predictor="ratio", length_ratio=1.5, cosformer_length=0),
    "prompts": continuations,
}


@pytest.mark.parametrize("kind", GENERATIONS)
def test_generators_write_what_they_write_alone(switching: None, kind: str) -> None:
    check(GENERATIONS[kind]())


@pytest.mark.parametrize("kind", GENERATIONS)
def test_generators_of_one_context_go_wrong(switching: None, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(swap, "PassContext", SharedContext)
    check_fails(GENERATIONS[kind]())


# ------------------------------------------------------------------------------------------------ tables that grow
class SlowTable(SinusoidalPositionalEmbedding):
    """Another thread has its turn whenever this one looks at the table."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name == "weights":
            time.sleep(1e-4)
        return found


def enlarge(rounds: int, in_turn: bool) -> None:
    """New tables of positions that are too short for what the threads read, each longer and longer texts."""
    for _ in range(rounds):
        table = SlowTable(4, 1, init_size=8)
        if in_turn:
            grow_in_turn(table)
        at_once([partial(_read, table, range(10 + 5 * i, 300, 37)) for i in range(THREADS)])


def _read(table: SinusoidalPositionalEmbedding, lengths: range) -> None:
    for length in lengths:
        table(torch.full((1, length), 5))


def test_a_table_of_positions_grows_in_many_threads(switching: None) -> None:
    enlarge(10, in_turn=True)


def test_a_table_of_positions_that_is_not_protected_goes_wrong(switching: None) -> None:
    with pytest.raises(AssertionError, match="out of range|out of bounds"):
        enlarge(20, in_turn=False)
