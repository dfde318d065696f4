"""Cuts the translation of a talk into a piece for each reference segment.

Pieces are stored in OmniSTEval's format instances.resegmented.jsonl: times are in milliseconds from the start of the
segment, so words written before it have negative times.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime.formats import jsonl
from ..runtime.formats.runlog import Instance
from ..runtime.formats.talks import LOGGED, Talk, join
from ..support.errors import LeapformerError
from ..support.files import write_text
from .alignment import mwer_segments, soft_segments
from .segmentation import Segment, by_recording, find_recording

SEGMENTERS = ("soft", "mwer")
_HINT = "is it OmniSTEval's instances.resegmented.jsonl?"


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
