"""The state file of a folder of prepared data: its options and, once it is finished, its summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..support.errors import LeapformerError
from ..support.files import holds_files, replacing

STATE = "prepared.json"
Summary = dict[str, Any]
T = TypeVar("T")


def begin(out: Path, options: Mapping[str, Any]) -> Summary | None:
    """Claim the folder `out` for data prepared with `options`; return its summary if it is already finished, else None.

    Raises LeapformerError if `out` contains anything else, so that foreign files are never overwritten and data sets
    never mixed.
    """
    state = read_state(out, lambda state: (dict(state["options"]), state["summary"]))
    if state is None:
        out.mkdir(parents=True, exist_ok=True)
        finish(out, options, None)
        return None
    recorded, summary = state
    need_same(out, recorded, options)
    return summary


def read_state(out: Path, parse: Callable[[Any], T]) -> T | None:
    """What `parse` makes of the state file in `out`; None for a new folder.

    Raises LeapformerError for a damaged file, and for a folder that has none but holds something else.
    """
    path = out / STATE
    if not path.is_file():
        if out.exists() and (not out.is_dir() or holds_files(out)):
            raise LeapformerError(f"{out} holds something else (no {STATE} in it); choose another --out")
        return None
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LeapformerError(f"{path} is damaged ({error}); remove {out} or choose another --out") from error


def need_same(out: Path, recorded: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise LeapformerError if the data in `out` were prepared with other options."""
    for name in {**recorded, **options}:
        if recorded.get(name) != options.get(name):
            difference = f"{name} {recorded.get(name)}, not {options.get(name)}"
            raise LeapformerError(f"{out} was prepared with {difference}; choose another --out or delete it")


def finish(out: Path, options: Mapping[str, Any], summary: Summary | None) -> None:
    """Record the options and the summary of complete data; a `summary` of None records that it is unfinished."""
    with replacing(out / STATE) as partial:
        text = json.dumps({"options": dict(options), "summary": summary}, indent=2, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")
