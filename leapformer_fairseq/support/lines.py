"""The lines of text files, and the rows of tables: the one reader of the package.

Only a line feed ends a line, and a carriage return before it belongs to the end. Nothing else does, whatever Python's
`splitlines` and universal newlines say: a carriage return by itself, VT, FF, FS, GS, RS, NEL, U+2028 and U+2029 occur
inside sentences, and a reader that splits there pairs every later line with the wrong one.
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

_ESCAPED = re.compile(r"\\(.)")
_FIELD = re.compile(r"((?:\\.|[^\t])*)\t")  # of a table in which a backslash escapes what follows it


# ---------------------------------------------------------------------------------------------------------------- lines
def find_text(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of these files that exists in `folder`, as it is or with .gz; None if there is none."""
    candidates = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def decoded(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    """The text of lines that end with a line feed, such as those of a file that is open in binary mode.

    `name` is what messages call the file, and `first` the number of the first line. Raises LeapformerError with the
    line and the byte for what is not UTF-8.
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
    """The lines of a file, plain or gzip, one by one.

    Raises LeapformerError, with the `option` that names the file, if it cannot be read, is named .gz but is not gzip,
    or is not UTF-8.
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
    """The lines of the file of that name, or of the value itself. Raises LeapformerError as `read_lines` does."""
    try:
        if Path(value).is_file():
            return list(read_lines(value))
    except OSError:  # a sentence may be longer than the name of a file
        pass
    return list(decoded(io.BytesIO(value.encode("utf-8", "surrogateescape")), "the text"))


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
            "give the files that belong together"
        )


def write_lines(path: Path, lines: Iterable[object]) -> int:
    """Write a text file line by line, whatever its size, and return the number of lines."""
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
    """The rows of a table by the names in its first line, with the numbers of the lines where they end.

    Fields are separated by tabs, and quotation marks have no meaning; in a .csv they are separated by commas, and one
    in quotation marks may hold line feeds. Lines without anything in them are no rows. In tables `of_common_voice`,
    what follows a backslash belongs to the field, and rows may lack the last fields. Raises LeapformerError for a file
    that cannot be read, lacks a `needed` column, whose value is the remedy, or has a row with another number of fields
    than the first line.
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
    first = next(lines, "").removeprefix("\ufeff")  # spreadsheets begin with it
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
