"""Splits of data without duplicates across them: sentences that share a side in one language stay in one split.

Collections of sentences repeat them, and pair one with several translations. A random split then tests on sentences,
or on their paraphrases, that a model was trained on. `groups` therefore joins all pairs that have the same source or
the same target, however indirectly, and a split takes whole groups, in the order of a hash: it depends on what the
groups say, and not on the order of the files or on a random generator.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ..support.errors import LeapformerError
from .text import tidy

_WORDS = re.compile(r"\w+")
LARGEST_SHARE = 10  # a split takes at most one of so many groups: small data, of which all would be tested otherwise
EMPTY, REPEATED, ANOTHER = "empty", "repeated", "another translation of an evaluated sentence"

Pair = tuple[str, str]


def fold(text: str) -> str:
    """A sentence without case, marks and white space: what counts as the same.

    >>> fold("L'eau  est FROIDE !") == fold("l' eau est froide.")
    True
    """
    folded = unicodedata.normalize("NFC", text).casefold()
    return " ".join(_WORDS.findall(folded)) or " ".join(folded.split())


def groups(pairs: Sequence[Pair]) -> list[list[int]]:
    """Indices of pairs that share a side, directly or through others, in the order of their hashes.

    Neither side of a pair occurs in another group.
    """
    parents: dict[Pair, Pair] = {}

    def root(node: Pair) -> Pair:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = node = parents[parent]
        return node

    folded = [(fold(one), fold(other)) for one, other in pairs]
    for one, other in folded:
        parents[root(("", one))] = root(("other", other))
    found: defaultdict[Pair, list[int]] = defaultdict(list)
    for i, (one, _) in enumerate(folded):
        found[root(("", one))].append(i)
    # The hash of one member: the least of all hashes would bring large groups to the front.
    return sorted(found.values(), key=lambda group: order(*min(folded[i] for i in group)))


def order(*texts: str) -> str:
    """A hash to sort by."""
    return sha256("\t".join(texts).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------ parallel text
@dataclass(frozen=True)
class Unsplit:
    """A release of parallel text without splits: a reader, and the sizes of the splits that are cut out for evaluation.

    `read` returns the pairs in a folder, each with the reason to leave it out, or "".
    """

    read: Callable[[Path], Iterable[tuple[str, str, str]]]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Split:
    """The pairs of each split, and what was left out: rows (split, reason, source, target)."""

    pairs: Mapping[str, Sequence[Pair]]
    left_out: Sequence[tuple[str, str, str, str]]

    def dropped(self, split: str) -> dict[str, int]:
        """How many pairs that would have been in a split were left out, by reason."""
        return dict(Counter(reason for of, reason, *_ in self.left_out if of == split))


def split(release: Unsplit, root: Path) -> Split:
    """Split a release: one pair of each of so many groups for evaluation, all pairs of the other groups for training.

    Of an evaluated group, the pair with the first hash is kept, so that no source is translated twice; the others are
    left out, as are the same pairs again. The training pairs keep the order of the release. Raises LeapformerError if
    there is nothing to split, or too little.
    """
    pairs, left_out, seen = list[Pair](), list[tuple[str, str, str, str]](), set[Pair]()
    for source, target, reason in release.read(root):
        pair = tidy(source), tidy(target)
        reason = reason or (EMPTY if not all(pair) else REPEATED if pair in seen else "")
        if reason:
            left_out.append(("train", reason, *pair))
        else:
            seen.add(pair)
            pairs.append(pair)
    found = groups(pairs)
    most = len(found) // LARGEST_SHARE
    if not most:
        raise LeapformerError(f"{root} holds {len(found)} different sentence pairs; to split them, give at least 10")
    chosen: dict[str, list[Pair]] = {}
    first = 0
    taken: set[int] = set()
    for name, size in release.sizes.items():
        chosen[name] = []
        for group in found[first : first + min(size, most)]:
            kept, *others = sorted(group, key=lambda i: order(*pairs[i]))
            chosen[name].append(pairs[kept])
            left_out += [(name, ANOTHER, *pairs[i]) for i in others]
            taken.update(group)
        first += len(chosen[name])
    return Split({"train": [pair for i, pair in enumerate(pairs) if i not in taken], **chosen}, left_out)
