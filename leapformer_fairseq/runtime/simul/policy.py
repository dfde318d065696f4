"""When to write: policies of simultaneous translation, independent of model and audio.

A policy is called after every pre-decision step of source that was read, and then writes as much of the translation as
it considers final, using the methods of `Draft`. After the end of the source, the rest is written without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from ...support.errors import LeapformerError


class Draft(Protocol):
    """A translation in progress, as policies see it; committed tokens are never taken back."""

    @property
    def n_steps(self) -> int:
        """Number of pre-decision steps of source read."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens committed."""

    @property
    def n_states(self) -> int:
        """Number of encoder states that may be seen."""

    def write_next(self) -> bool:
        """Commit the best next token; False if there is none: it would end the sentence, or the limit is reached."""

    def continuation(self) -> list[int]:
        """The tokens that would be written from here on if the source ended now; nothing is committed."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Write these tokens."""

    def write_focused(self, below: int) -> bool:
        """Commit the best next token if the encoder state (from 0) that it attends to most is `below` this one.

        False if it is not, or if there is no token, as for `write_next`.
        """


class Policy(Protocol):
    """The policy of one utterance.

    To add one: a class here, its parameters in `PolicyOptions` and its name in `POLICIES`; its flags in
    `runtime/simul/options.py`; and the same for the page in `runtime/serve/page/local/policy.js`. A fork of a session
    copies the policy shallowly: replace attributes, never change a list in place.

    lag: how many steps of source a token is written behind what it translates; None: that is not known.
    """

    @property
    def lag(self) -> int | None:
        return None

    def write(self, draft: Draft) -> None:
        """Write what has become final after one more step of source."""


@dataclass(frozen=True)
class WaitK(Policy):
    """Wait-k (Ma et al. 2019, arXiv:1810.08398): stay k source steps ahead of the target.

    Token t (from 0) is written when min(all, k + t / rate) steps have been read. For speech, a step is a fixed number
    of encoder states, the pre-decision ratio (Ma et al. 2020, arXiv:2011.02048), independent of how the audio arrives.
    `rate` is the catch-up: tokens per step of source after the first k.
    """

    k: int
    rate: float = 1.0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise LeapformerError(f"wait-k needs k >= 1, got {self.k}; give --waitk-lagging 1 or more")
        if not self.rate > 0:
            raise LeapformerError(f"--catch-up {self.rate}: give the tokens that a step of source is worth, above 0")

    @property
    def lag(self) -> int:
        return self.k

    def allows(self, n_steps: int, n_tokens: int) -> bool:
        """Whether one more token may be written after reading `n_steps` steps and writing `n_tokens` tokens."""
        return n_steps - math.floor(n_tokens / self.rate) >= self.k

    def write(self, draft: Draft) -> None:
        while self.allows(draft.n_steps, draft.n_tokens) and draft.write_next():
            pass


@dataclass(frozen=True)
class Offline(Policy):
    """Write nothing before the end of the source."""

    def write(self, draft: Draft) -> None:
        pass


@dataclass(frozen=True)
class HoldN(Policy):
    """Hold-n (Liu et al. 2020, arXiv:2005.11185): write the translation of what was read, without its last n tokens."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise LeapformerError(f"--hold {self.n}: give the number of tokens to hold back, 0 or more")

    def write(self, draft: Draft) -> None:
        tokens = draft.continuation()
        draft.commit(tokens[: max(0, len(tokens) - self.n)])


class LocalAgreement(Policy):
    """Local agreement (Liu et al. 2020, arXiv:2005.11185): write the common prefix of the last n translations.

    There is one translation after every step of source.
    """

    def __init__(self, n: int) -> None:
        if n < 2:
            raise LeapformerError(f"--agree {n}: it takes at least 2 translations to agree")
        self.n = n
        self._drafts: list[list[int]] = []  # of the last steps, each from the first token that is not committed

    def write(self, draft: Draft) -> None:
        self._drafts = [*self._drafts[1 - self.n :], draft.continuation()]
        if len(self._drafts) < self.n:
            return
        pairs = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*self._drafts, strict=False))
        agreed = [tokens[0] for tokens in pairs]
        draft.commit(agreed)
        self._drafts = [tokens[len(agreed) :] for tokens in self._drafts]


@dataclass(frozen=True)
class AlignAtt(Policy):
    """AlignAtt (Papi et al. 2023, arXiv:2305.11408): stop at a token that attends most to the last f encoder states.

    Such a token may change when more source arrives.
    """

    frames: int

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise LeapformerError(f"--align-frames {self.frames}: give the number of last encoder states, from 1")

    def write(self, draft: Draft) -> None:
        while draft.write_focused(below=draft.n_states - self.frames):
            pass


@dataclass(frozen=True)
class PolicyOptions:
    """The choice of policy, and the parameters of all policies."""

    name: str = "wait-k"
    k: int | None = None  # that of training
    catch_up: float = 1.0
    hold: int = 3
    agree: int = 2
    align_frames: int = 4
    align_layer: int = -1  # from 1, or from the last one backwards, from -1

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise LeapformerError(f"--policy {self.name!r}: choose from {', '.join(POLICIES)}")
        if self.name != "wait-k" or self.k is not None:
            self.make()  # refuses impossible numbers

    def make(self) -> Policy:
        """Create the policy of a new utterance."""
        return POLICIES[self.name](self)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "wait-k": lambda options: WaitK(options.k or 0, options.catch_up),
    "hold-n": lambda options: HoldN(options.hold),
    "local-agreement": lambda options: LocalAgreement(options.agree),
    "alignatt": lambda options: AlignAtt(options.align_frames),
    "offline": lambda options: Offline(),
}
