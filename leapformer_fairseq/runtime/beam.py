"""Beam search and sampling over a batch of sentences, with the hypotheses and the order of ties of fairseq's search.

Shapes: B sentences, R hypotheses of each, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..support.errors import LeapformerError
from .engine import Graphs, Values
from .folder import SELF, Vocabulary


@dataclass(frozen=True)
class Search:
    """Options of the search, as in fairseq.

    max_len_a, max_len_b: at most `max_len_a` * S + `max_len_b` tokens for a source of S tokens with its end, or of S
                          frames.
    penalty:              exponent of the length by which scores are divided.
    unk_penalty:          what the log-probability of an unknown word is lowered by.
    temperature:          what logits are divided by.
    no_repeat_ngram_size: no n-gram of this size is written twice; 0: any may be.
    sampling:             draw `beam` hypotheses by chance, in place of beam search,
    topk, topp:           from the `topk` likeliest tokens, or the fewest that have this probability together (Holtzman
                          et al., 2020, arXiv:1904.09751); 0: from all.
    """

    beam: int = 5
    max_len_a: float = 0.0
    max_len_b: int = 200
    min_len: int = 1
    penalty: float = 1.0
    unk_penalty: float = 0.0
    temperature: float = 1.0
    no_repeat_ngram_size: int = 0
    sampling: bool = False
    topk: int = 0
    topp: float = 0.0

    def __post_init__(self) -> None:
        """Raises LeapformerError for values that no search can have."""
        if not self.temperature > 0:
            raise LeapformerError(f"--temperature {self.temperature}: give more than 0")
        if not self.max_len_a and self.max_len_b < self.min_len:
            raise LeapformerError(f"--max-len-b {self.max_len_b} is less than --min-len {self.min_len}; give more")
        if not self.topp <= 1:
            raise LeapformerError(f"--sampling-topp {self.topp}: give a probability")
        if self.topk > 0 and self.topp > 0:
            raise LeapformerError(f"--sampling-topk {self.topk} and --sampling-topp {self.topp}: give one of them")
        if max(self.topk, self.topp) > 0 and not self.sampling:
            raise LeapformerError("--sampling-topk and --sampling-topp need --sampling; give it, too")

    def check(self, nbest: int) -> None:
        """Raise LeapformerError if the search does not give so many hypotheses."""
        if not 1 <= nbest <= self.beam:
            raise LeapformerError(f"nbest={nbest}: a beam of {self.beam} gives 1 to {self.beam}")


@dataclass(frozen=True)
class Hypothesis:
    """Tokens with the end of sentence, and the sum of their log-probabilities over length ** penalty.

    `sources`: if alignments are wanted, the index of the source's subword that each but the end attends to most.
    """

    tokens: list[int]
    score: float
    sources: list[int] = field(default_factory=list)


def translate(
    graphs: Graphs,
    sources: Sequence[Sequence[int]],
    options: Search,
    prefixes: Sequence[Sequence[int]] = (),
    chances: Sequence[np.random.Generator] = (),
    around: tuple[int, int] | None = None,
    first: int | None = None,
) -> list[list[Hypothesis]]:
    """The translations of each of B sources, which end with the end of sentence, best first.

    `prefixes`: with which tokens the translations of each source begin; none: with any. `chances`: of sampling, the
    random numbers of each source. `around`: find the sources of their tokens, but none of so many at the beginning and
    at the end of each source, such as the end of sentence; the folder must have attention weights. `first`: what
    translations follow; None: the end of sentence.
    """
    pad, width = graphs.folder.vocabularies["source"].pad, max(map(len, sources))
    tokens = np.array([[pad] * (width - len(source)) + list(source) for source in sources])  # on the left, as fairseq
    seen = None
    if around is not None:
        begins = [width - len(source) + around[0] for source in sources]
        seen = np.array([[begin <= place < width - around[1] for place in range(width)] for begin in begins])
    given = None if first is None else [first]
    return _search(graphs, graphs.read(tokens), list(map(len, sources)), options, given, prefixes, chances, seen)


def transcribe(
    graphs: Graphs, frames: np.ndarray, options: Search, chances: Sequence[np.random.Generator] = ()
) -> list[Hypothesis]:
    """The hypotheses for the frames (T, n_bins) of a recording, best first. `chances`: as for `go_on`."""
    (found,) = _search(graphs, graphs.hear(frames), [len(frames)], options, chances=chances)
    return found


def go_on(
    graphs: Graphs, prompt: Sequence[int], options: Search, chances: Sequence[np.random.Generator] = ()
) -> list[Hypothesis]:
    """The continuations of a prompt without an end of sentence, best first; tokens and scores include the prompt.

    `chances`: of sampling, the random numbers, one generator.
    """
    assert graphs.folder.language is not None
    begin = [graphs.folder.language.first, *prompt]
    (found,) = _search(graphs, {}, [len(prompt)], options, begin, chances=chances)
    return found


def _search(
    graphs: Graphs,
    source: Values,
    sizes: Sequence[int],
    options: Search,
    given: Sequence[int] | None = None,
    prefixes: Sequence[Sequence[int]] = (),
    chances: Sequence[np.random.Generator] = (),
    seen: np.ndarray | None = None,
) -> list[list[Hypothesis]]:
    """`given`: the first tokens of all hypotheses; None: the end of sentence, with which fairseq starts a target.

    `seen`: if alignments are wanted, which tokens of the padded sources (B, S) they may point to, one range of each.

    Sentences that are finished leave the batch. A sample is a sentence of its own.
    """
    target, samples = graphs.folder.vocabularies["target"], options.beam if options.sampling else 1
    beam, going = options.beam // samples, np.repeat(np.arange(len(sizes)), samples)
    chances = [each for one in chances for each in one.spawn(samples)]  # as many as rows, or none
    longest = np.minimum(np.array(sizes) * options.max_len_a + options.max_len_b, graphs.folder.max_target - 1)
    longest = longest.astype(int)
    found: list[list[Hypothesis]] = [[] for _ in sizes]
    begin = np.array([target.eos] if given is None else given)[: longest.max() + 1]
    written, sums = np.tile(begin, (len(going), beam, 1)), np.zeros((len(going), beam), np.float32)
    states, order = graphs.begin(SELF, len(sizes)), np.tile(going[:, None], beam)
    attended = np.zeros((len(going), beam, 0), int)  # the source of each token of `written`, and of the next one
    if samples > 1:
        source = _rows(graphs, source, going)
    if len(begin) > 1:
        log_probs, states = graphs.text(begin[None, :-1], states)
        sums += _adjusted(log_probs, options, target)[0, np.arange(len(begin) - 1), begin[1:]].sum()
        sums[:, 1:] = -np.inf  # else all hypotheses would be the same
    for position in range(len(begin), longest.max() + 2):
        if seen is None:
            log_probs, states = graphs.step(written[:, :, -1], position, order, states, source)
        else:
            log_probs, weights, states = graphs.attending_step(written[:, :, -1], position, order, states, source)
            attended = np.concatenate([attended, _attended(weights, seen[going])], 2)
        scores = _adjusted(log_probs, options, target)
        ends = position > longest[going]
        _only(scores, ends, target.eos)
        if position - 1 < options.min_len:
            scores[~ends, :, target.eos] = -np.inf
        for row, sentence in enumerate(going.tolist() if prefixes or options.no_repeat_ngram_size else []):
            if prefixes and position <= len(prefixes[sentence]):
                if not ends[row]:
                    _only(scores, np.array([row]), prefixes[sentence][position - 1])
                continue
            for column, history in enumerate(written[row, :, 1:].tolist()):
                scores[row, column, repeating(history, options.no_repeat_ngram_size)] = -np.inf
        if options.sampling:
            best = np.array([[drawn(*each, options)] for each in zip(scores[:, 0], chances, strict=True)])
        scores += sums[:, :, None]
        considered = (scores if position > 1 else scores[:, :1]).reshape(len(going), -1)
        if not options.sampling:
            best = np.stack([largest(row, min(2 * beam, len(row) - 1)) for row in considered])
        rows, tokens = np.divmod(best, scores.shape[2])
        values = np.take_along_axis(considered, best, 1)
        ended = (tokens == target.eos) & (values > -np.inf)
        for place, column in np.argwhere(ended[:, :beam]):
            hypotheses = found[going[place]]
            if len(hypotheses) < options.beam:
                history = [*written[place, rows[place, column], 1:].tolist(), target.eos]
                read = attended[place, rows[place, column], : position - 1].tolist()
                hypotheses.append(Hypothesis(history, values[place, column] / position**options.penalty, read))
        done = ended[:, 0] if options.sampling else [len(found[sentence]) == beam for sentence in going]
        left = _filled(np.flatnonzero(~(ends | done)))
        if not len(left):
            break
        # Of each sentence the best that go on, as many as all have.
        on = [np.flatnonzero(tokens[place] != target.eos)[:beam] for place in left]
        kept = np.stack([columns[: min(map(len, on))] for columns in on])
        rows, tokens, sums = (np.take_along_axis(x[left], kept, 1) for x in (rows, tokens, values))
        order = left[:, None] * written.shape[1] + rows
        written, attended = (np.take_along_axis(x[left], rows[:, :, None], 1) for x in (written, attended))
        written = np.concatenate([written, tokens[:, :, None]], 2)
        if len(left) < len(going):
            source, going = _rows(graphs, source, left), going[left]
            chances = [chances[row] for row in left] if chances else ()
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in found]


def _filled(left: np.ndarray) -> np.ndarray:
    """The ascending numbers `left` in an order in which most stay where they are, and the last fill the gaps."""
    order = np.arange(len(left))
    order[np.setdiff1d(order, left)] = left[left >= len(left)]
    return order


def _rows(graphs: Graphs, source: Values, rows: np.ndarray) -> Values:
    """These rows of the states of cross-attention."""
    return {name: graphs.value(value.numpy()[rows]) for name, value in source.items()}


def _adjusted(log_probs: np.ndarray, options: Search, words: Vocabulary) -> np.ndarray:
    """Log-probabilities (.., V) at the temperature, without padding, less the penalty of unknown words."""
    scores = log_probs.astype(np.float32)
    if (missing := np.isnan(scores)).any():
        scores[missing] = -np.inf
    if options.temperature != 1:
        scores /= options.temperature
        scores -= np.logaddexp.reduce(scores, -1, keepdims=True)
    scores[..., words.pad] = -np.inf
    scores[..., words.unk] -= options.unk_penalty
    return scores


def _attended(weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The indices (B, R, 1) of the largest weights (B, R, S) among those `seen` (B, S), from the first of these."""
    best = np.where(seen[:, None], weights, -np.inf).argmax(2)
    return (best - seen.argmax(1)[:, None])[:, :, None]


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


