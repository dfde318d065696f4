"""The translations of whole talks, with times: OmniSTEval's log, an object for each recording.

    {"source": "talk1.wav", "prediction": "Guten Tag", "delays": [2000, 2500], "elapsed": [2100, 2650]}

Milliseconds, one for every unit: a word, or a character, with or without spaces. SimulEval's instances.log of whole
talks has the same fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ...support.files import write_text
from . import jsonl
from .delays import repaired

LOGGED, REPAIRED, QUEUED = "CA", "CA_repaired", "CA_queued"  # three ways to take computation into account
_HINT = "give a log with source, prediction, delays and perhaps elapsed of each recording"


@dataclass(frozen=True)
class Effort:
    """Information in a log of chunks beyond the text: the number of units that were taken back, and seconds.

    `chunks_s`: computation for each chunk of audio.
    """

    erased: int
    audio_s: float
    chunks_s: tuple[float, ...]


@dataclass(frozen=True)
class Talk:
    """The translation of a recording: words or characters, each with the milliseconds of source heard before it.

    `aware`: the same with computation, by the way it was counted: "CA" as logged, "CA_repaired" for a log of SimulEval
    (see `delays.repaired`), "CA_queued" with queueing of chunks (`delays.queued`). `source_length`: of the recording
    in ms, None if unknown. `place`: of the log, for messages.
    """

    recording: str
    units: tuple[str, ...]
    delays: tuple[float, ...]
    aware: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    source_length: float | None = None
    effort: Effort | None = None
    place: str = ""


def read_talks(path: Path, unit: str) -> list[Talk]:
    """All recordings in a log. Raises LeapformerError for a damaged log, and one that counts in another unit."""
    return [_talk(entry, place, unit) for place, entry in jsonl.read_objects(path)]


def write_talks(path: str | Path, talks: Sequence[Talk], unit: str) -> None:
    """Write the log; `elapsed` has the queued times if there are any, else those that were logged.

    Raises LeapformerError if it cannot be written.
    """
    write_text(path, "".join(json.dumps(_entry(talk, unit), ensure_ascii=False) + "\n" for talk in talks), "--log")


def join(units: Sequence[str], unit: str) -> str:
    """Join words, or characters, to text."""
    return (" " if unit == "word" else "").join(units)


def _entry(talk: Talk, unit: str) -> dict[str, Any]:
    times = talk.aware.get(QUEUED, talk.aware.get(LOGGED, talk.delays))
    return {
        "source": talk.recording,
        "prediction": join(talk.units, unit),
        "delays": talk.delays,
        "elapsed": times,
        **({} if talk.source_length is None else {"source_length": talk.source_length}),
    }


def _talk(entry: dict[str, Any], place: str, unit: str) -> Talk:
    prediction = jsonl.field(entry, "prediction", jsonl.text, place, _HINT)
    delays = jsonl.field(entry, "delays", jsonl.durations, place, _HINT)
    units = _units(prediction, len(delays), unit)
    if len(units) != len(delays):
        raise LeapformerError(
            f"{place} has {len(delays)} delays for {len(units)} units of kind {unit!r}; give the log's own --level"
        )
    aware = {}
    if entry.get("elapsed") is not None:
        elapsed = jsonl.field(entry, "elapsed", jsonl.durations, place, _HINT)
        if len(elapsed) != len(delays):
            raise LeapformerError(f"{place} has {len(elapsed)} elapsed times for {len(delays)} delays; {_HINT}")
        aware = {LOGGED: elapsed, REPAIRED: repaired(elapsed, delays)}
    length = None if entry.get("source_length") is None else jsonl.field(entry, "source_length", jsonl.duration, place)
    return Talk(jsonl.field(entry, "source", _source, place, _HINT), units, delays, aware, length, None, place)


def _source(value: Any) -> str:
    return jsonl.text(value[0] if isinstance(value, list) and value else value)


def _units(prediction: str, n_delays: int, unit: str) -> tuple[str, ...]:
    """SimulEval leaves the spaces between characters out, others count them."""
    if unit == "word":
        return tuple(prediction.split())
    return tuple(prediction if len(prediction) == n_delays else prediction.replace(" ", ""))
