"""Splits without duplicates across them: sentence pairs that share their source or their target stay in one split.

Collections repeat sentences and pair one with several translations, so a random split would test on sentences, or
paraphrases of them, that the model was trained on. `groups` therefore joins all pairs with the same source or target,
also indirectly, and a split takes whole groups in the order of a hash. The order depends only on the texts, not on the
order of the files or on a random generator.
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
LARGEST_SHARE = 10  # a split takes at most a tenth of the groups; otherwise small data would all be evaluation data
EMPTY, REPEATED, ANOTHER = "empty", "repeated", "another translation of an evaluated sentence"

Pair = tuple[str, str]


def fold(text: str) -> str:
    """Normalise a sentence for comparison: without case, punctuation and extra white space.

    >>> fold("L'eau  est FROIDE !") == fold("l' eau est froide.")
    True
    """
    folded = unicodedata.normalize("NFC", text).casefold()
    return " ".join(_WORDS.findall(folded)) or " ".join(folded.split())  # "!?" has no words, but is not empty


def groups(pairs: Sequence[Pair]) -> list[list[int]]:
    """Group the indices of pairs that share a side, directly or through other pairs; groups are ordered by a hash.

    Neither side of a pair occurs in another group.
    """
    # Union-find over the sides; the labels keep a source apart from a target with the same text.
    parents: dict[Pair, Pair] = {}

    def root(node: Pair) -> Pair:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = node = parents[parent]  # path halving, which keeps paths short
        return node

    folded = [(fold(source), fold(target)) for source, target in pairs]
    for source, target in folded:
        parents[root(("source", source))] = root(("target", target))
    members: defaultdict[Pair, list[int]] = defaultdict(list)
    for i, (source, _) in enumerate(folded):
        members[root(("source", source))].append(i)
    # Hash a single member: the least hash of all members would bring large groups to the front.
    return sorted(members.values(), key=lambda group: order(*min(folded[i] for i in group)))


def order(*texts: str) -> str:
    """The hash by which texts are sorted, in hexadecimal."""
    return sha256("\t".join(texts).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------ parallel text
@dataclass(frozen=True)
class Unsplit:
    """A release of parallel text without splits: its reader, and the sizes of the evaluation splits to cut out.

    `read` yields (source, target, reason) for a folder; the reason to leave the pair out is "" if there is none.
    """

    read: Callable[[Path], Iterable[tuple[str, str, str]]]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Split:
    """The pairs of each split, and rows (split, reason, source, target) for the pairs left out."""

    pairs: Mapping[str, Sequence[Pair]]
    left_out: Sequence[tuple[str, str, str, str]]

    def dropped(self, split: str) -> dict[str, int]:
        """Count the pairs that were left out of a split, by reason."""
        return dict(Counter(reason for of, reason, *_ in self.left_out if of == split))


def split(release: Unsplit, root: Path) -> Split:
    """Split a release: one pair per evaluation group, and all pairs of the remaining groups for training.

    Of an evaluation group, the pair with the first hash is kept, so that no source is evaluated twice; its other pairs
    are left out, as are repeated pairs. The training pairs keep the order of the release. Raises LeapformerError if
    there are fewer than ten groups.
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
    grouped = groups(pairs)
    most = len(grouped) // LARGEST_SHARE
    if not most:
        raise LeapformerError(f"{root} holds {len(grouped)} different sentence pairs; to split them, give at least 10")
    chosen: dict[str, list[Pair]] = {}
    first = 0
    taken: set[int] = set()
    for name, size in release.sizes.items():
        chosen[name] = []
        for group in grouped[first : first + min(size, most)]:
            kept, *others = sorted(group, key=lambda i: order(*pairs[i]))
            chosen[name].append(pairs[kept])
            left_out += [(name, ANOTHER, *pairs[i]) for i in others]
            taken.update(group)
        first += len(chosen[name])
    return Split({"train": [pair for i, pair in enumerate(pairs) if i not in taken], **chosen}, left_out)
