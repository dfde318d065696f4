"""A system whose tokens are a function of what was seen: no model, no training, and any change shows."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leapformer_fairseq.runtime.simul.policy import ALIGN_LAYER, PolicyOptions, find
from leapformer_fairseq.runtime.simul.times import ComputeTimes

EOS, STATE_FRAMES, WORDS = 2, 4, 40
RATE = 16_000


def drawn(*numbers: int | None) -> int:
    """A number that looks random, of these."""
    return zlib.crc32(repr(numbers).encode())


def policy_of(name: str, **values: Any) -> PolicyOptions:
    """A policy with those of the values whose options it has."""
    known = {option.name for option in (*find(name).options, ALIGN_LAYER)}
    return PolicyOptions(name, **{option: value for option, value in values.items() if option in known})


class ScriptedEngine:
    """A `stream.Engine`. Some tokens would end the sentence; what a token attends to depends on the layer."""

    def __init__(self, times: ComputeTimes, variety: int, ends: int) -> None:
        self.times, self.variety, self.ends = times, variety, ends
        self.n_frames, self.finished = 0, False
        self.attention = np.ones(1)
        self._choice = 0
        self._tokens: list[int] = []
        self.consumed: list[int] = []  # how much was seen when each token was consumed

    @property
    def n_tokens(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        return list(self._tokens)

    @property
    def ready(self) -> int:
        return -(-self.n_frames // STATE_FRAMES) if self.finished else self.n_frames // STATE_FRAMES

    def feed(self, frames: np.ndarray) -> None:
        self.n_frames += len(frames)

    def finish(self) -> None:
        self.finished = True

    @property
    def log_probabilities(self) -> Callable[[], np.ndarray]:
        """The last choice is the likeliest and the next number close; how sure it is depends on the last token."""
        choice = self._choice
        sure = 0.1 + drawn(*self._tokens[-1:]) % 10 / 3

        def compute() -> np.ndarray:
            odds = np.full(10 + WORDS, -7.0)
            odds[choice], odds[10 + (choice - 9) % WORDS] = 0.0, -0.1
            return sure * odds - np.logaddexp.reduce(sure * odds)

        return compute

    def best(self, visible: int, forbidden: Sequence[int], layer: int | None = None) -> int:
        self._focus(visible, layer)
        self._choice = self._drawn(visible, forbidden)
        return self._choice

    def _drawn(self, visible: int, forbidden: Sequence[int]) -> int:
        chance = drawn(self.n_tokens, min(visible // 12, self.n_tokens // 3 + 2))  # it settles once enough was seen
        if not chance % self.ends and EOS not in forbidden:
            return EOS
        choice = 10 + chance % self.variety
        while choice in forbidden:
            choice = 10 + (choice - 9) % WORDS
        return choice

    def consume(self, visible: int | None = None, layer: int | None = None) -> None:
        self._focus(self.ready if visible is None else visible, layer)
        self.consumed.append(visible or 0)

    def _focus(self, visible: int, layer: int | None) -> None:
        self.attention = np.full(visible, 0.3 / visible)
        self.attention[min(visible - 1, 3 * self.n_tokens + drawn(self.n_tokens, layer) % 30)] += 0.7

    def commit(self, token: int) -> None:
        self._tokens.append(token)

    def snapshot(self) -> Any:
        return list(self._tokens)

    def restore(self, snapshot: Any) -> None:
        self._tokens = list(snapshot)

    def fork(self) -> ScriptedEngine:
        other = copy.copy(self)
        other._tokens, other.times, other.consumed = self.tokens, replace(self.times), list(self.consumed)
        return other


class Words:
    """A detokenizer: tokens that are divisible by three continue a word."""

    def __len__(self) -> int:
        return 10 + WORDS

    def piece(self, token: int) -> str:
        return f"{'' if token % 3 == 0 else chr(0x2581)}w{token}"

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.piece, tokens)).replace(chr(0x2581), " ").strip()


@dataclass(frozen=True)
class ScriptedSystem:
    """A `stream.System`."""

    policy: PolicyOptions = PolicyOptions("wait-k", k=2)
    step_frames: int = 12 * STATE_FRAMES
    variety: int = WORDS
    ends: int = 9
    eos: int = EOS
    forbidden: tuple[int, ...] = (0, 1, 3)
    detokenizer: Any = Words()
    cmvn: None = None
    state_frames: int = STATE_FRAMES
    chunk_states: int = 1
    positions: int = 1000

    def begin(self, times: ComputeTimes) -> Any:
        return ScriptedEngine(times, self.variety, self.ends)

    def carried(self) -> Any:
        from leapformer_fairseq.simul.states import States

        return States

    def waiting(self, k: int) -> ScriptedSystem:
        return replace(self, policy=self.policy.but(k=k))


def sound(seconds: float, level_db: float = -20.0, seed: int = 0) -> np.ndarray:
    """Noise of this level below full scale, (T,)."""
    noise = np.random.default_rng(seed).standard_normal(round(seconds * RATE))
    return (noise * 10 ** (level_db / 20)).astype(np.float32)


def talk() -> np.ndarray:
    """Speech with a short, a middle and a long pause, a quiet passage, and a rest of less than 40 ms."""
    parts = [
        (3.0, -20), (0.3, -70), (2.6, -20), (0.6, -70), (2.5, -28), (1.5, -55), (3.0, -20), (0.9, -45), (4.0, -12),
        (0.5, -70), (12.0, -20), (0.013, -20),
    ]  # fmt: skip
    return np.concatenate([sound(seconds, level, i) for i, (seconds, level) in enumerate(parts)])
