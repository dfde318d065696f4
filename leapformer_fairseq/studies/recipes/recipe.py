"""The common parts of all recipes: steps, settings, and the folder of their results."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...support.errors import LeapformerError
from ..launching import LAUNCHERS, Launcher
from ..trainings import Work
from . import configuration
from .options import Parser, one_of, whole, words
from .plans import BLOCKS, Attention
from .shell import Shell

if TYPE_CHECKING:
    from ...attention import Mask

LIMITS = ("--num-workers", "1", "--required-batch-size-multiple", "1")  # in every evaluation
REPEATED = (
    "Repeat the command to resume. If an option of fairseq is repeated, the last value counts, so all of the "
    "configuration can be overridden."
)
ATTENTION = (
    "mechanism or plan for all attention blocks, or ENCODER/DECODER/CROSS; options after colons, as in "
    "luna:luna-length=32"
)


@dataclass(frozen=True)
class DataSet:
    """A data set and its recipe.

    paper:   the default configuration.
    holds:   the files in --root, for --help.
    sets:    test sets.
    choices: answers per question, in multiple choice.
    """

    title: str
    recipe: type[Recipe]
    paper: str = ""
    holds: str = ""
    sets: Sequence[str] = ()
    choices: int = 0


class Recipe(ABC):
    """The steps from a data set to models and scores, each a method whose name begins with `step_`.

    steps:        all steps, in order, which run by default.
    more_steps:   steps that run only if named.
    option_lists: lists of options for a command: name -> command, example; --NAME-options extend the configuration's.
    launched:     the default launcher, for --help.
    """

    steps: ClassVar[tuple[str, ...]] = ("prepare", "train", "evaluate")
    more_steps: ClassVar[tuple[str, ...]] = ()
    option_lists: ClassVar[Mapping[str, tuple[str, str]]] = {}
    launched: ClassVar[str] = "(default: local)"

    def __init__(self, name: str, about: DataSet, settings: argparse.Namespace, shell: Shell, titles: Titles) -> None:
        self.name, self.about, self.settings, self.shell, self.titles = name, about, settings, shell, titles
        self.out: Path = settings.out
        self.data = self.out / "data"
        self.check()

    # ------------------------------------------------------------------------------------------------------- settings
    @classmethod
    @abstractmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        """Add the options of this recipe, except those that all recipes share."""

    @classmethod
    def own_processes(cls, settings: argparse.Namespace) -> int:
        """The number of processes that train a model unless the user chooses it; more than one are run by torchrun."""
        return 1

    def check(self) -> None:  # noqa: B027  # most have nothing to check
        """Raise LeapformerError for incompatible settings."""

    def attentions(self) -> Sequence[Attention]:
        """The attentions that --attention selects."""
        value = getattr(self.settings, "attention", None) or []
        return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Attention)]

    def masks(self, attention: Attention) -> Mapping[str, Mask]:
        """The attention blocks of the models, with the masks that limit the choice of mechanisms."""
        return dict.fromkeys(BLOCKS)

    def check_data(self) -> None:  # noqa: B027
        """Raise LeapformerError before data preparation if the data is missing."""

    def options(self, name: str) -> list[str]:
        """The options for a command: those of the configuration, then those of the command line."""
        configured = configuration.flags(self.settings.configured.get(name, {}))
        typed = [word for words in getattr(self.settings, f"{name}_options", []) for word in words]
        return [*configured, *typed]

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
    def run(self, steps: Iterable[str]) -> None:
        """Run steps. Raises LeapformerError with the reason if one fails."""
        steps = list(steps)
        if "prepare" in steps and not self.shell.dry:
            self.check_data()
        for step in steps:
            self.step(step)()

    def step(self, name: str) -> Callable[[], None]:
        return getattr(self, f"step_{name}")

    def row_order(self) -> Sequence[str]:
        """The order of the attentions in the table, if it is not alphabetical."""
        return ()

    def average(self, folder: Path, checkpoint: Path) -> Work:
        """Average the last --average epochs of a training, unless this has been done."""
        if not checkpoint.is_file():
            options = ["--inputs", folder, "--last", self.settings.average, "--output", checkpoint]
            yield from self.shell.leapformer("average", *options)

    def validate(self, data: Path, checkpoint: Path, out: Path, examples: Path, *words: object) -> Work:
        """Run fairseq-validate and write the scores from its log to out/scores.json; `examples` has one per line."""
        log = out / "validate.log"
        yield from self.shell.logged(
            log, "validate", data, "--path", checkpoint, *LIMITS, "--log-format", "simple", *words
        )
        yield from self.shell.leapformer(
            "score", log, "--examples", examples, "--checkpoint", checkpoint, "--json", out / "scores.json"
        )

    def table(self, title: str, *notes: str) -> Work:
        """Write the table of all scored runs."""
        options = ["--title", self.titles.title or title]
        rows = self.titles.rows or self.row_order()
        if rows:
            options += ["--rows", *rows]
        for order in self.titles.expect:
            options += ["--expect", *order.split()]
        for note in notes:
            options += ["--note", note]
        yield from self.shell.leapformer("table", self.out, *options)
        self.shell.say(f"done: {self.out}/table.md, table.json, table.svg; details in the folders of the runs")


@dataclass(frozen=True)
class Titles:
    """Parts of a results table other than its scores: a title, the order of rows, and the papers' ranking."""

    title: str = ""
    rows: Sequence[str] = ()
    expect: Sequence[str] = ()


def add_root(parser: Parser, holds: str) -> None:
    """Add --root, the folder of the data, which only the step `prepare` reads."""
    parser.option("--root", "DIR", f"the data, a folder that holds {holds} (only to prepare)", Path)


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
    parser.option("--launcher", "NAME", f"of trainings: {', '.join(LAUNCHERS)} {kind.launched}", one_of(*LAUNCHERS))
    parser.option("--processes", "N", "with torchrun or slurm: processes on each machine", whole())
    parser.option("--machines", "N", "with slurm: machines", whole(), default=1)
    parser.option("--slurm-options", "TEXT", 'more options for srun, e.g. "--gpus-per-node 8"', words, default=[])
    parser.option(
        "--restarts",
        "N",
        "how often a training that dies goes on by itself from its last checkpoint",
        whole(0),
        default=0,
    )
    parser.flag("--dry-run", "print the commands, do nothing")
    settings = {action.dest for action in parser._actions}
    defaults = {key.replace("-", "_"): value for key, value in configured.items() if not isinstance(value, dict)}
    unknown = sorted(defaults.keys() - settings - {"expect"})
    if unknown:
        raise LeapformerError(f"configs/{name}: there is no setting {', '.join(unknown)}; see --help")
    parser.set_defaults(**{key: value for key, value in defaults.items() if key != "expect"})
    return parser


def launcher_of(settings: argparse.Namespace, recipe: type[Recipe]) -> Launcher:
    """The launcher that the settings select. Raises LeapformerError for options of another launcher."""
    name, processes = settings.launcher, settings.processes
    if name is None and processes is None:
        processes = recipe.own_processes(settings)
        name = "torchrun" if processes > 1 else "local"
    name, processes = name or "local", processes or 1
    if name == "local" and processes > 1:
        raise LeapformerError(
            f"--processes {processes} needs --launcher torchrun or slurm; fairseq alone takes all GPUs"
        )
    if name != "slurm" and (settings.machines > 1 or settings.slurm_options):
        raise LeapformerError(f"--machines and --slurm-options need --launcher slurm, not {name}")
    return Launcher(name, processes, settings.machines, settings.slurm_options, settings.restarts)
