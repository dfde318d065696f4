"""Beam search over one sentence, with the hypotheses and the order of ties of fairseq's search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .engine import Graphs, Values
from .folder import SELF


@dataclass(frozen=True)
class Search:
    """Options of the search: `beam` hypotheses; at most `max_len_a` * S + `max_len_b` tokens for a source of S tokens
    with its end; `penalty` is the exponent of the length by which scores are divided.
    """

    beam: int = 5
    max_len_a: float = 0.0
    max_len_b: int = 200
    min_len: int = 1
    penalty: float = 1.0


@dataclass(frozen=True)
class Hypothesis:
    """Tokens with the end of sentence, and the sum of their log-probabilities over length ** penalty."""

    tokens: list[int]
    score: float


def translate(graphs: Graphs, source: Sequence[int], options: Search) -> list[Hypothesis]:
    """The translations of source tokens that end with the end of sentence, best first."""
    return _search(graphs, graphs.read(np.array([source])), len(source), options)


def go_on(graphs: Graphs, prompt: Sequence[int], options: Search) -> list[Hypothesis]:
    """The continuations of a prompt without an end of sentence, best first; tokens and scores include the prompt."""
    assert graphs.folder.language is not None
    return _search(graphs, {}, len(prompt), options, [graphs.folder.language.first, *prompt])


def _search(
    graphs: Graphs, source: Values, size: int, options: Search, given: Sequence[int] | None = None
) -> list[Hypothesis]:
    """`given`: the first tokens of all hypotheses; None: the end of sentence, with which fairseq starts a target."""
    target = graphs.folder.vocabularies["target"]
    beam, longest = options.beam, int(options.max_len_a * size + options.max_len_b)
    longest = min(longest, graphs.folder.max_target - 1)
    begin = np.array([target.eos] if given is None else given)[: longest + 1]
    written, sums, hypotheses = np.tile(begin, (beam, 1)), np.zeros(beam, np.float32), list[Hypothesis]()
    states, order = graphs.begin(SELF, 1), np.zeros(beam, int)
    if len(begin) > 1:
        log_probs, states = graphs.text(begin[None, :-1], states)
        sums += log_probs[0, np.arange(len(begin) - 1), begin[1:]].sum()
        sums[1:] = -np.inf  # else all hypotheses would be the same
    for position in range(len(begin), longest + 2):
        (scores,), states = graphs.step(written[None, :, -1], position, order[None], states, source)
        scores = np.where(np.isnan(scores), -np.inf, scores).astype(np.float32)
        scores[:, target.pad] = -np.inf
        if position > longest:
            scores[:, : target.eos] = scores[:, target.eos + 1 :] = -np.inf
        if position - 1 < options.min_len:
            scores[:, target.eos] = -np.inf
        scores += sums[:, None]
        considered = scores if position > 1 else scores[:1]
        best = largest(considered.ravel(), min(2 * beam, considered.size - 1))
        rows, tokens = np.divmod(best, scores.shape[1])
        values = considered.ravel()[best]
        for row, token, value in zip(rows[:beam], tokens[:beam], values[:beam], strict=True):
            if token == target.eos and value > -np.inf and len(hypotheses) < beam:
                hypotheses.append(
                    Hypothesis([*written[row, 1:].tolist(), int(token)], value / position**options.penalty)
                )
        if len(hypotheses) == beam or position > longest:
            break
        going = np.flatnonzero(tokens != target.eos)[:beam]
        order, sums = rows[going], values[going]
        written = np.concatenate([written[order], tokens[going, None]], 1)
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` largest values in descending order; of equal values, the first one comes first."""
    least = np.partition(values, -count)[-count]
    places = np.flatnonzero(values >= least)  # few, and none of the largest is missing
    return places[np.argsort(-values[places], kind="stable")][:count]
