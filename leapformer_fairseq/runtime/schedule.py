"""Whether the wait-k schedule suits the pace of the speech, from durations alone.

Which sounds a target token answers is not known, so its share of the sentence stands for it: of T tokens (the end is
one) and S encoder states, token t (from 0) is heard once S * (t + 1) / T states are. A step shorter than a token
asks for tokens before they are said, in training as in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

STATE_FRAMES = 4  # of 10 ms; two convolutions halve the frames
# Of the targets in training, on average over its k. With the ratio that fits and k from 1 to 9 it is some 10 %, for a
# length differs from what is usual; with a step of a third of a token, two thirds, and models repeat themselves.
TOLERATED = 0.25
ENOUGH = 2_000  # sentences, spread evenly over the data, that are counted


def unheard(place: Any, tokens: Any, states: Any, lagging: int, ratio: int) -> Any:
    """Whether a token is due before it is heard: g(t) = min(S, ratio * (t + lagging)) < S * (t + 1) / T.

    place: t; tokens: T; states: S; numbers, arrays or tensors that broadcast, for a batch (T,), (B, 1) and (B, 1). What
    stands behind the T tokens is padding, and never due.
    """
    return (ratio * (place + lagging) * tokens < states * (place + 1)) & (place < tokens)


def unheard_share(states: Any, tokens: Any, lagging: int, ratio: int) -> float:
    """The share of all tokens that are due before they are heard; arrays (B,) with the S and T of B sentences."""
    late = unheard(np.arange(tokens.max()), tokens[:, None], states[:, None], lagging, ratio)
    return float(late.sum() / tokens.sum())


def fitting_ratio(states: float, tokens: float) -> int:
    """The pre-decision ratio, in states, whose step lasts as long as a token does on average."""
    return max(1, round(states / tokens))


def outrun(frames: Sequence[int], tokens: Sequence[int], laggings: Sequence[int], ratio: int) -> str | None:
    """What to tell whoever trains with these k on sentences of so many frames and tokens; None if the ratio suits."""
    counted = np.linspace(0, len(frames) - 1, min(len(frames), ENOUGH)).astype(int)
    states, lengths = -(-np.asarray(frames)[counted] // STATE_FRAMES), np.asarray(tokens)[counted]
    shares = [unheard_share(states, lengths, k, ratio) for k in laggings]
    fitting = fitting_ratio(states.sum(), lengths.sum())
    if ratio >= fitting or np.mean(shares) <= TOLERATED:
        return None
    least, most = min(laggings), max(laggings)
    at = f"{shares[laggings.index(least)]:.0%} at k = {least}"
    at += f", {shares[laggings.index(most)]:.0%} at k = {most}" if most > least else ""
    return (
        f"wait-k outruns the speech: {np.mean(shares):.0%} of the target tokens are due before they are heard ({at}), "
        f"so training is on guesses; --fixed-pre-decision-ratio {fitting} instead of {ratio} fits this data"
    )
