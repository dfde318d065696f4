"""All recipes by name: data sets, and the papers' tables, which are recipes with a row per attention."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from .translation import Documents, OwnTranslation, Translation, UnsplitText

DATASETS = {
    "quickstart": DataSet("Simultaneous speech translation from scratch", Quickstart),
    "translation": DataSet("Parallel text of your own", OwnTranslation, "small", "{train,valid,test}.LANGUAGE"),
    "language_model": DataSet("Text of your own", OwnLanguageModel, "small"),
    "speech": DataSet(
        "Recordings of your own", OwnSpeech, "small",
        "columns audio and text, and if there translation, speaker, id, start and end; tabs, or .csv", ("test", "dev"),
    ),
    "multi30k": DataSet("Multi30k English-German", Translation, "small", "{train,val,test_2016_flickr}.{en,de}"),
    "iwslt14_deen": DataSet(
        "IWSLT 2014 German-English", Translation, "fairseq", "{train,valid,test}.{de,en}, or de-en.tgz of the release"
    ),
    "iwslt14_esen_doc": DataSet(
        "IWSLT 2014 Spanish-English, talks as documents", Documents, "abc",
        "es-en.tgz of the release, or {train,valid,test}.{es,en}",
    ),
    "iwslt17": DataSet(
        "IWSLT 2017 English-German or English-French", Translation, "sparsefinder",
        "{train,valid,test}.{en,de}, or en-de.tgz of WIT3",
    ),
    "wmt14_ende": DataSet(
        "WMT 2014 English-German", Translation, "fairseq",
        "{train,valid,test}.{en,de}, or the archives of the release",
    ),
    "tatoeba": DataSet("Tatoeba German-English", UnsplitText, "small", "deu-eng.zip of manythings.org, or deu.txt"),
    "python_docs": DataSet(
        "Python's documentation, English-Spanish", UnsplitText, "small", "the .po files of python-docs-es"
    ),
    "wikitext2": DataSet("WikiText-2", LanguageModel, "small"),
    "wikitext103": DataSet("WikiText-103", LanguageModel, "leapformer"),
    "mlm": DataSet("Masked language models", MaskedLanguageModel, "small"),
    "glue": DataSet("GLUE", Glue, "small", "MNLI/train.tsv and so on, plain or with .gz"),
    "race": DataSet("RACE", Choices, "luna", "{train,dev,test}/{middle,high}/*.txt", choices=4),
    "csqa": DataSet("CommonsenseQA", Choices, "luna", "{train,dev}_rand_split.jsonl", choices=5),
    "mustc": DataSet(
        "MuST-C English-German", SpeechTranslation, "leapformer", "en-de/data", ("tst-COMMON", "tst-HE", "dev")
    ),
    "covost2": DataSet(
        "CoVoST 2 French-English", SpeechTranslation, "leapformer", "validated.tsv, covost_v2.fr_en.tsv and clips",
        ("test", "dev"),
    ),
    "mboshi": DataSet("Mboshi-French", FittedSpeech, "small", "full_corpus_newsplit", ("test", "dev")),
    "quechua": DataSet("Quechua-Spanish of IWSLT 2023", FittedSpeech, "small", "que_spa_clean", ("dev",)),
    "talks": DataSet(
        "Whole talks out of a corpus's sentences, translated by trained models", Talks,
        holds="{test,test_asr}.* of `leapformer corpus` or `leapformer prepare`",
    ),
    "ljspeech": DataSet("LJSpeech", TextToSpeech, "mla", "metadata.csv and wavs"),
    "espeak_tts": DataSet("Text to speech with the embedded espeak-ng voice", SynthesisedSpeech, "tiny"),
    "sparsefinder": DataSet(
        "Sparsefinder from data to curves", Sparsefinder, "mt_small",
        "{train,valid,test}.txt as for mlm, or {train,val,test_2016_flickr}.{en,de} as for multi30k, or as for iwslt17",
    ),
    "lra": DataSet("Long Range Arena", LongRangeArena, holds="the published files, DIR/TASK or DIR itself"),
}  # fmt: skip


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
