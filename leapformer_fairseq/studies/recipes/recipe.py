"""The common parts of all recipes: steps, settings, and the folder of their results."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from ...support.errors import LeapformerError
from ..engine import Call, Cell, Command, State, Study
from ..launching import LAUNCHERS, Launcher
from ..trainings import check_folder
from . import configuration
from .facts import BLOCKS, WHOLE
from .options import Parser, lagging, list_of, one_of, positive, stage, whole, words
from .plans import Attention

KINDS: dict[str, Callable[[str], Any]] = {  # how options.yaml has values checked
    "text": str, "path": Path, "whole": whole(), "whole0": whole(0), "positive": positive, "plan": Attention,
    "lagging": lagging, "stage": stage, "words": words,
}  # fmt: skip
LIMITS = ("--num-workers", "1", "--required-batch-size-multiple", "1")  # in every evaluation
NOT_OPTIONS = {"expect", "batch_processes"}  # settings of configurations that no option changes
REPEATED = (
    "Repeat the command to resume. If an option of fairseq is repeated, the last value counts, so all of the "
    "configuration can be overridden."
)
Steps = tuple[Command | Call, ...]


@dataclass(frozen=True)
class DataSet:
    """A data set and its recipe, as in datasets.yaml.

    paper:     the default configuration.
    holds:     the files in --root, for --help.
    sets:      test sets.
    choices:   answers per question, in multiple choice.
    prepared:  what `leapformer prepare` calls it, if not as the recipe or its name up to "_".
    downloads: whether there is --download.
    """

    title: str
    recipe: type[Recipe]
    paper: str = ""
    holds: str = ""
    sets: Sequence[str] = ()
    choices: str = ""
    prepared: str = ""
    downloads: str = ""


class Recipe(Study):
    """The steps from a data set to models and scores. For a step NAME, the method `cells_NAME` returns its cells.

    A cell is named as its folder below --out, a training as the folder of its run, of which `model` has the
    checkpoints. Cells may need those of earlier steps, also if only later steps are run.

    steps:        all steps, in order, which run by default.
    more_steps:   steps that run only if named.
    option_lists: lists of options for a command: name -> command, example; --NAME-options extend the configuration's.
    launched:     the default launcher, for --help; "" if no training is started by one.
    noun:         for what the first step makes, in messages.
    goal:         what to look at in the end, below --out.
    """

    lock_cells = True
    steps: ClassVar[tuple[str, ...]] = ("prepare", "train", "evaluate")
    more_steps: ClassVar[tuple[str, ...]] = ()
    option_lists: ClassVar[Mapping[str, tuple[str, str]]] = {}
    launched: ClassVar[str] = "(default: local)"
    noun: ClassVar[str] = "prepared data"
    goal: ClassVar[str] = "table.md, table.json, table.svg; details in the folders of the runs"

    def __init__(
        self,
        name: str,
        about: DataSet,
        settings: argparse.Namespace,
        wanted: Sequence[str] = (),
        titles: Titles | None = None,
    ) -> None:
        """`wanted` are the steps to run. Raises LeapformerError for incompatible settings."""
        self.name, self.about, self.settings, self.titles = name, about, settings, titles or Titles()
        self.wanted = tuple(wanted or self.steps)
        self.launcher = launcher_of(settings, type(self))
        if not self.launched and self.launcher.options:
            raise LeapformerError(f"{name} starts no trainings by a launcher; leave --launcher and its options out")
        self.dry: bool = settings.dry_run
        self.out: Path = settings.out
        self.data = self.out / "data"
        self.check_settings()

    # ------------------------------------------------------------------------------------------------------- settings
    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        """Add the options of this recipe, except those that all recipes share."""
        add_listed(parser, next(kind.__name__ for kind in cls.__mro__ if kind.__name__ in described()), about)

    @classmethod
    def own_processes(cls, settings: argparse.Namespace) -> int:
        """The number of processes that train a model unless the user chooses it; more than one are run by torchrun."""
        return 1

    @property
    def jobs(self) -> int:
        """How many cells may run in parallel."""
        return 1

    def check_settings(self) -> None:
        """Raise LeapformerError for incompatible settings."""

    def attentions(self) -> Sequence[Attention]:
        """The attentions that --attention selects."""
        value = getattr(self.settings, "attention", None) or []
        return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Attention)]

    def masks(self, attention: Attention) -> Mapping[str, str]:
        """The attention blocks of the models, with the names of the masks that limit the choice of mechanisms."""
        return dict.fromkeys(BLOCKS, WHOLE)

    def check_data(self) -> None:
        """Raise LeapformerError before the first step if the data is missing."""

    def check_training(self) -> None:
        """Raise LeapformerError before a training if something that it starts from is missing."""

    def options(self, name: str) -> list[str]:
        """The options for a command: those of the configuration, then those of the command line."""
        return [*configuration.flags(self.settings.configured.get(name, {})), *self.typed(name)]

    def typed(self, name: str) -> list[str]:
        """The options for a command that are those of the command line."""
        return [word for words in getattr(self.settings, f"{name}_options", []) for word in words]

    def keep_batch(self, name: str, options: Sequence[str]) -> list[str]:
        """Options with which a training with `options`, those of the command `name`, keeps the configuration's batch.

        They are no part of a run's record, so that another number of processes can resume it. Raises LeapformerError
        like `Launcher.keep_batch`.
        """
        meant = int(self.settings.configured.get("batch-processes", 1))
        return self.launcher.keep_batch(meant, options, self.typed(name), f"--{name}-options")

    @property
    def training_values(self) -> dict[str, str | None]:
        """The options of trainings besides the attention, by name; None for a flag."""
        # Not self.options: a subclass may add values that it measures on prepared data.
        words = [word for name in ("train", "st") if name in self.option_lists for word in Recipe.options(self, name)]
        values: dict[str, str | None] = {}
        for word, following in pairwise([*words, "--"]):
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                values[name] = value if equals else None if following.startswith("--") else following
        return values

    @property
    def downloads(self) -> bool:
        """Whether to download the data to --root."""
        return getattr(self.settings, "download", False)

    def need_root(self, what: str = "--root") -> None:
        """Raise LeapformerError unless --root (`what` in messages) is a folder or the target of a download."""
        root: Path | None = self.settings.root
        if root is None and self.downloads:
            raise LeapformerError("--download needs --root, the folder to put the data into; see --help")
        if root is None:
            raise LeapformerError(f"no {what} given; see --help")
        if not (root.is_dir() or self.downloads):
            raise LeapformerError(f"--root {root} is not a folder; check the path")

    # ---------------------------------------------------------------------------------------------------------- steps
    def check(self) -> None:
        """Raise LeapformerError for missing data, runs with other options, and earlier steps that are not finished."""
        if self.dry:
            return
        if self.steps[0] in self.wanted:
            self.check_data()
        if "train" in self.wanted:
            self.check_training()
        of_steps = self._of_steps(State())
        earlier = {cell.name: (step, cell) for step, cells in reversed(of_steps.items()) for cell in cells}
        chosen = {cell.name: cell for step in self.wanted for cell in of_steps[step]}
        for cell in chosen.values():
            for name, options in cell.records.items():
                check_folder(self.out / name, options, "run")
            if cell.is_done(self.out):
                continue
            for step, other in (earlier[need] for need in cell.needs if need not in chosen):
                if other.result is not None and not other.is_done(self.out):
                    raise LeapformerError(f"{other.folder(self.out)} is not finished; run the step {step} first")
            made = [chosen[need].folder(self.out) for need in cell.needs if need in chosen]
            for path in cell.inputs:
                if not path.exists() and not any(path.is_relative_to(folder) for folder in made):
                    raise LeapformerError(self.missing(path))

    def missing(self, path: Path) -> str:
        """What to say if an input of a cell is missing."""
        return f"{path.parent} holds no {self.noun}; run the step {self.steps[0]} first"

    def cells(self, state: State) -> list[Cell]:
        """The cells of the wanted steps. They need nothing of other steps, which are finished.

        What the first step does each time comes before all others: it refuses data that was made with other options.
        """
        of_steps = self._of_steps(state)
        chosen = merged(cell for step, cells in of_steps.items() if step in self.wanted for cell in cells)
        first = [cell.name for cell in of_steps[self.steps[0]] if cell.result is None]
        names, cells = {cell.name for cell in chosen}, []
        for cell in chosen:
            needs = cell.needs if cell in of_steps[self.steps[0]] else dict.fromkeys([*first, *cell.needs])
            cells.append(replace(cell, needs=tuple(need for need in needs if need in names)))
        return cells

    def _of_steps(self, state: State) -> dict[str, list[Cell]]:
        return {step: getattr(self, f"cells_{step}")(state) for step in (*self.steps, *self.more_steps)}

    def end(self) -> str:
        """What to say in the end, "" if the last step was not asked for."""
        whole = {self.steps[-1], *self.more_steps} & {*self.wanted} and not self.settings.only
        return f"done: {self.out}/{self.goal}" if whole else ""

    def row_order(self) -> Sequence[str]:
        """The order of the attentions in the table, if it is not alphabetical."""
        return ()

    def average(self, run: Path) -> Cell:
        """Average the last --average epochs of a training."""
        count = self.settings.average
        checkpoint = run / f"model/average{count}.pt"
        words = ["average", "--inputs", run / "model", "--last", count, "--output", checkpoint]
        result = str(checkpoint.relative_to(self.out))
        return Cell(f"{run.name}/average{count}", (ours(*words),), result, needs=(run.name,))

    def validate(self, data: Path, checkpoint: Path, out: Path, examples: Path, *words: object) -> Steps:
        """Run fairseq-validate and write the scores from its log to out/scores.json; `examples` has one per line."""
        log = out / "validate.log"
        more = ("--path", checkpoint, *LIMITS, "--log-format", "simple", *words)
        score = ours("score", log, "--examples", examples, "--checkpoint", checkpoint, "--json", out / "scores.json")
        return logged("validate", data, *more, log=log.name), score

    def table(self, run: str, scores: Iterable[str], title: str, *notes: str) -> Cell:
        """Write the table of all scored runs, after those of `run`, whose cells are `scores`."""
        options = ["--title", self.titles.title or title]
        rows = self.titles.rows or self.row_order()
        if rows:
            options += ["--rows", *rows]
        for order in self.titles.expect:
            options += ["--expect", *order.split()]
        for note in notes:
            options += ["--note", note]
        return Cell(f"{run}/table", (ours("table", self.out, *options),), None, some_of=tuple(scores))


def merged(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, those that are equal once."""
    kept = list[Cell]()
    for cell in cells:
        if cell not in kept:
            kept.append(cell)
    return kept


