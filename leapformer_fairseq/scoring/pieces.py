"""Cuts the translation of a talk into a piece for each reference segment.

Segments come in OmniSTEval's segmentation, YAML or JSON, and a text file with the reference of each in a line:

    - {wav: talk1.wav, offset: 2.433, duration: 9.05}

Times are in seconds from the first sample. The segments of a recording are consecutive and sorted by time. Pieces are
stored in OmniSTEval's format instances.resegmented.jsonl: times are in milliseconds from the start of the segment, so
words written before it have negative times.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import yaml

from ..runtime.formats import jsonl
from ..runtime.formats.runlog import Instance
from ..runtime.formats.talks import LOGGED, Talk, join
from ..support.errors import LeapformerError
from ..support.files import write_text
from ..support.lines import read_lines
from .alignment import mwer_segments, soft_segments

SEGMENTERS = ("soft", "mwer")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first needs libyaml and is 10 times as fast
_SEGMENT = "a segment is {wav: NAME, offset: S, duration: S}, in seconds"
_HINT = "is it OmniSTEval's instances.resegmented.jsonl?"


# ------------------------------------------------------------------------------------------------------------- segments
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
    lines = [line.strip() for line in read_lines(references, "--references")]
    segments, places = list[Segment](), list[str]()
    for place, entry in _entries(Path(path)):
        recording, offset = (
            jsonl.field(entry, "wav", jsonl.text, place, _SEGMENT),
            jsonl.field(entry, "offset", jsonl.duration, place, _SEGMENT),
        )
        length = jsonl.field(entry, "duration", jsonl.duration, place, _SEGMENT)
        if not length:
            raise LeapformerError(f"{place}: a segment of {recording} has no duration; leave it and its reference out")
        reference = lines[len(segments)] if len(segments) < len(lines) else ""
        segments.append(Segment(recording, 1000 * offset, 1000 * length, reference))
        places.append(place)
    if not segments:
        raise LeapformerError(f"--segments {path} holds no segment; {_SEGMENT}")
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
        raise LeapformerError(f"--segments {path} is not a segmentation ({reason}); {_SEGMENT}") from error
    if not isinstance(entries, list):
        raise LeapformerError(f"--segments {path} is not a list; {_SEGMENT}")
    for place, entry in zip(places, entries, strict=True):
        if not isinstance(entry, dict):
            raise LeapformerError(f"{place} is {entry!r:.40}; {_SEGMENT}")
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


# --------------------------------------------------------------------------------------------------------------- pieces
@dataclass(frozen=True)
class Piece:
    """The text written for a segment; all times are in milliseconds from the segment's start.

    instance: the text, its reference and its delays; `source_length` is the duration of the segment.
    place:    indices, from 0, of the recording, and of the segment in it.
    end:      when the recording's last segment ends.
    aware:    times with computation, as in `Talk`.
    """

    instance: Instance
    place: tuple[int, int]
    end: float
    aware: Mapping[str, tuple[float, ...]]


def cut(
    talks: Sequence[Talk],
    segments: Sequence[Segment],
    unit: str = "word",
    segmenter: str = "soft",
    lang: str | None = None,
) -> list[Piece]:
    """Cut talks into a piece for each segment, in order; every unit of a talk belongs to one piece.

    With `lang`, the soft segmenter compares Moses tokens instead of words. Raises LeapformerError for a talk of an
    unknown recording, two talks of one recording, and recordings without a talk.
    """
    talk_of = _by_recording(talks, segments)
    pieces: list[Piece] = []
    for number, (recording, parts) in enumerate(by_recording(segments)):
        talk = talk_of[recording]
        counts = Counter(_align([part.reference for part in parts], talk.units, unit, segmenter, lang))
        # The alignment is monotonic, so the number of units per segment gives consecutive slices.
        end, start = max(part.end for part in parts), 0
        for rank, part in enumerate(parts):
            stop = start + counts[rank]
            pieces.append(_piece(talk, slice(start, stop), part, end, len(pieces), (number, rank), unit))
            start = stop
    return pieces


def write_pieces(path: str | Path, pieces: Sequence[Piece]) -> None:
    """Write pieces, with the times of computation that were logged. Raises LeapformerError if this fails."""
    write_text(path, "".join(json.dumps(_entry(piece), ensure_ascii=False) + "\n" for piece in pieces), "--resegmented")


def read_pieces(path: Path, unit: str = "word") -> list[Piece]:
    """Read a file of pieces. Raises LeapformerError if it is damaged or counts in another unit."""
    return [_read(entry, place, rank, unit) for rank, (place, entry) in enumerate(jsonl.read_objects(path))]


def _by_recording(talks: Sequence[Talk], segments: Sequence[Segment]) -> dict[str, Talk]:
    recordings = list(dict.fromkeys(segment.recording for segment in segments))
    talk_of: dict[str, Talk] = {}
    for talk in talks:
        recording = find_recording(talk.recording, recordings)
        if recording is None:
            raise LeapformerError(
                f"{talk.place}: --segments has no recording, or several, called {talk.recording}; it has "
                f"{', '.join(recordings):.80}; give the segments of these talks"
            )
        if recording in talk_of:
            raise LeapformerError(
                f"{talk.place}: {recording} was read at {talk_of[recording].place} already; give each talk once"
            )
        talk_of[recording] = talk
    missing = [recording for recording in recordings if recording not in talk_of]
    if missing:
        raise LeapformerError(
            f"no log has {missing[0]}, a recording of --segments ({len(missing)} of {len(recordings)} are missing); "
            "give the logs of all talks"
        )
    return talk_of


def _align(references: Sequence[str], units: Sequence[str], unit: str, segmenter: str, lang: str | None) -> list[int]:
    if segmenter == "mwer":
        return mwer_segments(references, units, unit == "char")
    split: Callable[[str], Sequence[str]] = str.split if unit == "word" else lambda text: text.replace(" ", "")
    return soft_segments([split(text) for text in references], units, unit == "char", lang)


def _piece(
    talk: Talk, part: slice, segment: Segment, end: float, index: int, place: tuple[int, int], unit: str
) -> Piece:
    def relative(times: Sequence[float]) -> tuple[float, ...]:
        return tuple(moment - segment.offset for moment in times[part])

    delays, aware = relative(talk.delays), {way: relative(times) for way, times in talk.aware.items()}
    text = join(talk.units[part], unit)
    instance = Instance(index, text, segment.reference, delays, aware.get(LOGGED, delays), segment.duration)
    return Piece(instance, place, end - segment.offset, aware)


def _entry(piece: Piece) -> dict[str, Any]:
    instance = piece.instance
    times = {
        "emission_cu": instance.delays,
        **({"emission_ca": piece.aware[LOGGED]} if LOGGED in piece.aware else {}),
        "time_to_recording_end": piece.end,
    }
    return {
        "index": instance.index,
        "docid": piece.place[0],
        "segid": piece.place[1],
        "prediction": instance.prediction,
        "reference": instance.reference,
        "source_length": instance.source_length,
        **(times if instance.delays else {}),  # without output, there are none
    }


def _read(entry: dict[str, Any], place: str, index: int, unit: str) -> Piece:
    prediction = jsonl.field(entry, "prediction", jsonl.text, place, _HINT)
    n_units = len(prediction.split()) if unit == "word" else len(prediction)
    delays, end, aware = tuple[float, ...](), 0.0, dict[str, tuple[float, ...]]()
    if n_units:
        delays = jsonl.field(entry, "emission_cu", jsonl.numbers, place, _HINT)
        end = jsonl.field(entry, "time_to_recording_end", jsonl.number, place, "resegment with OmniSTEval 0.1.10")
        if "emission_ca" in entry:
            aware[LOGGED] = jsonl.field(entry, "emission_ca", jsonl.numbers, place, _HINT)
    for times in (delays, *aware.values()):
        if len(times) != n_units:
            raise LeapformerError(
                f"{place} has {len(times)} times for {n_units} units of kind {unit!r}; give the file's own --level"
            )
    length = jsonl.field(entry, "source_length", jsonl.duration, place, _HINT)
    if not length:
        raise LeapformerError(f"{place} has a 'source_length' of 0; {_HINT}")
    reference = jsonl.field(entry, "reference", jsonl.text, place, _HINT)
    number = (jsonl.field(entry, "docid", int, place, _HINT), jsonl.field(entry, "segid", int, place, _HINT))
    instance = Instance(index, prediction, reference, delays, aware.get(LOGGED, delays), length)
    return Piece(instance, number, end, aware)
