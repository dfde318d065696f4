"""Where sub-commands put their results: folders and JSON files, with one clear line when they cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import LeapformerError


def made_folder(path: str) -> Path:
    """The folder of --out, made before minutes are spent on what goes into it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeapformerError(f"--out {path} cannot be made: {error.strerror}; choose another folder") from error
    return folder


def write_json(path: str | Path, content: Any, option: str = "--json") -> None:
    """Write `content` for people to read, too."""
    try:
        Path(path).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise LeapformerError(f"{option} {path} cannot be written: {error.strerror}; choose another file") from error
