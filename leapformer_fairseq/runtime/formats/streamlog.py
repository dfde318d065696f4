"""simulstream's metrics log (version 1.0): what a system wrote, and took back, after each chunk of audio.

    {"model_loading_time": 6.84}
    {"id": 0, "metadata": {"wav_name": "talk1.wav"}}
    {"id": 0, "total_audio_processed": 0.5, "computation_time": 0.02, "generated_tokens": ["▁E"], "deleted_tokens": []}

Times are in seconds; deleted tokens are the last ones so far. simulstream appends to an existing log, and then reads
two runs as one talk; our code does neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from ...support.errors import LeapformerError
from . import jsonl
from .delays import queued
from .talks import LOGGED, QUEUED, Effort, Talk

WORD_START = "\u2581"  # sentencepiece's mark of a space before a piece
_HINT = "simulstream 1.0 writes id, total_audio_processed, computation_time, generated_tokens and deleted_tokens"


@dataclass(frozen=True)
class Chunk:
    """The output for one more chunk of audio: seconds heard so far, seconds of computation for this chunk.

    `deleted_tokens` are removed from the end, then `generated_tokens` are added.
    """

    total_audio_processed: float
    computation_time: float
    generated_tokens: tuple[str, ...]
    deleted_tokens: tuple[str, ...]


def read_stream_log(path: Path, unit: str) -> list[Talk]:
    """The final text of every recording, with the time when each unit became final. Linear in the size of the log.

    Tokens with sentencepiece's mark are pieces of words, others are words (unit "word") or characters.

    Raises LeapformerError for a damaged log, one of another version, a stream without a name, deleted tokens that are
    not the last ones, and a recording that occurs twice or goes back in time, as in a log that a second run appended
    to.
    """
    chunks: dict[str, list[tuple[str, Chunk]]] = {}
    names: dict[str, str] = {}
    for place, entry in jsonl.read_objects(path):
        if "metadata" in entry:
            name = jsonl.field(entry["metadata"] or {}, "wav_name", jsonl.text, place, _HINT)
            if name in chunks:
                raise LeapformerError(
                    f"{place}: {name} begins again, a second run was appended to the log; delete the log before a run"
                )
            names[repr(entry.get("id"))], chunks[name] = name, []
        elif "id" in entry:
            entries = _stream(entry, names, chunks, place)
            chunk = _chunk(entry, place)
            if entries and chunk.total_audio_processed < entries[-1][1].total_audio_processed:
                raise LeapformerError(
                    f"{place}: {chunk.total_audio_processed:g} s of audio after "
                    f"{entries[-1][1].total_audio_processed:g} s, a second run was appended to the log; delete it "
                    "before a run"
                )
            entries.append((place, chunk))
        elif "model_loading_time" not in entry:
            raise LeapformerError(f"{place} is of no stream, or of another version; {_HINT}")
    marked = any(
        WORD_START in token for entries in chunks.values() for _, chunk in entries for token in chunk.generated_tokens
    )
    return [
        talk_of(name, [chunk for _, chunk in entries], unit, marked, [place for place, _ in entries])
        for name, entries in chunks.items()
    ]


def talk_of(
    name: str, chunks: Sequence[Chunk], unit: str, marked: bool = True, places: Sequence[str] | None = None
) -> Talk:
    """The final text of chunks, with the times of its units; `marked`: tokens have sentencepiece's mark."""
    places = places or [f"{name}, chunk {i}" for i in range(1, len(chunks) + 1)]
    detokenized = _detokenizer(unit, marked)
    tokens: list[tuple[str, int, int]] = []  # text, the chunk that wrote it, the one that last cut its word behind it
    erased = 0
    for rank, (place, chunk) in enumerate(zip(places, chunks, strict=True)):
        gone = [detokenized(token) for token in chunk.deleted_tokens]
        if gone:
            last = [token for token, *_ in tokens[-len(gone) :]]
            if last != gone:
                raise LeapformerError(
                    f"{place} deletes {''.join(gone)!r:.40}, but {''.join(last)!r:.40} is what was written last; make "
                    "the log again"
                )
            del tokens[-len(gone) :]
            erased += len(_split([(text, 0, 0) for text in gone], unit))
            if unit == "word" and tokens and not "".join(gone)[:1].isspace():
                tokens[-1] = (*tokens[-1][:2], rank)
        tokens += [(detokenized(token), rank, rank) for token in chunk.generated_tokens]
    units = _split(tokens, unit)
    heard = [chunk.total_audio_processed for chunk in chunks]
    costs = [chunk.computation_time for chunk in chunks]
    times = {LOGGED: [a + b for a, b in zip(heard, costs, strict=True)], QUEUED: queued(heard, costs)}
    return Talk(
        name,
        tuple(text for text, _ in units),
        tuple(1000 * heard[rank] for _, rank in units),
        {way: tuple(1000 * moments[rank] for _, rank in units) for way, moments in times.items()},
        1000 * heard[-1] if heard else None,
        Effort(erased, heard[-1] if heard else 0.0, tuple(costs)),
        places[0] if places else name,
    )