def written(words: Iterable[object]) -> tuple[str, ...]:
    """The words of a command; `...` is what a dry run was not given, such as --root."""
    return tuple("..." if word is None else str(word) for word in words)


def ours(*words: object) -> Command:
    """A short command of `leapformer`, in this process."""
    return Command(written(words), inline=True)


def logged(*words: object, log: str = "log", program: str = "leapformer", threads: int | None = None) -> Command:
    """A long command, whose output goes to a file in the cell's folder."""
    return Command(written(words), log, program, threads=threads)


def training(
    data: Path, save: Path, *words: object, longer: str = "--train-options", threads: int | None = None
) -> Command:
    """A training in the folder `save`, which is the cell's, with the options that all recipes share.

    `longer` is the recipe's option for a longer training, "" if it has none.
    """
    options = ["--num-workers", "1", "--required-batch-size-multiple", "1"]
    options += ["--skip-invalid-size-inputs-valid-test", "--log-format", "json"]
    command = ("train", str(data), "--save-dir", str(save), *options, *words)
    return Command(written(command), "train.log", launched=True, longer=longer, threads=threads)


@dataclass(frozen=True)
class Titles:
    """Parts of a results table other than its scores: a title, the order of rows, and the papers' ranking."""

    title: str = ""
    rows: Sequence[str] = ()
    expect: Sequence[str] = ()


