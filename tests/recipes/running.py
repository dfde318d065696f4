"""How the tests of recipes run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "leapformer_fairseq.cli.main", "recipe")


def recipe(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `leapformer recipe WORDS...`, with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


def leapformer(*words: object) -> str:
    """The output of another command of ours that has to end well."""
    command = [*COMMAND[:-1], *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


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
