from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from leapformer_fairseq.runtime.simul.policies import (
    AlignAtt,
    EDAtt,
    HoldN,
    LocalAgreement,
    Offline,
    SharedPrefix,
    WaitK,
)
from leapformer_fairseq.runtime.simul.policy import POLICIES, PolicyOptions, Token
from leapformer_fairseq.support.errors import LeapformerError
from tests.scripted import policy_of


class ScriptedDraft:
    """A draft whose translation of the first n steps is `script[n - 1]`; the focus of a token is in `states`.

    Every hypothesis of a beam lacks one more of its last tokens, and then has a 99 instead.
    """

    def __init__(self, script: Sequence[Sequence[int]], states: Sequence[int] = (), states_per_step: int = 4) -> None:
        self.script, self.states, self.states_per_step = script, states, states_per_step
        self.n_steps = 0
        self.tokens: list[int] = []
        self.steps_of: list[int] = []  # steps read when each token was written

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_states(self) -> int:
        return self.n_steps * self.states_per_step

    def continuation(self) -> list[Token]:
        rest = [*enumerate(self.script[self.n_steps - 1])][self.n_tokens :]
        return [Token(token, weights=self.weights(place)) for place, token in rest]

    def weights(self, place: int) -> np.ndarray:
        """All of the attention goes to one state."""
        state = self.states[place] if place < len(self.states) else 0
        return np.eye(1, self.n_states, min(state, self.n_states - 1))[0]

    def hypotheses(self) -> list[list[Token]]:
        best = self.continuation()
        return [best, [*best[:-1], Token(99)], [*best[:-2], Token(99)]]

    def write_next(self) -> bool:
        rest = self.continuation()
        self.commit(rest[:1])
        return bool(rest)

    def write_while(self, accepts: Callable[[Token], bool]) -> None:
        while (rest := self.continuation()) and accepts(rest[0]):
            self.commit(rest[:1])

    def commit(self, tokens: Sequence[Token | int]) -> None:
        self.tokens += [token.id if isinstance(token, Token) else token for token in tokens]
        self.steps_of += [self.n_steps] * len(tokens)


def play(policy, draft: ScriptedDraft) -> ScriptedDraft:
    for _ in draft.script:
        draft.n_steps += 1
        policy.write(draft)
    return draft


def endless(n_steps: int, **options) -> ScriptedDraft:
    return ScriptedDraft([list(range(100))] * n_steps, **options)


def check_wait_k(policy: WaitK, k: int) -> None:
    for n_steps in range(1, 12):
        found = play(policy, endless(n_steps)).steps_of
        if found != [t + k for t in range(max(0, n_steps - k + 1))]:
            raise AssertionError(f"not wait-{k} on {n_steps} steps: {found}")


@pytest.mark.parametrize("k", [1, 2, 3, 5, 20])
def test_wait_k_writes_exactly_k_steps_behind(k: int) -> None:
    check_wait_k(WaitK(k=k), k)


def test_the_check_finds_a_policy_that_reads_one_step_too_many() -> None:
    with pytest.raises(AssertionError, match="not wait-3"):
        check_wait_k(WaitK(k=4), 3)


def test_catch_up_writes_more_tokens_for_each_step() -> None:
    assert play(WaitK(k=2, catch_up=2), endless(5)).steps_of == [2, 2, 3, 3, 4, 4, 5, 5]
    assert play(WaitK(k=2, catch_up=1.5), endless(5)).steps_of == [2, 2, 3, 4, 4, 5]
    assert play(WaitK(k=2, catch_up=0.5), endless(8)).steps_of == [2, 4, 6, 8]


def test_wait_k_stops_where_there_is_nothing_to_write() -> None:
    draft = play(WaitK(k=1), ScriptedDraft([[], [], [7, 8, 9], [7, 8, 9]]))
    assert draft.tokens == [7, 8, 9] and draft.steps_of == [3, 3, 3]


def test_offline_writes_nothing_before_the_end() -> None:
    assert play(Offline(), endless(9)).tokens == []


def test_hold_n_holds_back_the_last_tokens() -> None:
    draft = play(HoldN(hold=2), ScriptedDraft([[1], [1, 2, 3], [1, 5], [1, 5, 6, 7, 8]]))
    assert draft.tokens == [1, 5, 6] and draft.steps_of == [2, 4, 4]


def test_hold_0_writes_everything() -> None:
    assert play(HoldN(hold=0), ScriptedDraft([[1], [1, 2, 3]])).steps_of == [1, 2, 2]


