"""The policies that this package brings; docs/adding_a_policy.md tells how to write another in the same way."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import Any

from ...support.declared import Option
from ...support.errors import LeapformerError
from .policy import Draft, Policy, Token, register


@register(
    "wait-k",
    Option(
        "k", None, "wait-k: k, in steps (default: the trained one; of a range the high end)", least=1, kind=int,
        long="--waitk-lagging",
    ),
    Option("catch_up", 1.0, "wait-k: tokens for each step after the first k", above=0),
)  # fmt: skip
class WaitK(Policy):
    """Wait-k (Ma et al. 2019, arXiv:1810.08398): stay k source steps ahead of the target.

    Token t (from 0) is written when min(all, k + t / rate) steps have been read; the rate is `catch_up`, the tokens per
    step of source after the first k. For speech, a step is a fixed number of encoder states, the pre-decision ratio (Ma
    et al. 2020, arXiv:2011.02048), independent of how the audio arrives.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.chosen.k is None:
            raise LeapformerError("wait-k needs a k, and the model was trained with none; give --waitk-lagging")

    @property
    def lag(self) -> int:
        return self.chosen.k

    def allows(self, n_steps: int, n_tokens: int) -> bool:
        """Whether one more token may be written after reading `n_steps` steps and writing `n_tokens` tokens."""
        return n_steps - math.floor(n_tokens / self.chosen.catch_up) >= self.chosen.k

    def write(self, draft: Draft) -> None:
        while self.allows(draft.n_steps, draft.n_tokens) and draft.write_next():
            pass


@register("hold-n", Option("hold", 3, "hold-n: tokens at the end that are held back", least=0))
class HoldN(Policy):
    """Hold-n (Liu et al. 2020, arXiv:2005.11185): write the translation of what was read, without its last n tokens."""

    def write(self, draft: Draft) -> None:
        tokens = draft.continuation()
        draft.commit(tokens[: max(0, len(tokens) - self.chosen.hold)])


@register("local-agreement", Option("agree", 2, "local-agreement: steps whose translations must agree", least=2))
class LocalAgreement(Policy):
    """Local agreement (Liu et al. 2020, arXiv:2005.11185): write the common prefix of the last n translations.

    There is one translation after every step of source.
    """

    _drafts: tuple[list[int], ...] = ()  # of the last steps, each from the first token that is not committed

    def write(self, draft: Draft) -> None:
        self._drafts = *self._drafts[1 - self.chosen.agree :], [token.id for token in draft.continuation()]
        if len(self._drafts) < self.chosen.agree:
            return
        agreed = shared_prefix(*self._drafts)
        draft.commit(agreed)
        self._drafts = tuple(tokens[len(agreed) :] for tokens in self._drafts)


@register("shared-prefix")
class SharedPrefix(Policy):
    """Shared prefix (Liu et al. 2020, arXiv:2005.11185): write what all hypotheses of a beam share; needs --beam."""

    def write(self, draft: Draft) -> None:
        draft.commit(shared_prefix(*([token.id for token in tokens] for tokens in draft.hypotheses())))


@register(
    "alignatt",
    Option("align_frames", 4, "alignatt: a token that attends most to one of this many last states waits", least=1),
)
class AlignAtt(Policy):
    """AlignAtt (Papi et al. 2023, arXiv:2305.11408): stop at a token that attends most to the last f encoder states.

    Such a token may change when more source arrives.
    """

    attends = True

    def write(self, draft: Draft) -> None:
        draft.write_while(lambda token: token.attention.argmax() < draft.n_states - self.chosen.align_frames)


@register(
    "edatt",
    Option("edatt_alpha", 0.6, "edatt: a token waits if its weights of the last states sum to this", above=0, most=1),
    Option("edatt_frames", 2, "edatt: the number of these last states", least=1),
)
class EDAtt(Policy):
    """EDAtt (Papi et al. 2023, arXiv:2212.07850): stop at a token that attends too much to the last encoder states.

    A token is written while the sum of its attention weights over the last lambda states (`edatt_frames`) is below
    alpha (`edatt_alpha`).
    """

    attends = True

    def write(self, draft: Draft) -> None:
        def accepts(token: Token) -> bool:
            return token.attention[-self.chosen.edatt_frames :].sum() < self.chosen.edatt_alpha

        draft.write_while(accepts)


@register("offline")
class Offline(Policy):
    """Write nothing before the end of the source."""

    early = False

    def write(self, draft: Draft) -> None:
        pass


def shared_prefix(*drafts: list[int]) -> list[int]:
    """The tokens with which all of these begin."""
    return [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*drafts, strict=False))]
