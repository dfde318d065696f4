"""Time alignments of the phonemes or words of a recording: their frames, and Praat's TextGrid files.

The Montreal Forced Aligner writes TextGrids, tiers of intervals, which praatIO parses.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..runtime.spoken import PAUSE
from ..support.errors import SHOWN, LeapformerError


class Interval(NamedTuple):
    """A phoneme or word, spoken from `start` to `end`, in seconds of its recording."""

    start: float
    end: float
    text: str


def moved(intervals: Iterable[Interval], seconds: float) -> list[Interval]:
    """The intervals shifted by this many seconds."""
    return [Interval(start + seconds, end + seconds, text) for start, end, text in intervals]


def with_single_pauses(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge consecutive pauses, and remove pauses of zero length."""
    kept: list[Interval] = []
    for interval in intervals:
        if interval.text == PAUSE and kept and kept[-1].text == PAUSE:
            kept[-1] = kept[-1]._replace(end=interval.end)
        elif interval.text != PAUSE or interval.end > interval.start:
            kept.append(interval)
    return kept


def frame_durations(intervals: Sequence[Interval], frames: int, hop_s: float) -> list[int]:
    """Distribute a recording's `frames` over its intervals: at least 1 each, `frames` in total.

    Frame t is centred on t * `hop_s` seconds and belongs to the interval that contains this time. An interval too short
    to contain a centre takes a frame from a neighbour; the last interval takes all remaining frames. The intervals must
    start at 0 and follow each other without gaps. Raises LeapformerError if there are more intervals than frames.
    """
    if not 0 < len(intervals) <= frames:
        raise LeapformerError(f"{len(intervals)} phonemes cannot share {frames} frames; give longer speech")
    # The number of frames centred before the end of each interval. The tolerance makes a centre on a boundary belong to
    # the later interval in spite of rounding errors.
    ends = [math.ceil(interval.end / hop_s - 1e-6) for interval in intervals[:-1]] + [frames]
    # Push ends forward until each interval has a frame, then back until those after it have one, too.
    for i, end in enumerate(ends[:-1]):
        ends[i] = max(end, ends[i - 1] + 1 if i else 1)
    for i in range(len(ends) - 2, -1, -1):
        ends[i] = min(ends[i], ends[i + 1] - 1)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


WORDS, PHONES = "words", "phones"  # the tiers of an aligned recording
GAP_S = 0.005  # accepted between consecutive intervals, since times are rounded

_BEGIN = ('File type = "ooTextFile"', 'Object class = "TextGrid"')
_HEADER = re.compile(r'\s*File type = "ooTextFile(?: short)?"\s*(?:Object class = )?"TextGrid"\s')
_NEGATIVE = re.compile(r"^ *xmin ?= ?-[0.]*[1-9].*", re.MULTILINE)

Tiers = dict[str, list[Interval]]


def read_textgrid(path: Path) -> Tiers:
    """Read the interval tiers of a TextGrid in Praat's long or short text format, by name; point tiers are left out.

    The file may be UTF-8 or UTF-16, with any line ends. Raises LeapformerError with the file name if it is not a
    TextGrid, is truncated, or has intervals that do not follow each other.
    """
    from praatio.utilities.errors import PraatioException  # only needed here
    from praatio.utilities.textgrid_io import parseTextgridStr

    text = _text(path)
    if not _HEADER.match(text):
        raise _error(path, f"it begins with {text[:60]!r}")
    if negative := _NEGATIVE.search(text):  # praatIO would drop the sign
        raise _error(path, f"{negative[0].strip()!r} is before the recording")
    tiers: Tiers = {}
    try:
        # Not `openTextgrid`, which refuses intervals of zero length and overlaps by rounding.
        for content in parseTextgridStr(text, includeEmptyIntervals=True)["tiers"]:
            if content["class"] != "IntervalTier":
                continue
            if content["name"] in tiers:
                raise _error(path, f"a second tier {content['name']!r}")
            intervals = [Interval(float(start), float(end), label) for start, end, label in content["entries"]]
            _check(path, content["name"], intervals, content["xmin"], content["xmax"])
            tiers[content["name"]] = intervals
    except (PraatioException, ValueError, IndexError) as error:
        if isinstance(error, LeapformerError):
            raise
        raise _error(path, " ".join(str(error).split())[:SHOWN]) from error
    return tiers


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


def _text(path: Path) -> str:
    """The content of a file, with line feeds at the ends of lines."""
    try:
        content = path.read_bytes()
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return re.sub(r"\r\n?", "\n", content.decode("utf-16" if wide else "utf-8-sig"))
    except OSError as error:
        raise LeapformerError(f"{path} cannot be read ({error}); check the path") from error
    except UnicodeDecodeError as error:
        raise _error(path, f"it is neither UTF-8 nor UTF-16 ({error.reason})") from error


def _check(path: Path, name: str, intervals: Iterable[Interval], start: float, end: float) -> None:
    """Raise LeapformerError unless the intervals of a tier follow each other from its `start` to its `end`, in seconds.

    praatIO reads damaged files as far as it understands them.
    """
    last = start
    for interval in intervals:
        if interval.start > interval.end or abs(interval.start - last) > GAP_S:
            times = f"{interval.start:g} to {interval.end:g} s after {last:g} s"
            raise _error(path, f"tier {name!r} has an interval from {times}")
        if '"' in interval.text and "\n" in interval.text:  # it goes on over a line that is no heading any more
            raise _error(path, f"tier {name!r} has the text {interval.text[:40]!r}")
        last = interval.end
    if last < end - GAP_S:
        raise _error(path, f"tier {name!r} has intervals up to {last:g} of {end:g} s")


def _error(path: Path, reason: str) -> LeapformerError:
    remedy = "save it in Praat as a text file, or align the recording again"
    return LeapformerError(f"{path} is not a whole TextGrid: {reason}; {remedy}")


def write_textgrid(path: Path, tiers: Mapping[str, Sequence[Interval]]) -> None:
    """Write interval tiers, of which none may be empty, in the long format."""
    spans = [(intervals[0].start, intervals[-1].end) for intervals in tiers.values()]
    lines = [*_BEGIN, "", f"xmin = {min(spans)[0]:.6f}", f"xmax = {max(end for _, end in spans):.6f}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, ((name, intervals), (start, end)) in enumerate(zip(tiers.items(), spans, strict=True), 1):
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(name)}"]
        lines += [f"        xmin = {start:.6f}", f"        xmax = {end:.6f}"]
        lines.append(f"        intervals: size = {len(intervals)}")
        for place, interval in enumerate(intervals, 1):
            lines.append(f"        intervals [{place}]:")
            lines += [f"            xmin = {interval.start:.6f}", f"            xmax = {interval.end:.6f}"]
            lines.append(f"            text = {_quoted(interval.text)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
