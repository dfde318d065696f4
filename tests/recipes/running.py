"""How the tests of recipes run them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .. import commands
from ..commands import done, run


def recipe(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `leapformer recipe WORDS...`, with one thread."""
    return run(commands.leapformer("recipe", *map(str, words)), **environment)


def leapformer(*words: object) -> str:
    """The output of another command of ours that has to end well."""
    return done(commands.leapformer(*map(str, words)))


def finished(*words: object) -> str:
    """The output of a recipe that has to end well."""
    done = recipe(*words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def refused(*words: object) -> str:
    """What a recipe that has to fail says, in one line."""
    done = recipe(*words)
    lines = [line for line in done.stderr.splitlines() if line.startswith("leapformer: error: ")]
    assert done.returncode == 2 and len(lines) == 1, done.stdout[-3000:] + done.stderr[-3000:]
    return lines[0]


def table(folder: Path) -> dict:
    """The comparison that a recipe wrote, as data; the Markdown beside it names every attention."""
    content = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    page = (folder / "table.md").read_text(encoding="utf-8")
    assert all(f"| {row['attention']} " in page for row in content["rows"])
    assert content["signature"] in page
    return content
