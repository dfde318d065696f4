"""The state file of a folder of prepared data: its options and, once it is finished, its summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..support.errors import LeapformerError
from ..support.files import holds_files, replacing

STATE = "prepared.json"
Summary = dict[str, Any]


def begin(out: Path, options: Mapping[str, Any]) -> Summary | None:
    """Claim the folder `out` for data prepared with `options`; return its summary if it is already finished, else None.

    Raises LeapformerError if `out` contains anything else, so that foreign files are never overwritten and data sets
    never mixed.
    """
    path = out / STATE
    if not path.is_file():
        if out.exists() and (not out.is_dir() or holds_files(out)):
            raise LeapformerError(f"{out} holds something else (no {STATE} in it); choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        finish(out, options, None)
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        recorded, summary = state["options"], state["summary"]
        different = [name for name in {**recorded, **options} if recorded.get(name) != options.get(name)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LeapformerError(f"{path} is damaged ({error}); remove {out} or choose another --out") from error
    if different:
        difference = f"{different[0]} {recorded.get(different[0])}, not {options.get(different[0])}"
        raise LeapformerError(f"{out} was prepared with {difference}; choose another --out or delete it")
    return summary


def finish(out: Path, options: Mapping[str, Any], summary: Summary | None) -> None:
    """Record the options and the summary of complete data; a `summary` of None records that it is unfinished."""
    with replacing(out / STATE) as partial:
        text = json.dumps({"options": dict(options), "summary": summary}, indent=2, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")
