"""All recipes by name: data sets, and the papers' tables, which are recipes with a row per attention."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ..engine import Cell, State, Study
from . import configuration
from .fine_tuning import Choices, Glue
from .language_models import LanguageModel, MaskedLanguageModel, OwnLanguageModel
from .long_range_arena import LongRangeArena
from .options import Parser
from .quickstart import Quickstart
from .recipe import DataSet, Recipe, Titles, merged, parser_of
from .sparsefinder import Sparsefinder
from .speaking import SynthesisedSpeech, TextToSpeech
from .speech import FittedSpeech, OwnSpeech, SpeechTranslation
from .talks import Talks
from .translation import Documents, Translation

_RECIPES: tuple[type[Recipe], ...] = (
    Quickstart, Translation, Documents, LanguageModel, OwnLanguageModel, MaskedLanguageModel, Glue, Choices,
    SpeechTranslation, FittedSpeech, OwnSpeech, Talks, TextToSpeech, SynthesisedSpeech, Sparsefinder, LongRangeArena,
)  # fmt: skip


def _datasets() -> dict[str, DataSet]:
    classes = {recipe.__name__: recipe for recipe in _RECIPES}
    content = configuration.read_yaml(Path(__file__).with_name("datasets.yaml"))
    return {name: DataSet(**{**about, "recipe": classes[about["recipe"]]}) for name, about in content.items()}


DATASETS = _datasets()


@dataclass(frozen=True)
class Table:
    """A table of trained models: the recipe, its options, the attentions of the rows, and the paper's ranking."""

    recipe: str
    options: Sequence[str] = ()
    steps: Sequence[str] = ()
    rows: Sequence[str] = ()
    expect: Sequence[str] = ()


def tables() -> dict[str, Table]:
    """Read the papers' tables from configs/tables.yaml. Raises LeapformerError if it is damaged."""
    by_name = {}
    for name, about in configuration.read_yaml(configuration.configs() / "tables.yaml").items():
        by_name[name] = Table(
            about["recipe"],
            shlex.split(about.get("options", "")),
            about.get("steps", "").split(),
            about.get("rows", []),
            about.get("expect", []),
        )
    return by_name


def parser_for(name: str, words: Sequence[str] = ()) -> tuple[Parser, dict[str, Any]]:
    """Return the parser of a data set's recipe and the configuration that `words` select, whose values are defaults."""
    about, configured = _find(name), dict[str, Any]()
    if about.paper:  # found by hand, since the configuration is needed before the parser
        paper = about.paper
        for i, word in enumerate(words):
            if word == "--paper" and i + 1 < len(words):
                paper = words[i + 1]
            paper = word.removeprefix("--paper=") if word.startswith("--paper=") else paper
        configured = configuration.load(name, paper)
    return parser_of(name, about, configured), configured


def start(name: str, words: Sequence[str], titles: Titles | None = None) -> Recipe:
    """Set up the recipe of a data set from command-line words, options and steps.

    Raises LeapformerError for wrong names, options and values, and for plans that no model supports.
    """
    parser, configured = parser_for(name, words)
    about = DATASETS[name]
    steps, words = parser.apart(words)
    all_steps = (*about.recipe.steps, *about.recipe.more_steps)
    for step in steps:
        if step not in all_steps:
            raise LeapformerError(f"{name} has no step {step}; choose from {', '.join(all_steps)}, and quote lists")
    settings = parser.read(words)
    if settings.out is None:
        raise LeapformerError("no --out given; see --help")
    settings.out, settings.configured = settings.out.absolute(), configured
    titles = titles or Titles(expect=[configured["expect"]] if "expect" in configured else [])
    recipe = about.recipe(name, about, settings, steps, titles)
    for attention in recipe.attentions():
        attention.check(recipe.masks(attention), recipe.training_values)
    return recipe


class Rows(Study):
    """A table of trained models: a recipe for each row, with what rows have in common, such as the data, once.

    refused: why rows cannot be run.
    """

    lock_cells = True

    def __init__(self, rows: Mapping[str, Recipe]) -> None:
        self.rows, self.refused = rows, dict[str, str]()
        first, *_ = rows.values()
        self.out, self.settings, self.launcher, self.end = first.out, first.settings, first.launcher, first.end
        self.jobs = max(recipe.jobs for recipe in rows.values())

    def check(self) -> None:
        for row, recipe in self.rows.items():
            try:
                recipe.check()
            except LeapformerError as error:
                self.refused[row] = str(error)

    def cells(self, state: State) -> list[Cell]:
        return merged(cell for row in self.rows for cell in self.cells_of(row, state))

    def cells_of(self, row: str, state: State) -> list[Cell]:
        """The cells of a row; none if it cannot be run."""
        return [] if row in self.refused else self.rows[row].cells(state)

    def failed(self, state: State) -> list[str]:
        """The rows that cannot be run, or whose cells have failed."""
        failed = [row for row in self.rows if any(cell.name in state.failed for cell in self.cells_of(row, state))]
        return [row for row in self.rows if row in self.refused or row in failed]


def start_table(name: str, words: Sequence[str], rows: Sequence[str] = ()) -> Recipe | Rows:
    """Set up the rows of a table, or the recipe of one that has no rows of its own.

    `rows` replaces the attentions of the table. Raises LeapformerError like `start`.
    """
    table = tables()[name]
    titles = Titles(name, rows or table.rows, table.expect)
    steps, options = parser_for(table.recipe)[0].apart(words)
    words = [*(steps or table.steps), *table.options, *options]
    if not titles.rows:
        return start(table.recipe, words, titles)
    return Rows({row: start(table.recipe, [*words, "--attention", row], titles) for row in titles.rows})


def _find(name: str) -> DataSet:
    if name not in DATASETS:
        raise LeapformerError(f"there is no recipe {name}; choose from {', '.join(known_names())}")
    return DATASETS[name]


def known_names() -> list[str]:
    """The names of data sets, then of tables."""
    return [*DATASETS, *tables()]
