"""Fine-tunes masked language models to classify sentences and pairs (GLUE) or to choose answers (RACE, CSQA)."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.lines import read_lines
from ..engine import Call, Cell, State
from . import configuration
from .facts import WHOLE
from .plans import Attention
from .recipe import Steps, ours
from .runs import Run, Runs

GLUE = ("MNLI", "QNLI", "QQP", "SST-2")
ACCURACY = ["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"]
# 0 and 2 are <s> and </s>, between which RoBERTa reads sentences. Examples longer than the model's positions are
# truncated; fairseq would skip them, also in validation.
EXAMPLES = ["--init-token", "0", "--separator-token", "2", "--shorten-method", "truncate"]


class FineTuning(Runs):
    """Starts from models of the recipe mlm, and measures accuracy on sets of examples."""

    option_lists = {
        "train": ("training", "--max-update 1000 --fp16"),
        "eval": ("fairseq-validate", "--batch-size 8"),
    }

    def masks(self, attention: Attention) -> dict[str, str]:
        return {"encoder-self": WHOLE}

    def check_data(self) -> None:
        self.need_root()
        if self.vocabulary is None or not self.vocabulary.is_dir():
            what = "--vocabulary (or else --pretrained, the folder that holds it)"
            raise LeapformerError(
                f"{what} {self.vocabulary} is not a folder; check the path" if self.vocabulary
                else f"no {what} given; see --help"
            )  # fmt: skip

    @property
    def vocabulary(self) -> Path | None:
        pretrained = self.settings.pretrained
        return self.settings.vocabulary or (pretrained and pretrained / "data/text")

    def check_training(self) -> None:
        if not self.settings.pretrained:
            raise LeapformerError("no --pretrained given; see --help")

    def pretrained(self, run: Run) -> Path:
        """The checkpoint that fine-tuning starts from."""
        checkpoint: Path = self.settings.pretrained or Path("PRETRAINED")
        if checkpoint.is_dir() or self.dry:
            checkpoint /= f"{run.attention.run_folder(self.settings.pretrained_seed)}/model/checkpoint_best.pt"
        return checkpoint

    def starts_from(self, run: Run) -> tuple[Path, ...]:
        return (self.pretrained(run),)

    def missing(self, path: Path) -> str:
        return f"--pretrained {self.settings.pretrained}: there is no {path}; train it with the recipe mlm first"

    def model_options(self, run: Run) -> list[str]:
        warm_start = ["--finetune-from-model", str(self.pretrained(run))]
        plan = ["--encoder-self-attention", run.attention.plan]
        return ["--num-classes", str(self.classes(run)), *EXAMPLES, *plan, *warm_start, *ACCURACY]

    @property
    def marks(self) -> list[str]:
        return ["--pretrained", str(self.settings.pretrained), "--pretrained-seed", str(self.settings.pretrained_seed)]

    @abstractmethod
    def classes(self, run: Run) -> int | str:
        """The number of labels; a placeholder until the data is prepared."""

    @abstractmethod
    def sets(self, run: Run) -> Mapping[str, tuple[str, Path]]:
        """Evaluation sets: name of the results -> fairseq's name, file of labels, which may not exist."""

    def evaluations(self, run: Run) -> Mapping[str, list[str]]:
        prepared = (self.data_of(run) / "binary/done").is_file()  # until then the labels are unknown
        sets = self.sets(run).items()
        return {name: self.options("eval") for name, (_, labels) in sets if labels.is_file() or not prepared}

    def evaluate(self, run: Run, checkpoint: Path, out: Path, options: list[str]) -> Steps:
        subset, labels = self.sets(run)[out.name]
        data, words = self.data_of(run) / "binary", (*self.task_options, "--valid-subset", subset)
        return self.validate(data, checkpoint, out, labels, *words, *options)