def test_local_agreement_writes_what_the_last_translations_share() -> None:
    script = [[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6, 7], [1, 2, 4, 6]]
    two = play(LocalAgreement(agree=2), ScriptedDraft(script))
    assert two.tokens == [1, 2, 4, 6] and two.steps_of == [2, 2, 3, 4]
    three = play(LocalAgreement(agree=3), ScriptedDraft(script))
    assert three.tokens == [1, 2, 4] and three.steps_of == [3, 3, 4]


def test_local_agreement_forgets_between_utterances() -> None:
    options = PolicyOptions("local-agreement")
    draft = ScriptedDraft([[1, 2]])
    play(options.make(), ScriptedDraft([[1, 2]]))
    assert play(options.make(), draft).tokens == []


def test_alignatt_stops_at_a_token_that_looks_at_the_newest_states() -> None:
    draft = play(AlignAtt(align_frames=2), endless(4, states=[0, 1, 6, 7, 3, 14, 9]))  # 4, 8, 12, 16 states
    assert draft.steps_of == [1, 1, 3, 3, 3] and draft.tokens == [0, 1, 2, 3, 4]


def edatt(weights: Sequence[Sequence[float]], alpha: float, frames: int) -> int:
    """How many of these tokens, one after the other, EDAtt writes, each with its weights: equation 2 of the paper."""
    written = 0
    for row in weights:
        if sum(row[len(row) - frames :]) >= alpha:
            break
        written += 1
    return written


def test_edatt_writes_what_the_equation_says() -> None:
    draws, counts = np.random.default_rng(3), set()
    for alpha, frames in ((0.2, 1), (0.2, 3), (0.5, 2), (1.0, 4), (0.9, 99)):
        for _ in range(20):
            weights, draft = draws.dirichlet(np.full(9, 0.3), 6), ScriptedDraft([range(6)])
            draft.n_steps, draft.weights = 1, weights.__getitem__
            EDAtt(edatt_alpha=alpha, edatt_frames=frames).write(draft)
            assert draft.n_tokens == edatt(weights.tolist(), alpha, frames)
            counts.add(draft.n_tokens)
    assert counts == {*range(7)}


def test_shared_prefix_writes_what_all_hypotheses_begin_with() -> None:
    draft = play(SharedPrefix(), ScriptedDraft([[1], [1, 2, 3], [1, 2, 4, 5, 6, 7]]))
    assert draft.tokens == [1, 2, 4, 5] and draft.steps_of == [2, 3, 3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "wait-k", "k": 0}, "--waitk-lagging 0: give at least 1"),
        ({"name": "wait-k", "k": -1}, "--waitk-lagging -1: give at least 1"),
        ({"name": "wait-k", "k": "3"}, "--waitk-lagging '3': give a number"),
        ({"name": "wait-k", "k": 1, "catch_up": 0.0}, "--catch-up 0.0"),
        ({"name": "wait-k", "k": 1, "catch_up": float("nan")}, "--catch-up nan: give a number"),
        ({"name": "hold-n", "hold": -1}, "--hold -1"),
        ({"name": "local-agreement", "agree": 1}, "--agree 1: give at least 2"),
        ({"name": "alignatt", "align_frames": 0}, "--align-frames 0"),
        ({"name": "edatt", "edatt_alpha": 1.1}, "--edatt-alpha 1.1: give at most 1"),
        ({"name": "edatt", "edatt_alpha": 0}, "--edatt-alpha 0: give a number above 0"),
        ({"name": "hold-n", "agree": 2}, "policy 'hold-n' has no option 'agree'; its options: hold, align_layer"),
        ({"name": "guess"}, "--policy 'guess': choose from wait-k, hold-n, local-agreement, shared-prefix, alignatt, "),
        ({"name": "hold"}, "--policy 'hold': did you mean hold-n\\? choose from "),
    ],
)
def test_impossible_numbers_are_refused(options: dict, message: str) -> None:
    with pytest.raises(LeapformerError, match=message):
        PolicyOptions(**options)


def test_every_policy_can_be_made() -> None:
    for name in POLICIES:
        play(policy_of(name, k=1).make(), endless(3, states=[0] * 100))


def test_a_policy_without_what_it_needs_says_so() -> None:
    with pytest.raises(LeapformerError, match="the model was trained with none; give --waitk-lagging"):
        PolicyOptions().make()
    with pytest.raises(RuntimeError, match="declare `attends = True` in the policy"):
        Token(3).attention  # noqa: B018
