"""The reference segments of recordings: OmniSTEval's segmentation (YAML or JSON) and a text file.

    - {wav: talk1.wav, offset: 2.433, duration: 9.05}

Times are in seconds from the first sample. There is a reference of one line for each segment; the segments of a
recording are consecutive and in order.
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

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is 10 times as fast, where libyaml is there
_HINT = "a segment is {wav: NAME, offset: S, duration: S}, in seconds"


@dataclass(frozen=True)
class Segment:
    """A segment of a recording, in milliseconds from its first sample, and its reference translation."""

    recording: str
    offset: float
    duration: float
    reference: str

    @property
    def end(self) -> float:
        return self.offset + self.duration


def read_segments(path: str | Path, references: str | Path) -> list[Segment]:
    """The segments of all recordings with their references, in the order of the file.

    Raises LeapformerError for unreadable files, entries that are not segments, segments that are out of order,
    recordings whose segments are not consecutive, and a different number of references.
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
    """Every recording with its segments, in order."""
    for recording, own in groupby(segments, key=lambda one: one.recording):
        yield recording, list(own)


def read_sentences(path: str | Path, option: str) -> list[str]:
    """The lines of a text file, without outer spaces. Raises LeapformerError with the option that names the file."""
    return [line.strip() for line in read_lines(path, option)]


def find_recording(name: str, recordings: Sequence[str]) -> str | None:
    """The recording that a log calls `name`: by its full name, else by the file name, else without the suffix.

    None if there is none, or more than one.
    """
    for part in (str, lambda path: Path(path).name, lambda path: Path(path).stem):
        found = [one for one in recordings if part(one) == part(name)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(place for messages, entry) for each segment."""
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            found = json.loads(content)
            places = [f"{path}, entry {i}" for i in range(1, len(found if isinstance(found, list) else ()) + 1)]
        else:
            node = yaml.compose(content, Loader=_LOADER)
            found = yaml.load(content, Loader=_LOADER)
            parts = node.value if isinstance(found, list) else []
            places = [f"{path}:{one.start_mark.line + 1}" for one in parts]
    except OSError as error:
        raise LeapformerError(f"--segments {path} cannot be read ({error.strerror}); check the path") from error
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise LeapformerError(f"--segments {path} is no segmentation ({reason}); {_HINT}") from error
    if not isinstance(found, list):
        raise LeapformerError(f"--segments {path} is no list; {_HINT}")
    for place, entry in zip(places, found, strict=True):
        if not isinstance(entry, dict):
            raise LeapformerError(f"{place} is {entry!r:.40}; {_HINT}")
    return list(zip(places, found, strict=True))


def _check_order(segments: Sequence[Segment], places: Sequence[str]) -> None:
    done: set[str] = set()
    for (before, after), place in zip(pairwise(segments), places[1:], strict=True):
        if before.recording != after.recording:
            done.add(before.recording)
            if after.recording in done:
                raise LeapformerError(
                    f"{place}: {after.recording} comes again after {before.recording}; put the segments of a recording "
                    "and their references together"
                )
        elif after.offset < before.offset:
            raise LeapformerError(
                f"{place}: the segment at {after.offset / 1000:g} s comes after that at {before.offset / 1000:g} s; "
                "sort the segments of a recording, and their references, by offset"
            )
