"""Reads lines of text files and rows of tables; the package has no other reader of either.

A line ends with a line feed, or a carriage return and a line feed. Python's `splitlines` and universal newlines also
split at a carriage return by itself, VT, FF, FS, GS, RS, NEL, U+2028 and U+2029. These occur inside sentences, and a
reader that splits there pairs every later line with the wrong one.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from types import MappingProxyType

from .errors import LeapformerError
from .files import replacing

AT_ONCE = 1 << 20  # bytes that `waiting` takes, so that memory is bounded
_ESCAPED = re.compile(r"\\(.)")
_FIELD = re.compile(r"((?:\\.|[^\t])*)\t")  # a field in which a backslash escapes the next character


# ---------------------------------------------------------------------------------------------------------------- lines
def find_text(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of these files that exists in `folder`, with or without .gz; None if there is none."""
    candidates = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def waiting(stream: io.BufferedIOBase) -> Iterator[list[bytes]]:
    """The lines of a stream, all that have arrived at a time: one that is typed, or many of a file."""
    rest = b""
    while chunk := stream.read1(AT_ONCE):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line + b"\n" for line in lines]
    if rest:
        yield [rest]


def decoded(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    """Decode lines, such as those of a file opened in binary mode, and strip their endings.

    `name` is the name of the file in messages, `first` the number of its first line. Raises LeapformerError, with the
    line and the byte, for text that is not UTF-8.
    """
    for number, line in enumerate(lines, first):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LeapformerError(
                f"{name}, line {number}, is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start + 1}); convert "
                "it, e.g. with `iconv -f latin1 -t utf-8`"
            ) from error
        yield text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def read_lines(
    path: str | Path, option: str = "", remedy: str = "check the path, or download it again"
) -> Iterator[str]:
    """Iterate over the lines of a file, which may be compressed with gzip.

    Raises LeapformerError, with the `option` that names the file, if the file cannot be read, is named .gz without
    being gzip, or is not UTF-8.
    """
    path = Path(path)
    name = f"{option} {path}".strip()
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            yield from decoded(file, name)
    except OSError as error:
        raise LeapformerError(f"{name} cannot be read: {error.strerror or error}; {remedy}") from error
    except (EOFError, zlib.error) as error:
        raise LeapformerError(f"{name} cannot be read ({error}); {remedy}") from error


def lines_or_text(value: str) -> list[str]:
    """Return the lines of the file `value`, or of the text `value` if there is no such file.

    Raises LeapformerError like `read_lines`.
    """
    try:
        if Path(value).is_file():
            return list(read_lines(value))
    except OSError:  # the text is too long for a file name
        pass
    return list(decoded(io.BytesIO(value.encode("utf-8", "surrogateescape")), "the text"))


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Iterate over pairs of lines of two files; at the end, raise LeapformerError if one file has more lines."""
    counts = [0, 0]
    for lines in zip_longest(read_lines(source), read_lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if counts[0] == counts[1]:
            yield lines
    if counts[0] != counts[1]:
        raise LeapformerError(
            f"{source} has {counts[0]} lines but {target} has {counts[1]}, so they do not match line by line; give "
            "the files that belong together"
        )


def write_lines(path: Path, lines: Iterable[object]) -> int:
    """Write a text file atomically, line by line, and return the number of lines."""
    count = 0
    with replacing(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(f"{line}\n")
            count += 1
    return count


# --------------------------------------------------------------------------------------------------------------- tables
def read_table(
    path: str | Path, needed: Mapping[str, str] = MappingProxyType({}), *, of_common_voice: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Iterate over the rows of a table with a header, as (number of the row's last line, {column: field}).

    In a .csv, commas separate fields, and a quoted field may contain line feeds. In any other file, tabs do, and
    quotation marks have no meaning. Empty lines are skipped. With `of_common_voice`, a backslash escapes the next
    character, and rows may lack their last fields. `needed` maps required columns to the remedy if one is missing.

    Raises LeapformerError if the file cannot be read, lacks a needed column, or has a row whose number of fields
    differs from the header's.
    """
    rows = _rows(Path(path), of_common_voice)
    names = next(rows, (0, []))[1]
    missing = [name for name in needed if name not in names]
    if missing:
        has = ", ".join(names)[:200] or "none"
        raise LeapformerError(f"{path} has no column {missing[0]!r}, it has {has}; {needed[missing[0]]}")
    for number, fields in rows:
        if of_common_voice:
            fields = [*fields, *[""] * len(names)][: len(names)]
        if len(fields) != len(names):
            raise LeapformerError(
                f"{path}, line {number}: another number of fields than the {len(names)} of the first "
                f"line; separate them by {'commas' if Path(path).suffix == '.csv' else 'tabs'}"
            )
        yield number, dict(zip(names, fields, strict=True))


def _rows(path: Path, escapes: bool) -> Iterator[tuple[int, list[str]]]:
    lines = read_lines(path)
    first = next(lines, "").removeprefix("\ufeff")  # a byte order mark, which spreadsheets write
    if path.suffix != ".csv":
        for number, line in enumerate(chain([first], lines), 1):
            if line:
                yield number, _fields(line, escapes)
        return
    reader = csv.reader(f"{line}\n" for line in chain([first], lines))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise LeapformerError(f"{path}, line {reader.line_num}, cannot be read as a table ({error})") from error


def _fields(line: str, escapes: bool) -> list[str]:
    if not escapes or "\\" not in line:
        return line.split("\t")
    return [_ESCAPED.sub(r"\1", field) for field in _FIELD.findall(line + "\t")]