class StreamLogWriter:
    """Writes such a log, each line as soon as it is known."""

    def __init__(self, path: str | Path) -> None:
        """Raises LeapformerError where there is such a file already, or none can be made."""
        self._file = fresh_file(path)
        self._n_streams = 0

    def loaded(self, seconds: float) -> None:
        """Log how long loading the model took."""
        self._write({"model_loading_time": seconds})

    def begin(self, name: str) -> int:
        """Begin a new stream, of the recording `name`, and return its number."""
        self._n_streams += 1
        self._write({"id": self._n_streams - 1, "metadata": {"wav_name": name}})
        return self._n_streams - 1

    def add(self, stream: int, chunk: Chunk) -> None:
        """Add one more chunk to a stream."""
        self._write({"id": stream, **asdict(chunk)})

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._file.flush()


def fresh_file(path: str | Path) -> TextIO:
    """Create a log that did not exist before. Raises LeapformerError if it did, or if it cannot be created."""
    refuse_existing(path)
    try:
        return open(path, "x", encoding="utf-8")
    except OSError as error:
        raise LeapformerError(f"--log {path} cannot be written: {error.strerror}; choose another file") from error


def refuse_existing(path: str | Path) -> None:
    """Raises LeapformerError if the log exists already."""
    if Path(path).exists():
        raise LeapformerError(
            f"--log {path} exists, and two runs in a log are read as one; delete it or give another file"
        )


def _stream(
    entry: dict[str, Any], names: dict[str, str], chunks: dict[str, list[tuple[str, Chunk]]], place: str
) -> list[tuple[str, Chunk]]:
    try:
        return chunks[names[repr(entry["id"])]]
    except KeyError as error:
        raise LeapformerError(
            f"{place}: stream {entry['id']!r} has no recording, as those of a browser; remove its lines"
        ) from error


def _chunk(entry: dict[str, Any], place: str) -> Chunk:
    return Chunk(
        jsonl.field(entry, "total_audio_processed", jsonl.duration, place, _HINT),
        jsonl.field(entry, "computation_time", jsonl.duration, place, _HINT),
        jsonl.field(entry, "generated_tokens", _tokens, place, _HINT),
        jsonl.field(entry, "deleted_tokens", _tokens, place, _HINT),
    )


def _tokens(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r:.40} is no list")
    return tuple(map(jsonl.text, values))


def _detokenizer(unit: str, marked: bool) -> Callable[[str], str]:
    if marked:
        return lambda token: token.replace(WORD_START, " ")
    return (lambda token: f" {token}") if unit == "word" else str


def _split(tokens: Sequence[tuple[str, int, int]], unit: str) -> list[tuple[str, int]]:
    """The units of a text without outer spaces, each with the last of the ranks of its characters.

    A space between characters comes with the character behind it.
    """
    units: list[tuple[str, int]] = []
    behind: int | None = None  # rank of the character behind, None at the end
    word, latest = "", 0
    for text, rank, cut in reversed(tokens):
        for place, character in reversed(list(enumerate(text))):
            last = cut if place == len(text) - 1 else rank
            if unit == "char" and not (character.isspace() and behind is None):
                behind = behind if character.isspace() and behind is not None else rank
                units.append((character, behind))
            elif unit == "word" and not character.isspace():
                word, latest = character + word, max(latest, last)
            elif word:
                units.append((word, latest))
                word, latest = "", 0
    if word:
        units.append((word, latest))
    while unit == "char" and units and units[-1][0].isspace():
        units.pop()
    return units[::-1]
