"""The tasks Text and Retrieval: reviews (IMDb) and pairs of papers (AAN) as sequences of bytes.

A byte becomes its value + 1, since 0 is padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...support.errors import LeapformerError
from ...support.lines import read_lines
from ..arrays import Example, Numbers

LONGEST = 4000  # bytes
SIDES = ("neg", "pos")


def as_bytes(text: str, longest: int = LONGEST) -> Numbers:
    """The first `longest` bytes of the text in UTF-8, each plus 1."""
    return np.frombuffer(text.encode()[:longest], dtype=np.uint8).astype(np.uint16) + 1


def reviews(folder: Path) -> list[tuple[Path, int]]:
    """The files of aclImdb/train or aclImdb/test with their labels. Raises LeapformerError if there are none."""
    files = [(path, label) for label, side in enumerate(SIDES) for path in sorted((folder / side).glob("*.txt"))]
    for label, side in enumerate(SIDES):
        if all(other != label for _, other in files):
            raise LeapformerError(f"{folder / side} holds no .txt files; check the path, or download it again")
    return files


def read_reviews(files: list[tuple[Path, int]]) -> Iterator[Example]:
    """Yield the reviews in these files. Raises LeapformerError for a file that cannot be read."""
    for path, label in files:
        try:
            yield Example((as_bytes(path.read_text(encoding="utf-8")),), label)
        except (OSError, UnicodeDecodeError) as error:
            raise LeapformerError(f"{path} cannot be read ({error}); download it again") from error


def read_pairs(path: Path) -> Iterator[Example]:
    """Yield the pairs of papers of new_aan_pairs.*.tsv; the label is 1 if one cites the other.

    A line has label, two identifiers and two texts. Raises LeapformerError for a line in another format.
    """
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
            raise LeapformerError(
                f"{path}, line {number}: {len(fields)} fields that begin with {fields[0][:20]!r}, instead of a label, "
                "0 or 1, two identifiers and two texts; download it again"
            )
        yield Example((as_bytes(fields[3]), as_bytes(fields[4])), int(float(fields[0])))
