"""Drafts by beam search, against all translations that there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leapformer_fairseq.runtime.simul.exported import ExportedSystem
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, System, TranslationStream
from leapformer_fairseq.support.errors import LeapformerError
from tests.exported import speech as exported_speech
from tests.scripted import ScriptedSystem, sound
from tests.simul.test_session import arriving  # noqa: F401  (a fixture)

WIDE = 80  # more hypotheses than there are symbols: of two tokens, none is lost
Scored = tuple[float, list[int]]


def drafting(system: System, samples: np.ndarray, policy: PolicyOptions | None = None, **options: Any) -> Any:
    """A stream that has heard this, and more may come."""
    stream = TranslationStream(replace(system, policy=policy or PolicyOptions("offline")), DecodingOptions(**options))
    stream.push(samples)
    stream.advance(source_finished=False)
    return stream


def all_translations(stream: TranslationStream, length: int) -> list[Scored]:
    """Every translation of at most `length` tokens, with the mean log-probability of its tokens and its end, if any.

    One step of the engine for each beginning, the softmax written out.
    """
    engine, system, found = stream.engine, stream.system, list[Scored]()

    def extend(tokens: list[int], total: float) -> None:
        before = engine.snapshot()
        engine.best(stream.n_states, system.forbidden)
        scores = engine.log_probabilities().astype(float)
        shares = np.exp(scores) / np.exp(scores).sum()
        for token in np.flatnonzero(shares):
            here = total + float(np.log(shares[token]))
            if token == system.eos:
                found.append((here / (len(tokens) + 1), tokens))
            elif len(tokens) + 1 == length:
                found.append((here / length, [*tokens, int(token)]))
            else:
                after = engine.snapshot()
                engine.commit(int(token))
                extend([*tokens, int(token)], here)
                engine.restore(after)
        engine.restore(before)

    extend([], 0.0)
    return sorted(found, key=lambda one: -one[0])


@pytest.mark.parametrize("kind", ["causal", "whole", "exported"])
def test_a_wide_beam_finds_the_best_of_all_translations(arriving, speech, kind: str) -> None:  # noqa: F811
    system = (
        ExportedSystem.load(exported_speech()[1].path, PolicyOptions(k=2)) if kind == "exported" else arriving(kind)
    )
    lengths = set()
    for seed in range(3):
        stream = drafting(system, speech(0.9, seed), max_draft=2, beam=WIDE)
        every = all_translations(stream, 2)
        best = stream.hypotheses()
        assert [token.id for token in best[0]] == every[0][1]
        assert len(best) == WIDE
        of_two = {tuple(tokens): score for score, tokens in every if len(tokens) == 2}
        for tokens in best:
            if len(tokens) == 2:  # those of fewer tokens have an end, which is no token of theirs
                score = np.mean([token.log_probabilities[token.id] for token in tokens])
                assert tuple(token.id for token in tokens) in of_two and score > min(of_two.values())
        lengths.add(len(best[0]))
        assert stream.n_tokens == 0, "nothing is committed"
    assert lengths <= {0, 1, 2}


def test_a_beam_of_one_is_greedy(arriving, speech) -> None:  # noqa: F811
    stream = drafting(arriving("causal"), speech(0.9), max_draft=5)
    greedy = stream.continuation()
    assert [tokens.id for tokens in stream._search(5)[0]] == [token.id for token in greedy]


def test_what_was_written_stays_and_is_where_the_search_begins(arriving, speech) -> None:  # noqa: F811
    """Drafts of hold-n after a part of the source, then the rest by a beam."""
    system = arriving("causal")
    for beam in (1, 4):
        stream = drafting(system, speech(1.5), PolicyOptions("hold-n", hold=2), beam=beam, max_len_b=9, max_draft=4)
        written = stream.tokens
        assert written
        stream.advance(source_finished=True)
        assert stream.tokens[: len(written)] == written and len(stream.tokens) <= 9


def test_limits_hold_for_the_rest() -> None:
    for limit, options in ((7, {"max_len_b": 7}), (5, {"max_after_read": 5}), (0, {"max_after_read": 0})):
        system = ScriptedSystem(PolicyOptions("offline"), ends=10**9)
        stream = TranslationStream(system, DecodingOptions(beam=3, **{"max_len_b": 20, **options}))
        stream.push(sound(4.0))
        stream.advance(source_finished=True)
        assert stream.n_tokens == limit
    with pytest.raises(LeapformerError, match="--beam 0: give the hypotheses of the search, at least 1"):
        DecodingOptions(beam=0)


def test_shared_prefix_writes_what_the_hypotheses_share() -> None:
    """And waits where they differ."""
    stream = drafting(ScriptedSystem(ends=10**9), sound(6.0), PolicyOptions("shared-prefix"), beam=3, max_draft=6)
    found = [[token.id for token in tokens] for tokens in stream.hypotheses()]
    assert len({tuple(tokens) for tokens in found}) == 3
    greedy = drafting(ScriptedSystem(ends=10**9), sound(6.0), PolicyOptions("shared-prefix"), max_draft=6)
    assert 0 < stream.n_tokens < greedy.n_tokens