@cache
def described() -> dict[str, Any]:
    """The lists of options in options.yaml."""
    return configuration.read_yaml(Path(__file__).with_name("options.yaml"))


def listed(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The options in a list, and in those that it refers to."""
    for item in described()[name]:
        yield from item.items() if isinstance(item, dict) else listed(item)


def add_listed(parser: Parser, name: str, about: DataSet) -> None:
    """Add the options in a list."""
    fill = {"holds": about.holds, "sets": ", ".join(about.sets), "cores": os.cpu_count() or 1}
    fill |= {"launchers": ", ".join(LAUNCHERS), "launched": about.recipe.launched}
    for flag, option in listed(name):
        text, kind = option["help"].format(**fill), option.get("kind", "text")
        default: Any = option.get("default", "").format(**fill) or ([] if kind.startswith(("list", "words")) else None)
        if default == "first of sets":
            default = about.sets[0]
        elif default and kind.startswith("whole"):
            default = int(default)
        if "value" in option:
            parser.option(flag, option["value"], text, checked(kind, about), default=default)
        elif flag != "--download" or about.downloads:
            parser.flag(flag, text)


def checked(kind: str, about: DataSet) -> Callable[[str], Any]:
    """The check of a value in options.yaml: a name in KINDS, "list KIND", "of" and words, or "of sets"."""
    first, _, rest = kind.partition(" ")
    if first == "list":
        return list_of(checked(rest, about))
    return one_of(*(about.sets if rest == "sets" else rest.split())) if first == "of" else KINDS[first]


def parser_of(name: str, about: DataSet, configured: Mapping[str, Any]) -> Parser:
    """Build the parser of a data set's recipe, with the defaults of a configuration.

    Raises LeapformerError if the configuration has an unknown setting.
    """
    kind = about.recipe
    others = kind.more_steps
    parser = Parser(
        prog=f"leapformer recipe {name} [{'|'.join((*kind.steps, *others))} ...]",
        usage=f"leapformer recipe {name} [STEP ...] --out DIR [OPTIONS]",
        description=f"{about.title}: {', '.join(kind.steps)}"
        + (f"; or only the steps that are named, of these and {', '.join(others)}" if others else "")
        + ".",
        epilog=REPEATED,
    )
    parser.option("--out", "DIR", "prepared data, runs, results, and commands.sh with the commands that were run", Path)
    if configuration.names(name):
        parser.option(
            "--paper", "NAME", f"hyperparameters: {', '.join(configuration.names(name))}", default=about.paper
        )
    kind.add_options(parser, about)
    for option, (of, example) in kind.option_lists.items():
        parser.more(f"--{option}-options", of, example)
    add_listed(parser, "every", about)
    settings = {action.dest for action in parser._actions}
    defaults = {key.replace("-", "_"): value for key, value in configured.items() if not isinstance(value, dict)}
    unknown = sorted(defaults.keys() - settings - NOT_OPTIONS)
    if unknown:
        raise LeapformerError(f"configs/{name}: there is no setting {', '.join(unknown)}; see --help")
    parser.set_defaults(**{key: value for key, value in defaults.items() if key not in NOT_OPTIONS})
    return parser


def launcher_of(settings: argparse.Namespace, recipe: type[Recipe]) -> Launcher:
    """The launcher that the settings select. Raises LeapformerError for options of another launcher."""
    name, processes = settings.launcher, settings.processes
    if name is None and processes is None:
        processes = recipe.own_processes(settings)
        name = "torchrun" if processes > 1 else "local"
    name, processes = name or "local", processes or 1
    return Launcher(name, processes, settings.machines, settings.slurm_options, settings.restarts).checked()
