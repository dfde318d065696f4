"""Documents as windows of sentences, to translate a sentence together with the preceding ones.

Every sentence ends one window: the sentence and those before it in its document, up to the window size. Windows
therefore advance by one sentence, and the first ones of a document are shorter. A test set is translated by taking the
last sentence of every window's translation; the target context is what the model itself wrote before it. ABC (Peng et
al., 2022, arXiv:2110.02488, appendix C.2) uses windows of four.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

SEPARATOR = "<sep>"  # between the sentences of a window; a dictionary entry that subword encoding never produces

Sentences = tuple[list[str], list[str]]  # the subwords of a sentence and of its translation


def is_break(pair: Sentences) -> bool:
    """Whether both sides are empty: such a pair separates documents."""
    return not any(pair)


def split_documents(pairs: Iterable[Sentences]) -> Iterator[list[Sentences]]:
    """The documents in a stream of sentence pairs."""
    for separates, document in groupby(pairs, is_break):
        if not separates:
            yield list(document)


def windows(document: Sequence[Sentences], size: int) -> Iterator[Sentences]:
    """For every sentence pair of a document, the window of at most `size` pairs that ends with it.

    >>> list(windows([(["uno"], ["one"]), (["dos"], ["two"]), (["tres"], ["three"])], 2))[-1]
    (['dos', '<sep>', 'tres'], ['two', '<sep>', 'three'])
    """
    for end in range(1, len(document) + 1):
        source, target = zip(*document[max(0, end - size) : end], strict=True)
        yield _joined(source), _joined(target)


def _joined(sentences: Iterable[list[str]]) -> list[str]:
    return [piece for sentence in sentences for piece in (SEPARATOR, *sentence)][1:]
