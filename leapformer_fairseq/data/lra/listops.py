"""ListOps at the length of Long Range Arena: nested operations on digits, and the digit they evaluate to.

The task is that of Nangia and Bowman, 2018 (arXiv:1804.06028); lengths and probabilities are those of Tay et al., 2021
(arXiv:2011.04006), data/listops.py in their repository. Their files write `[MAX 4 3 ]` as `( ( ( [MAX 4 ) 3 ) ] )`,
with parentheses that make every node binary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from ...support.errors import LeapformerError
from ...support.files import replacing
from ...support.lines import read_lines
from ...support.options import at_least
from ...support.progress import Watch, unwatched
from .. import prepared
from ..arrays import Example

NAME = "listops"
FILES = {"train": "basic_train.tsv", "dev": "basic_val.tsv", "test": "basic_test.tsv"}
SIZES: Mapping[str, int] = {"train": 96_000, "dev": 2_000, "test": 2_000}
HEADER = "Source\tTarget"
END = "]"
OPERATOR = 0.25  # the probability that a node above the deepest level is an operation
TRIES = 100_000  # give up after this many unusable trees in a row


@dataclass(frozen=True)
class Trees:
    """The size of trees: more than `min_length` and fewer than `max_length` tokens, not counting parentheses.

    An operation has 2 to `max_arguments` arguments; the root is at depth 1, and below `max_depth` there are only
    digits.
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_arguments: int = 10

    def check(self) -> None:
        """Raise LeapformerError for impossible values."""
        at_least(0, min_length=self.min_length)
        at_least(2, max_depth=self.max_depth, max_arguments=self.max_arguments)
        if self.max_length < self.min_length + 2:
            raise LeapformerError(
                f"--max-length {self.max_length}: lengths lie between {self.min_length} and this, exclusive; give at "
                f"least {self.min_length + 2}"
            )


class Tree(NamedTuple):
    """A tree in the notation of the files, its value, and its number of tokens, not counting parentheses."""

    source: str
    target: int
    length: int


def median(values: Sequence[int]) -> int:
    """The median, rounded down if it is the mean of two."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


OPERATIONS: tuple[tuple[str, Callable[[Sequence[int]], int]], ...] = (
    ("[MIN", min),
    ("[MAX", max),
    ("[MED", median),
    ("[SM", lambda values: sum(values) % 10),
)


def build(
    out: str | Path,
    sizes: Mapping[str, int] = SIZES,
    seed: int = 1,
    trees: Trees = Trees(),
    watch: Watch = unwatched,
) -> prepared.Summary:
    """Write `FILES` without duplicates to the folder `out`, or reuse them.

    Returns the sizes, the SHA-256 of all lines, and the share of generated trees that was kept. The same options give
    the same bytes. `watch` receives the numbers of trees done and in total. Raises LeapformerError for options that
    hardly any tree meets, and an `out` with other files.
    """
    trees.check()
    at_least(1, **sizes)
    options = {"corpus": NAME, **sizes, "seed": seed, **asdict(trees)}
    out = Path(out)
    if (summary := prepared.begin(out, options)) is not None:
        return summary
    total, tried, digest, done = sum(sizes.values()), [0], hashlib.sha256(), 0
    generated = distinct(Random(seed), trees, tried)
    for split, name in FILES.items():
        with replacing(out / name) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(HEADER + "\n")
            for tree in islice(generated, sizes[split]):
                line = f"{tree.source}\t{tree.target}\n"
                file.write(line)
                digest.update(line.encode())
                done += 1
                if not done % 100:
                    watch(done, total)
    watch(total, total)
    summary = {"splits": dict(sizes), "checksum": digest.hexdigest(), "share_kept": round(total / tried[0], 5)}
    prepared.finish(out, options, summary)
    return summary


def distinct(random: Random, trees: Trees, tried: list[int] | None = None) -> Iterator[Tree]:
    """Yield distinct trees of the requested lengths, endlessly; `tried[0]` counts all trees that were generated.

    Raises LeapformerError after `TRIES` unusable trees in a row.
    """
    seen: set[bytes] = set()  # hashes, which take far less memory than the trees
    tried = [0] if tried is None else tried
    rejected = 0
    while True:
        tree = grow(random, trees)
        tried[0] += 1
        key = hashlib.blake2b(tree.source.encode(), digest_size=16).digest() if tree else b""
        if tree is None or key in seen:
            rejected += 1
            if rejected == TRIES:
                raise LeapformerError(
                    f"of the last {TRIES:,} trees none is new, with more than {trees.min_length} and fewer than "
                    f"{trees.max_length} tokens; ask for fewer, or other lengths"
                )
            continue
        seen.add(key)
        rejected = 0
        yield tree


def grow(random: Random, trees: Trees) -> Tree | None:
    """Grow a tree; None if its length is not in the requested range. Growth stops at the maximum length."""
    # Local names, since this runs for millions of nodes: most trees are too long or too short.
    draw, out, deepest, longest = random.random, list[str](), trees.max_depth, trees.max_length
    spread = trees.max_arguments - 1
    length = 0

    def node(depth: int) -> int:
        nonlocal length
        if depth >= deepest or draw() > OPERATOR:
            length += 1
            digit = int(draw() * 10)
            out.append(f"{digit}")
            return digit
        count = 2 + int(draw() * spread)
        name, value = OPERATIONS[int(draw() * len(OPERATIONS))]
        length += 2 + count  # operator and end, and at least a token per argument
        if length >= longest:
            raise _TooLongError
        length -= count  # the arguments count themselves
        out.append("( " * (count + 1) + name)
        arguments = []
        for _ in range(count):
            arguments.append(node(depth + 1))
            out.append(")")
        out.append(END + " )")
        return value(arguments)

    try:
        target = node(1)
    except _TooLongError:
        return None
    return Tree(" ".join(out), target, length) if trees.min_length < length < longest else None


class _TooLongError(Exception):
    pass


# ---------------------------------------------------------------------------------------------------------------- files
SYMBOLS = (*map(str, range(10)), *(name for name, _ in OPERATIONS), END)  # numbers from 1; 0 is padding
NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS, 1)}


def read(path: Path, brackets: bool = True, longest: int = 2000) -> Iterator[Example]:
    """Yield the trees of a file of the release, cut to their first `longest` tokens.

    Parentheses are left out, as in Tay et al.'s corrected reader. Without `brackets`, the ends of operations are left
    out, too, as in the data of the papers, whose reader kept only letters and digits. Raises LeapformerError for any
    other token or value.
    """
    for number, line in enumerate(read_lines(path), 1):
        line = line.removesuffix("\r")
        if number == 1 and line == HEADER:
            continue
        source, tab, target = line.partition("\t")
        try:
            tokens = [NUMBERS[token] for token in source.split() if token not in "()" and (brackets or token != END)]
            if not tokens or not tab or target not in SYMBOLS[:10]:
                raise KeyError(target)
        except KeyError as error:
            raise LeapformerError(
                f"{path}, line {number}: {error.args[0]!r} is not a token or value of ListOps; download it again"
            ) from error
        yield Example((np.array(tokens[:longest], dtype=np.uint8),), int(target))
