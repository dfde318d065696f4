"""Reads the reference segments of recordings: OmniSTEval's segmentation (YAML or JSON) and a text file.

    - {wav: talk1.wav, offset: 2.433, duration: 9.05}

Times are in seconds from the first sample. The text file has a line with the reference of each segment. The segments of
a recording are consecutive and sorted by time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import yaml

from ..runtime.formats.jsonl import duration, field, text
from ..support.errors import LeapformerError
from ..support.lines import read_lines

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first needs libyaml and is 10 times as fast
_HINT = "a segment is {wav: NAME, offset: S, duration: S}, in seconds"


@dataclass(frozen=True)
class Segment:
    """A segment of a recording and its reference translation; times are in milliseconds from the first sample."""

    recording: str
    offset: float
    duration: float
    reference: str

    @property
    def end(self) -> float:
        return self.offset + self.duration


def read_segments(path: str | Path, references: str | Path) -> list[Segment]:
    """Read the segments of all recordings with their references, in the order of the file.

    Raises LeapformerError if a file cannot be read, an entry is not a segment, segments are out of order, those of a
    recording are not consecutive, or the number of references differs.
    """
    lines = read_sentences(references, "--references")
    segments, places = list[Segment](), list[str]()
    for place, entry in _entries(Path(path)):
        recording, offset = field(entry, "wav", text, place, _HINT), field(entry, "offset", duration, place, _HINT)
        length = field(entry, "duration", duration, place, _HINT)
        if not length:
            raise LeapformerError(f"{place}: a segment of {recording} has no duration; leave it and its reference out")
        reference = lines[len(segments)] if len(segments) < len(lines) else ""
        segments.append(Segment(recording, 1000 * offset, 1000 * length, reference))
        places.append(place)
    if not segments:
        raise LeapformerError(f"--segments {path} holds no segment; {_HINT}")
    if len(lines) != len(segments):
        raise LeapformerError(
            f"--references {references} has {len(lines)} lines for the {len(segments)} segments of {path}; give one "
            "reference a line for each"
        )
    _check_order(segments, places)
    return segments


def by_recording(segments: Sequence[Segment]) -> Iterator[tuple[str, list[Segment]]]:
    """Iterate over (recording, its segments), in order."""
    for recording, group in groupby(segments, key=lambda segment: segment.recording):
        yield recording, list(group)


def read_sentences(path: str | Path, option: str) -> list[str]:
    """Read the lines of a text file, stripped. Raises LeapformerError with the option that names the file."""
    return [line.strip() for line in read_lines(path, option)]


def find_recording(name: str, recordings: Sequence[str]) -> str | None:
    """Find the recording that a log calls `name`: by the full path, else the file name, else the name without suffix.

    Returns None if there is none, or more than one.
    """
    for part in (str, lambda path: Path(path).name, lambda path: Path(path).stem):
        matches = [recording for recording in recordings if part(recording) == part(name)]
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def _entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Read (place for messages, entry) of each segment."""
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            entries = json.loads(content)
            places = [f"{path}, entry {i}" for i in range(1, len(entries if isinstance(entries, list) else ()) + 1)]
        else:
            node = yaml.compose(content, Loader=_LOADER)  # parsed twice: only the nodes know their lines
            entries = yaml.load(content, Loader=_LOADER)
            nodes = node.value if isinstance(entries, list) else []
            places = [f"{path}:{entry.start_mark.line + 1}" for entry in nodes]
    except OSError as error:
        raise LeapformerError(f"--segments {path} cannot be read ({error.strerror}); check the path") from error
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise LeapformerError(f"--segments {path} is not a segmentation ({reason}); {_HINT}") from error
    if not isinstance(entries, list):
        raise LeapformerError(f"--segments {path} is not a list; {_HINT}")
    for place, entry in zip(places, entries, strict=True):
        if not isinstance(entry, dict):
            raise LeapformerError(f"{place} is {entry!r:.40}; {_HINT}")
    return list(zip(places, entries, strict=True))


def _check_order(segments: Sequence[Segment], places: Sequence[str]) -> None:
    done: set[str] = set()
    for (before, after), place in zip(pairwise(segments), places[1:], strict=True):
        if before.recording != after.recording:
            done.add(before.recording)
            if after.recording in done:
                raise LeapformerError(
                    f"{place}: {after.recording} appears again after {before.recording}; put the segments of a "
                    "recording and their references together"
                )
        elif after.offset < before.offset:
            raise LeapformerError(
                f"{place}: the segment at {after.offset / 1000:g} s comes after that at {before.offset / 1000:g} s; "
                "sort the segments of a recording, and their references, by offset"
            )
