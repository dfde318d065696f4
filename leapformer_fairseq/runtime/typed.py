"""Parsed JSON as dataclasses, after checking that every value has the type of its field."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

SHOWN = 60  # letters of a value in a message


def dataclass_of(kind: Any, values: Any, where: str) -> Any:
    """A dataclass, and those nested in it, from a dictionary. Raises ValueError for an unknown name or a wrong type."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {shown(values)}")
    hints, known = get_type_hints(kind), {item.name: item for item in fields(kind)}
    if unknown := values.keys() - known:
        raise ValueError(f"{where}{shown(min(unknown))} is not known")
    for name, item in known.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{where}{name} is missing")
    return kind(**{name: _value(hints[name], value, f"{where}{name}") for name, value in values.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value of a field, converted if it is a dataclass. Raises ValueError for another type."""
    kinds = [item for item in (get_args(hint) or (hint,)) if hasattr(item, "__dataclass_fields__")]
    if not kinds:
        if not fits(value, hint):
            raise ValueError(f"{where} is {shown(value)}")
        return value
    if get_origin(hint) is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {shown(value)}")
        return {name: dataclass_of(kinds[0], item, f"{where}.{shown(name)}.") for name, item in value.items()}
    return dataclass_of(kinds[0], value, f"{where}.")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has this type; numbers must be finite, and text encodable as UTF-8."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is UnionType:
        return any(fits(value, item) for item in inner)
    if origin is list:
        return isinstance(value, list) and all(fits(item, inner[0]) for item in value)
    if origin is dict:
        return (
            isinstance(value, dict)
            and all(fits(item, str) for item in value)
            and all(fits(item, inner[1]) for item in value.values())
        )
    if hint is str:
        return isinstance(value, str) and (value.isascii() or value == value.encode(errors="ignore").decode())
    if hint is float:
        return fits(value, int) or (type(value) is float and math.isfinite(value))
    if hint is int:
        return type(value) is int and abs(value) < 2**63
    return isinstance(value, NoneType if hint is None else hint)


def shown(value: Any) -> str:
    """The beginning of a value, on one line."""
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