class Glue(FineTuning):
    """GLUE; each task has its own data and runs."""

    task_options = ("--task", "sentence_prediction", "--criterion", "sentence_prediction")

    @property
    def tasks(self) -> list[str]:
        return self.settings.tasks

    def data_of(self, run: Run) -> Path:
        return self.data / run.task

    def classes(self, run: Run) -> int | str:
        labels = self.data_of(run) / "text/label/dict.txt"
        return sum(1 for _ in read_lines(labels)) if labels.is_file() else "CLASSES"

    def training_options(self, run: Run) -> list[str]:
        """The options of the task, then all others, so that the command line takes precedence."""
        return [*configuration.flags(self.settings.configured.get("task-settings", {}).get(run.task, {})),
                *self.options("train")]  # fmt: skip

    def sets(self, run: Run) -> Mapping[str, tuple[str, Path]]:
        labels = self.data_of(run) / "text/label"
        sets = {run.task: ("valid", labels / "valid")}
        return sets | ({f"{run.task}-mismatched": ("valid1", labels / "valid1")} if run.task == "MNLI" else {})

    def cells_prepare(self, state: State) -> list[Cell]:
        return [cell for task in self.tasks for cell in self.prepared(task)]

    def prepared(self, task: str) -> list[Cell]:
        """Binarise sentences, second sentences of pairs, and labels, each in its own folder."""
        text, binary, place = self.data / task / "text", self.data / task / "binary", f"data/{task}"
        options = ["--vocabulary", self.vocabulary, *(["--download"] if self.downloads else [])]
        steps: Steps = ()
        for part in ("input0", "input1", "label"):
            if (text / part).is_dir() or self.dry:
                vocabulary = text / ("label/dict.txt" if part == "label" else "dict.txt")
                files = {name: _with_second(text / part / name) for name in ("train", "valid", "test")}
                files = {name: file for name, file in files.items() if file or name != "test"}
                steps += self.binarise(binary, files, vocabulary, part)
        prepare = ours("prepare", "glue", task, self.settings.root, "--out", text, *options)
        return [
            Cell(place, (prepare,), None, title=f"preparing {task} in {self.data / task}"),
            Cell(f"{place}/binary", steps, needs=(place,)),
        ]

    def notes(self) -> list[str]:
        return [
            "Accuracy on the development sets in per cent; of each run the checkpoint that is best there, as is usual "
            "for GLUE, whose test sets have no public labels."
        ]


def _with_second(file: Path) -> str:
    """A file in fairseq's notation, followed by a comma and MNLI's second (mismatched) file, if there is one."""
    files = [path for path in (file, file.with_name(f"{file.name}1")) if path.is_file()]
    return ",".join(map(str, files))


class Choices(FineTuning):
    """Questions with several answers, one of which is correct."""

    task_options = ("--task", "sentence_ranking", "--criterion", "sentence_ranking")

    def classes(self, run: Run) -> int | str:
        return self.about.choices

    def sets(self, run: Run) -> Mapping[str, tuple[str, Path]]:
        labels = self.data / "text/label"
        return {name: (name, labels / f"{name}.label") for name in ("valid", "test")}

    def cells_prepare(self, state: State) -> list[Cell]:
        """Binarise the shared text and each choice, and copy the indices of the correct answers."""
        text, binary = self.data / "text", self.data / "binary"
        steps: Steps = ()
        for place in range(int(self.about.choices) + 1):
            part = f"input{place}"
            files = {name: text / part / name for name in ("train", "valid", "test")}
            files = {name: file for name, file in files.items() if file.is_file() or name != "test"}
            steps += self.binarise(binary, files, text / "dict.txt", part)
        words = (self.settings.root, "--out", text, "--vocabulary", self.vocabulary)
        return [
            Cell("data", (ours("prepare", self.name, *words),), None, title=f"preparing {self.name} in {text}"),
            Cell("data/binary", (*steps, Call(_copy, (text / "label", binary / "label"), True)), needs=("data",)),
        ]

    def notes(self) -> list[str]:
        return ["Accuracy in per cent; of each run the checkpoint that is best on the development set (valid)."]


def _copy(folder: Path, to: Path) -> None:
    shutil.copytree(folder, to, dirs_exist_ok=True)
