"""Read JSON Lines written by other programs; errors name the file and the line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ...support.errors import LeapformerError
from ...support.lines import read_lines

T = TypeVar("T")


def read_objects(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(place for messages, JSON object) for each line that is not blank.

    Raises LeapformerError for an unreadable file, and for a line that is not a JSON object.
    """
    entries = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        entries.append((place, parse(line, place)))
    return entries


def parse(line: str, place: str) -> dict[str, Any]:
    """The object in one line. Raises LeapformerError if there is none."""
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise LeapformerError(f"{place} is not JSON ({error}); was the run interrupted?") from error
    if not isinstance(entry, dict):
        raise LeapformerError(f"{place} is not a JSON object; give a log with an object a line")
    return entry


def field(
    entry: dict[str, Any],
    key: str,
    convert: Callable[[Any], T],
    place: str,
    hint: str = "is it a log of speech-to-text translation?",
) -> T:
    """A converted value of an entry. Raises LeapformerError, with the `hint`, if it is missing or invalid."""
    if key not in entry:
        raise LeapformerError(f"{place} has no usable {key!r} (it is missing); {hint}")
    try:
        return convert(entry[key])
    except (TypeError, ValueError) as error:
        raise LeapformerError(f"{place} has no usable {key!r} ({error}); {hint}") from error


def text(value: Any) -> str:
    """A string. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def number(value: Any) -> float:
    """A finite number. Raises TypeError and ValueError."""
    result = float(value)
    if not math.isfinite(result):
        raise ValueError(f"{result} is no number")
    return result


def duration(value: Any) -> float:
    """A finite number that is not negative. Raises TypeError and ValueError."""
    result = number(value)
    if result < 0:
        raise ValueError(f"{result:g} is negative")
    return result


def numbers(values: Iterable[Any]) -> tuple[float, ...]:
    """Finite numbers. Raises TypeError and ValueError."""
    return tuple(map(number, values))


def durations(values: Iterable[Any]) -> tuple[float, ...]:
    """Finite numbers that are not negative. Raises TypeError and ValueError."""
    return tuple(map(duration, values))
