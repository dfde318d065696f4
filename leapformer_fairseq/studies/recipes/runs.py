"""Common parts of recipes that train several attentions with several seeds: language models and fine-tuning."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import ClassVar, NamedTuple

from ...support.errors import LeapformerError
from ..trainings import Work
from .options import Parser, list_of, whole
from .plans import Attention
from .recipe import Recipe


class Run(NamedTuple):
    """A training run; `task` is "" if there is only one task."""

    attention: Attention
    seed: int
    task: str = ""

    @property
    def title(self) -> str:
        return f"{self.attention.text}, seed {self.seed}" + (f", on {self.task}" if self.task else "")

    @property
    def record(self) -> list[str]:
        return ["--attention", self.attention.text, "--seed", str(self.seed)]


class Runs(Recipe):
    """Trains every attention with every seed, --jobs of them in parallel, and tabulates all runs in a folder."""

    @staticmethod
    def add_run_options(parser: Parser) -> None:
        """Add the options that all recipes of this kind share."""
        parser.option(
            "--attention", "LIST", "mechanisms or plans, in quotes; each is trained with each seed; options after "
            "colons, as in luna:luna-length=32", list_of(Attention),
        )  # fmt: skip
        parser.option("--seeds", "LIST", "training seeds, in quotes", list_of(whole()), default="1")
        parser.option("--epochs", "N", "maximum passes over the training data", whole())
        parser.option(
            "--jobs", "N", "parallel training runs, on one core each if more than one", whole(),
            default=os.cpu_count() or 1,
        )  # fmt: skip
        parser.option("--workers", "N", "processes that binarise the text", whole(), default=1)

    def check(self) -> None:
        for attention in self.settings.attention:
            if "/" in attention.plan:
                raise LeapformerError(
                    f"--attention {attention.text}: the model has one attention block; give one plan for it"
                )
        if not self.runs():
            raise LeapformerError("--attention and --seeds name no run; give at least one of each")

    def row_order(self) -> list[str]:
        return [attention.text for attention in self.settings.attention]

    @property
    def tasks(self) -> list[str]:
        return [""]

    def runs(self) -> list[Run]:
        return [Run(*run) for run in product(self.settings.attention, self.settings.seeds, self.tasks)]

    def folder(self, run: Run) -> Path:
        return self.out / (run.attention.run_folder(run.seed) + (f"-{run.task}" if run.task else ""))

    def options(self, name: str) -> list[str]:
        epochs = ["--max-epoch", str(self.settings.epochs)] if name == "train" else []
        return [*epochs, *super().options(name)]

    # ---------------------------------------------------------------------------------------------------------- steps
    def binarise(self, out: Path, files: Mapping[str, object], vocabulary: Path | None = None) -> Work:
        """Convert the files for train, valid and test to fairseq's data."""
        (out / "dict.txt").unlink(missing_ok=True)  # fairseq does not overwrite that of an interrupted run
        options = ["--srcdict", vocabulary] if vocabulary else []
        for part, file in files.items():
            options += [f"--{part}pref", file]
        yield from self.shell.logged(
            out / "preprocess.log", "preprocess", "--only-source", "--destdir", out, "--workers",
            self.settings.workers, *options,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------- training
    def step_train(self) -> None:
        self.before_training()
        self.shell.run(*map(self.train_run, self.runs()), at_once=self.settings.jobs)

    def before_training(self) -> None:
        """Raise LeapformerError if something that training needs is missing."""

    def train_run(self, run: Run) -> Work:
        """Train a model, or resume its training, unless it is finished."""
        folder, data = self.folder(run), self.data_of(run) / "binary"
        self.shell.need(data, "prepare")
        options = self.training_options(run)
        self.shell.say(f"training {run.title}, in {folder}")
        # fairseq takes the last value of a repeated option: those after colons override all others.
        training = self.shell.train(
            folder.name, data, folder / "model", *self.task_options, *self.model_options(run), "--seed", str(run.seed),
            "--no-epoch-checkpoints", *options, *run.attention.options,
        )  # fmt: skip
        with self.shell.folder(folder, [*run.record, *self.marks, *options]):
            yield from self.shell.once(folder / "model", training)

    task_options: ClassVar[tuple[str, ...]]  # of fairseq, in training and evaluation

    @abstractmethod
    def model_options(self, run: Run) -> list[str]:
        """Model options for fairseq: the plan, and the checkpoint to start from."""

    def training_options(self, run: Run) -> list[str]:
        """The training options that users can change."""
        return self.options("train")

    @property
    def marks(self) -> list[str]:
        """Words that identify a run, in addition to its attention, seed and options."""
        return []

    def data_of(self, run: Run) -> Path:
        return self.data

    # ----------------------------------------------------------------------------------------------------- evaluation
    def step_evaluate(self) -> None:
        self.shell.run(*map(self.evaluate_run, self.runs()), at_once=self.settings.jobs)
        self.shell.run(self.table(self.name, *self.notes()))

    def evaluate_run(self, run: Run) -> Work:
        """Score a run on all sets, unless this has been done."""
        model = self.folder(run) / "model"
        self.shell.need(model, "train")
        for name, options in self.evaluations(run).items():
            out = self.folder(run) / name
            self.shell.say(f"{run.title}: {name}")
            with self.shell.folder(out, options):
                yield from self.shell.once(out, self.evaluate(run, model / "checkpoint_best.pt", out, options))

    @abstractmethod
    def evaluations(self, run: Run) -> Mapping[str, list[str]]:
        """Evaluations of a run: name of the results -> options."""

    @abstractmethod
    def evaluate(self, run: Run, checkpoint: Path, out: Path, options: list[str]) -> Work:
        """Write the scores of a model to out/scores.json; the name of the folder `out` is that in `evaluations`."""

    @abstractmethod
    def notes(self) -> list[str]:
        """The paragraphs below the table."""