def repeating(tokens: Sequence[int], size: int) -> list[int]:
    """The next tokens with which the last `size` tokens would be an n-gram already in `tokens`; none for size 0.

    As in `--no-repeat-ngram-size` of fairseq-generate (Paulus et al., 2018, arXiv:1705.04304); the end of the sentence
    is not part of an n-gram.
    """
    before = size - 1
    if before < 0:
        return []
    last = tokens[len(tokens) - before :]
    return [tokens[i + before] for i in range(len(tokens) - before) if tokens[i : i + before] == last]


def drawn(scores: np.ndarray, chances: np.random.Generator, options: Search) -> int:
    """A token by chance, given log-probabilities (V,); they need not add up to 1."""
    allowed = candidates(scores, options)
    sums = np.exp(scores[allowed] - scores.max(), dtype=np.float64).cumsum()
    return int(allowed[np.searchsorted(sums[:-1], chances.random() * sums[-1], "right")])


def candidates(scores: np.ndarray, options: Search) -> np.ndarray:
    """The tokens from which sampling draws, given log-probabilities (V,)."""
    if options.topp > 0:
        order = np.argsort(-scores, kind="stable")
        sums = np.exp(scores[order]).cumsum(dtype=np.float64).astype(np.float32)
        return order[: 1 + int((sums < np.float32(options.topp)).sum())]
    return largest(scores, min(options.topk, len(scores))) if options.topk > 0 else np.arange(len(scores))
