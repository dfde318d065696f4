"""Common parts of recipes that train several attentions with several seeds: language models and fine-tuning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import ClassVar, NamedTuple

from ...support.errors import LeapformerError
from ..engine import Cell, State
from .plans import Attention
from .recipe import Recipe, Steps, logged, training


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

    def check_settings(self) -> None:
        for attention in self.settings.attention:
            if "/" in attention.plan:
                raise LeapformerError(
                    f"--attention {attention.text}: the model has one attention block; give one plan for it"
                )
        if not self.runs():
            raise LeapformerError("--attention and --seeds name no run; give at least one of each")

    @property
    def jobs(self) -> int:
        """--jobs, or the number of runs if there are fewer, so that a single run has all cores."""
        return min(self.settings.jobs, len(self.runs()))

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
    def binarise(self, out: Path, files: Mapping[str, object], vocabulary: Path | None = None, part: str = "") -> Steps:
        """Convert the files for train, valid and test to fairseq's data in out/part."""
        options = ["--srcdict", vocabulary] if vocabulary else []
        for name, file in files.items():
            options += [f"--{name}pref", file]
        words = ("--only-source", "--destdir", out / part, "--workers", self.settings.workers, *options)
        return (logged("preprocess", *words, log=f"{part}/preprocess.log" if part else "preprocess.log"),)

    # ------------------------------------------------------------------------------------------------------- training
    def cells_train(self, state: State) -> list[Cell]:
        return list(map(self.train_run, self.runs()))

    def train_run(self, run: Run) -> Cell:
        """Train a model."""
        folder, data, options = self.folder(run), self.data_of(run) / "binary", self.training_options(run)
        # fairseq takes the last value of a repeated option: those after colons override all others.
        step = training(
            data, folder / "model", *self.task_options, *self.model_options(run), "--seed", run.seed,
            "--no-epoch-checkpoints", *options, *self.keep_batch("train", options), *run.attention.options,
        )  # fmt: skip
        return Cell(
            folder.name, (step,), f"{folder.name}/model/done", needs=(str(data.relative_to(self.out)),),
            inputs=self.starts_from(run), records={folder.name: " ".join([*run.record, *self.marks, *options])},
            title=f"training {run.title}, in {folder}",
        )  # fmt: skip

    task_options: ClassVar[tuple[str, ...]]  # of fairseq, in training and evaluation

    @abstractmethod
    def model_options(self, run: Run) -> list[str]:
        """Model options for fairseq: the plan, and the checkpoint to start from."""

    def training_options(self, run: Run) -> list[str]:
        """The training options that users can change."""
        return self.options("train")

    def starts_from(self, run: Run) -> tuple[Path, ...]:
        """The checkpoint that a training needs besides the data, if there is one."""
        return ()

    @property
    def marks(self) -> list[str]:
        """Words that identify a run, in addition to its attention, seed and options."""
        return []

    def data_of(self, run: Run) -> Path:
        return self.data

    # ----------------------------------------------------------------------------------------------------- evaluation
    def cells_evaluate(self, state: State) -> list[Cell]:
        """Score each run on all sets."""
        cells, runs = list[Cell](), self.runs()
        for run in runs:
            folder = self.folder(run)
            for name, options in self.evaluations(run).items():
                out = folder / name
                steps = self.evaluate(run, folder / "model/checkpoint_best.pt", out, options)
                place = f"{folder.name}/{name}"
                title, records = f"{run.title}: {name}", {place: " ".join(options)}
                cells.append(Cell(place, steps, needs=(folder.name,), records=records, title=title))
        if cells:  # there may be none until the data is prepared
            cells.append(self.table(self.folder(runs[0]).name, [c.name for c in cells], self.name, *self.notes()))
        return cells

    @abstractmethod
    def evaluations(self, run: Run) -> Mapping[str, list[str]]:
        """Evaluations of a run: name of the results -> options."""

    @abstractmethod
    def evaluate(self, run: Run, checkpoint: Path, out: Path, options: list[str]) -> Steps:
        """Write the scores of a model to out/scores.json; the name of the folder `out` is that in `evaluations`."""

    @abstractmethod
    def notes(self) -> list[str]:
        """The paragraphs below the table."""
