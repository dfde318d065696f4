"""Beam search over a batch of sentences, with the hypotheses and the order of ties of fairseq's search.

Shapes: B sentences, R hypotheses of each, V words.
"""

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


def translate(
    graphs: Graphs,
    sources: Sequence[Sequence[int]],
    options: Search,
    prefixes: Sequence[Sequence[int]] = (),
    first: int | None = None,
) -> list[list[Hypothesis]]:
    """The translations of each of B sources, which end with the end of sentence, best first.

    `prefixes`: with which tokens the translations of each source begin; none: with any. `first`: what they follow;
    None: the end of sentence.
    """
    pad, width = graphs.folder.vocabularies["source"].pad, max(map(len, sources))
    tokens = np.array([[pad] * (width - len(source)) + list(source) for source in sources])  # on the left, as fairseq
    given = None if first is None else [first]
    return _search(graphs, graphs.read(tokens), list(map(len, sources)), options, given, prefixes)


def go_on(graphs: Graphs, prompt: Sequence[int], options: Search) -> list[Hypothesis]:
    """The continuations of a prompt without an end of sentence, best first; tokens and scores include the prompt."""
    assert graphs.folder.language is not None
    (found,) = _search(graphs, {}, [len(prompt)], options, [graphs.folder.language.first, *prompt])
    return found


def _search(
    graphs: Graphs,
    source: Values,
    sizes: Sequence[int],
    options: Search,
    given: Sequence[int] | None = None,
    prefixes: Sequence[Sequence[int]] = (),
) -> list[list[Hypothesis]]:
    """`given`: the first tokens of all hypotheses; None: the end of sentence, with which fairseq starts a target.

    Sentences that are finished leave the batch.
    """
    target, beam, going = graphs.folder.vocabularies["target"], options.beam, np.arange(len(sizes))
    longest = np.minimum(np.array(sizes) * options.max_len_a + options.max_len_b, graphs.folder.max_target - 1)
    longest = longest.astype(int)
    found: list[list[Hypothesis]] = [[] for _ in sizes]
    begin = np.array([target.eos] if given is None else given)[: longest.max() + 1]
    written, sums = np.tile(begin, (len(sizes), beam, 1)), np.zeros((len(sizes), beam), np.float32)
    states, order = graphs.begin(SELF, len(sizes)), np.tile(going[:, None], beam)
    if len(begin) > 1:
        log_probs, states = graphs.text(begin[None, :-1], states)
        sums += log_probs[0, np.arange(len(begin) - 1), begin[1:]].sum()
        sums[:, 1:] = -np.inf  # else all hypotheses would be the same
    for position in range(len(begin), longest.max() + 2):
        scores, states = graphs.step(written[:, :, -1], position, order, states, source)
        scores = np.where(np.isnan(scores), -np.inf, scores).astype(np.float32)
        scores[:, :, target.pad] = -np.inf
        ends = position > longest[going]
        _only(scores, ends, target.eos)
        if position - 1 < options.min_len:
            scores[:, :, target.eos] = -np.inf
        for row, sentence in enumerate(going.tolist() if prefixes else []):
            if position <= len(prefixes[sentence]) and not ends[row]:
                _only(scores, np.array([row]), prefixes[sentence][position - 1])
        scores += sums[:, :, None]
        considered = (scores if position > 1 else scores[:, :1]).reshape(len(going), -1)
        best = np.stack([largest(row, min(2 * beam, len(row) - 1)) for row in considered])
        rows, tokens = np.divmod(best, scores.shape[2])
        values = np.take_along_axis(considered, best, 1)
        ended = (tokens == target.eos) & (values > -np.inf)
        for place, column in np.argwhere(ended[:, :beam]):
            hypotheses = found[going[place]]
            if len(hypotheses) < beam:
                history = [*written[place, rows[place, column], 1:].tolist(), target.eos]
                hypotheses.append(Hypothesis(history, values[place, column] / position**options.penalty))
        left = np.flatnonzero([len(found[sentence]) < beam for sentence in going] & ~ends)
        if not len(left):
            break
        # Of each sentence the best that go on, as many as all have.
        on = [np.flatnonzero(tokens[place] != target.eos)[:beam] for place in left]
        kept = np.stack([columns[: min(map(len, on))] for columns in on])
        rows, tokens, sums = (np.take_along_axis(x[left], kept, 1) for x in (rows, tokens, values))
        order = left[:, None] * written.shape[1] + rows
        written = np.concatenate([np.take_along_axis(written[left], rows[:, :, None], 1), tokens[:, :, None]], 2)
        if len(left) < len(going):
            source = {name: graphs.value(value.numpy()[left]) for name, value in source.items()}
            going = going[left]
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in found]


def _only(scores: np.ndarray, sentences: np.ndarray, token: int) -> None:
    """Leave only this token to the hypotheses of these sentences (a mask or indices)."""
    kept = scores[sentences, :, token]
    scores[sentences] = -np.inf
    scores[sentences, :, token] = kept


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` largest values in descending order; of equal values, the first one comes first."""
    least = np.partition(values, -count)[-count]
    places = np.flatnonzero(values >= least)  # few, and none of the largest is missing
    return places[np.argsort(-values[places], kind="stable")][:count]
