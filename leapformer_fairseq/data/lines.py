"""Lines of text files, plain or gzip: only a line feed ends a line, whatever other characters the text contains."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from ..errors import LeapformerError
from ..files import replacing


def find_text(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of these files that exists in `folder`, as it is or with .gz; None if there is none."""
    candidates = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, one by one.

    Raises LeapformerError if the file cannot be read, is named .gz but is not gzip, or is not UTF-8.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise LeapformerError(f"{path} is not UTF-8 ({error.reason}); convert it, or download it again") from error
    except (OSError, EOFError, zlib.error) as error:
        raise LeapformerError(f"{path} cannot be read ({error}); download it again") from error


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Pairs of lines of two files. Raises LeapformerError, at the end, if one file has more lines than the other."""
    counts = [0, 0]
    for lines in zip_longest(read_lines(source), read_lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if counts[0] == counts[1]:
            yield lines
    if counts[0] != counts[1]:
        raise LeapformerError(
            f"{source} has {counts[0]} lines but {target} has {counts[1]}, so they are no translations line by line; "
            "download them again"
        )


def write_lines(path: Path, lines: Iterable[object]) -> int:
    """Write a text file line by line, whatever its size, and return the number of lines."""
    count = 0
    with replacing(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(f"{line}\n")
            count += 1
    return count
