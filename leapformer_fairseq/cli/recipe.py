"""`leapformer recipe`: a data set or a paper's table: prepare, train, evaluate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..support.errors import LeapformerError, one_line
from . import calls

USAGE = "leapformer recipe NAME [STEP ...] --out DIR [OPTIONS]"
EPILOG = "`leapformer recipe NAME --help` has the steps and options of one; see docs/recipes.md and docs/papers.md."
OPTIONS = """
name [NAME]             a data set or a table; without it, they are listed
words ...               steps and options of the recipe
"""


def run(name: str | None, words: Sequence[str]) -> int:
    """Run the steps of a recipe; 1 if something failed. Raises LeapformerError for wrong names and options."""
    if name is None:
        return _list()
    if {"--help", "-h"} & {*words}:
        return _help(name)
    return run_recipe([name, *words], calls.say)


def run_recipe(words: Sequence[str], say: Callable[[str], None]) -> int:
    """Run a recipe by name with its steps and options, and return the exit status; `say` receives the lines to print.

    Raises LeapformerError like `Engine.run`, and for the rows of a table that failed.
    """
    from ..studies.engine import NOT_STARTED, Engine
    from ..studies.recipes import catalog
    from ..studies.recipes.recipe import Recipe

    name, *words = words
    study: Recipe | catalog.Rows
    if name in catalog.tables():
        rows: list[str] = []
        if "--rows" in words[:-1]:  # for the table; the recipes of its rows do not know this option
            at = words.index("--rows")
            rows, words = words[at + 1].split(), [*words[:at], *words[at + 2 :]]
        study = catalog.start_table(name, words, rows)
    else:
        study = catalog.start(name, words)
    settings, dry = study.settings, study.settings.dry_run
    engine = Engine(
        study, say=say, call=calls.call, jobs=study.jobs, launcher=study.launcher, only=settings.only, dry=dry
    )
    state = engine.run()
    refused = study.refused if isinstance(study, catalog.Rows) else {}
    reasons = [f"{cell}: {reason}" for cell, reason in state.failed.items() if not reason.startswith(NOT_STARTED)]
    for reason in [*refused.values(), *reasons]:
        print(f"leapformer: error: {one_line(LeapformerError(reason))}", file=sys.stderr)
    if isinstance(study, catalog.Rows) and (failed := study.failed(state)):
        raise LeapformerError(f"{name}: failed: {' '.join(failed)}; the messages above say why")
    if not state.failed and not dry and (end := study.end()):
        say(f"== {end}")
    return int(bool(state.failed))


def _list() -> int:
    from ..studies.recipes import catalog

    width = max(map(len, catalog.known_names()))
    for name, about in catalog.DATASETS.items():
        print(f"{name:{width}}  {about.title}")
    for name, table in catalog.tables().items():
        print(f"{name:{width}}  {table.recipe} {' '.join(table.options)}: {len(table.rows) or 'all'} rows")
    return 0


def _help(name: str) -> int:
    from ..studies.recipes import catalog

    table = catalog.tables().get(name)
    parser, _ = catalog.parser_for(table.recipe if table else name)
    if table:
        rows = "\n  ".join(table.rows)
        parser.description = f"{parser.description} {name} repeats it for its rows, or for --rows LIST:\n  {rows}"
    parser.print_help()
    return 0
