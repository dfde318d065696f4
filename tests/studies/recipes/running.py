"""How the tests of recipes run them."""

from __future__ import annotations

import io
import json
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.cli.recipe import run_recipe
from leapformer_fairseq.studies.engine import Cell, State, Study
from tests import commands
from tests.commands import done
from tests.forks import forks


def recipe(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `leapformer recipe WORDS...`, with one thread."""
    return commands.run(commands.leapformer("recipe", *map(str, words)), **environment)


def leapformer(*words: object) -> str:
    """The output of another command of ours that has to end well."""
    return done(commands.leapformer(*map(str, words)))


def finished(*words: object) -> str:
    """The output of a recipe that has to end well."""
    done = recipe(*words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def ran(*words: object) -> tuple[int, str, str]:
    """Exit status, output and errors of a recipe that does little, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with forks(), redirect_stdout(out), redirect_stderr(err):
        status = main(["recipe", *map(str, words)])
    return status, out.getvalue(), err.getvalue()


def refused(*words: object) -> str:
    """What a recipe that has to fail says, in one line."""
    status, out, err = ran(*words)
    lines = [line for line in err.splitlines() if line.startswith("leapformer: error: ")]
    assert status in (1, 2) and len(lines) == 1, out[-3000:] + err[-3000:]
    return lines[0]


def dry_run(*words: object) -> list[str]:
    """The lines of a dry run, commands and comments. Raises LeapformerError."""
    said: list[str] = []
    run_recipe([*map(str, words), "--dry-run"], said.append)
    return [line for text in said for line in text.splitlines()]


class Cells(Study):
    """A study of these cells, which lock their folders as those of recipes."""

    lock_cells = True

    def __init__(self, out: Path, *cells: Cell) -> None:
        self.out, self._cells = out, cells

    def cells(self, state: State) -> tuple[Cell, ...]:
        return self._cells


def table(folder: Path) -> dict:
    """The comparison that a recipe wrote, as data; the Markdown beside it names every attention."""
    content = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    page = (folder / "table.md").read_text(encoding="utf-8")
    assert all(f"| {row['attention']} " in page for row in content["rows"])
    assert content["signature"] in page
    return content
