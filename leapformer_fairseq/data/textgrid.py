"""Praat's TextGrid files in the long text format, as the Montreal Forced Aligner writes them: tiers of intervals."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..support.errors import LeapformerError
from .alignments import Interval

WORDS, PHONES = "words", "phones"  # the tiers of an aligned recording
GAP_S = 0.005  # accepted between consecutive intervals, since times are rounded

_BEGIN = ('File type = "ooTextFile"', 'Object class = "TextGrid"')
_FIELD = re.compile(r"(?:(intervals|points): )?(xmin|xmax|class|name|text|mark|time|number|size)\s*=\s*(.*)", re.DOTALL)
_HEADING = re.compile(r"(?:item|intervals|points) \[\d*\]:?|tiers\? <\w+>")
_STRING = re.compile(r'"((?:[^"]|"")*)"')

Tiers = dict[str, list[Interval]]


def read_textgrid(path: Path) -> Tiers:
    """Read the interval tiers of a TextGrid, by name; point tiers are left out.

    The file may be UTF-8 or UTF-16, with any line ends. Raises LeapformerError with file and line if it is not a
    TextGrid in the long format, is truncated, or has intervals that do not follow each other.
    """
    return _Reader(path).read()


def tier(tiers: Tiers, name: str, path: Path) -> list[Interval]:
    """The tier of this name, possibly prefixed with the only speaker's ("LJ - phones").

    Raises LeapformerError with the file name if there is not exactly one such tier, or if it is empty.
    """
    matching = [intervals for key, intervals in tiers.items() if key == name or key.endswith(f" - {name}")]
    if len(matching) != 1 or not matching[0]:
        names = ", ".join(tiers) or "none"
        raise LeapformerError(
            f"{path} needs one tier {name!r} with intervals in it (its tiers: {names}); align it again"
        )
    return matching[0]


class _Reader:
    """Reads a file field by field, and tracks the current line for error messages."""

    def __init__(self, path: Path) -> None:
        self._path, self._line = path, 0
        self._tiers: Tiers = {}
        self._intervals: list[Interval] | None = None  # of the current tier; None in a tier of points
        self._expected = 0  # number of intervals that the current tier announces
        self._kind = ""
        self._times: dict[str, float] = {}

    def read(self) -> Tiers:
        for name, value in self._fields(self._lines()):
            match name:
                case "class":
                    self._kind = self._string(value)
                case "name":
                    self._begin_tier(self._string(value))
                case "intervals":
                    self._expected = int(self._number(value))
                case "xmin" | "xmax":
                    self._times[name] = self._number(value)
                case "text" if self._intervals is not None:
                    self._intervals.append(self._interval(self._string(value)))
                case "heading":
                    self._times.clear()
        self._end_tier()
        return self._tiers

    def _lines(self) -> list[str]:
        try:
            content = self._path.read_bytes()
            wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            text = content.decode("utf-16" if wide else "utf-8-sig")
        except OSError as error:
            raise LeapformerError(f"{self._path} cannot be read ({error}); check the path") from error
        except UnicodeDecodeError as error:
            self._line = content[: error.start].count(b"\n") + 1
            raise self._error(f"neither UTF-8 nor UTF-16 ({error.reason})") from error
        return re.split(r"\r\n|\r|\n", text)

    def _fields(self, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield each field's name and unparsed value; the field `intervals: size` is named "intervals".

        A quoted string may span several lines, which are joined with line feeds. Headings yield ("heading", line).
        """
        begin = iter(_BEGIN)
        rest = enumerate(lines, 1)
        for self._line, line in rest:
            line = line.strip()
            if not line:
                continue
            if (expected := next(begin, None)) is not None:
                if line != expected:
                    raise self._error(f"{line[:40]!r} where {expected!r} should be")
            elif _HEADING.fullmatch(line):
                yield "heading", line
            elif (field := _FIELD.fullmatch(line)) is not None:
                owner, name, value = field.groups()
                first = self._line  # a missing quotation mark is reported where the string begins
                while value.startswith('"') and not _STRING.fullmatch(value):
                    number, more = next(rest, (first, None))
                    if more is None:
                        self._line = first
                        raise self._error("the quotation mark is never closed")
                    self._line, value = number, f"{value}\n{more.rstrip()}"
                yield owner or name, value
            else:
                raise self._error(f"{line[:40]!r} is not a line of the long format")
        if next(begin, None) is not None:
            raise self._error("the file ends")

    def _begin_tier(self, name: str) -> None:
        self._end_tier()
        self._intervals = None
        if self._kind == "IntervalTier":
            if name in self._tiers:
                raise self._error(f"a second tier {name!r}")
            self._intervals = self._tiers[name] = []

    def _end_tier(self) -> None:
        if self._intervals is not None and len(self._intervals) != self._expected:
            raise self._error(f"{len(self._intervals)} of {self._expected} intervals of a tier, then it ends")
        self._expected = 0

    def _interval(self, text: str) -> Interval:
        if self._times.keys() < {"xmin", "xmax"}:
            raise self._error("an interval without xmin or xmax")
        interval = Interval(self._times["xmin"], self._times["xmax"], text)
        last = self._intervals[-1].end if self._intervals else interval.start
        if interval.start > interval.end or abs(interval.start - last) > GAP_S:
            raise self._error(f"an interval from {interval.start:g} to {interval.end:g} s after one up to {last:g} s")
        return interval

    def _string(self, value: str) -> str:
        match = _STRING.fullmatch(value)
        if match is None:
            raise self._error(f"{value[:40]!r} where a text in quotation marks should be")
        return match[1].replace('""', '"')

    def _number(self, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self._error(f"{value[:40]!r} where a number should be")
        return number

    def _error(self, reason: str) -> LeapformerError:
        remedy = "save it in Praat as a (long) text file, or align the recording again"
        return LeapformerError(f"{self._path}, line {self._line}: {reason}; {remedy}")


def write_textgrid(path: Path, tiers: Mapping[str, Sequence[Interval]]) -> None:
    """Write interval tiers in the long format; they must not be empty and must cover the same time."""
    start, end = (f"{time:.6f}" for time in _span(next(iter(tiers.values()))))
    lines = [*_BEGIN, "", f"xmin = {start}", f"xmax = {end}", "tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, intervals) in enumerate(tiers.items(), 1):
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(name)}"]
        lines += [f"        xmin = {start}", f"        xmax = {end}", f"        intervals: size = {len(intervals)}"]
        for place, interval in enumerate(intervals, 1):
            lines.append(f"        intervals [{place}]:")
            lines += [f"            xmin = {interval.start:.6f}", f"            xmax = {interval.end:.6f}"]
            lines.append(f"            text = {_quoted(interval.text)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _span(intervals: Sequence[Interval]) -> tuple[float, float]:
    return intervals[0].start, intervals[-1].end


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
