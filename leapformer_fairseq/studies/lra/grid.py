"""The trainings of a protocol, a grid of tasks, rows and seeds; interrupted ones are resumed.

OUT/TASK/ROW-seedN holds train.log, test.log, checkpoints and, when it is finished, result.json.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...data import prepared
from ...data.arrays import Split
from ...data.lra import prepare
from ...models.averaging import describe_checkpoint
from ...scoring.outputs import score_validation
from ...support.errors import LeapformerError
from ...support.files import read_json, write_json
from ...support.signature import signature
from .. import trainings
from ..engine import Cell, Command, State, Study
from ..trainings import BEST
from .protocols import Protocol, check_names, data_quirks, load, words

RESULT, PROTOCOL, STUDY = "result.json", "protocol.json", "grid of Long Range Arena"
FIELDS = ("task", "row", "seed", "accuracy", "dev", "examples", "chance", "updates", "speed", "parameters")


class Training(NamedTuple):
    """A training of a row of the protocol."""

    task: str
    row: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task}/{self.row}-seed{self.seed}"


@dataclass(frozen=True)
class Grid(Study):
    """The trainings of a protocol.

    data:   a folder with a folder for each task.
    out:    the folder of the results.
    quirks: flaws of the released code to reproduce.
    more:   more options of `leapformer train`.
    tasks, rows, seeds: names of the protocol, and numbers, of which all combinations are trained.
    """

    protocol: Protocol
    data: Path
    out: Path
    quirks: tuple[str, ...]
    more: tuple[str, ...] = ()
    tasks: Sequence[str] = ()
    rows: Sequence[str] = ()
    seeds: Sequence[int] = ()

    @property
    def record(self) -> str:
        """The options that all trainings in `out` have in common."""
        quirks = ",".join(self.quirks) or "none"
        return " ".join(["--protocol", self.protocol.name, "--quirks", quirks, *self.more])

    def check(self) -> None:
        """Raise LeapformerError for names that the protocol does not have."""
        check_names("tasks", self.tasks, self.protocol.tasks, self.protocol)
        check_names("attention", self.rows, self.protocol.rows, self.protocol)

    def check_work(self) -> None:
        """Raise LeapformerError for data that cannot be used, and for wrong options of `leapformer train`."""
        for task in self.tasks:
            self.check_data(task)
        if self.more:
            options = self.train_words(self.trainings()[0])[1:]
            trainings.parse_options(options, f"--train-options {shlex.join(self.more)!r}")

    def reserve(self) -> None:
        """Raise LeapformerError if the folder holds trainings with other options or of another protocol."""
        trainings.reserve(self.out, self.record, STUDY)
        path, content = self.out / PROTOCOL, self.protocol.content()
        if path.is_file() and _without_titles(read_json(path)) != _without_titles(json.loads(json.dumps(content))):
            raise LeapformerError(
                f"--out {self.out} holds trainings of another version of protocol {self.protocol.name} ({PROTOCOL}); "
                "choose another folder"
            )
        write_json(path, content, "--out")

    def trainings(self) -> list[Training]:
        """All trainings, seeds outermost, so that a first table comes soon."""
        return [
            Training(task, row, seed)
            for seed in dict.fromkeys(self.seeds)
            for row in dict.fromkeys(self.rows)
            for task in dict.fromkeys(self.tasks)
        ]

    def cells(self, state: State) -> list[Cell]:
        """Train and test, with one thread; nothing but the best checkpoint is kept."""
        return [
            Cell(
                training.name,
                (
                    Command(tuple(self.train_words(training)), "train.log", threads=1, tell=_accuracy),
                    Command(tuple(self.test_words(training)), "test.log", threads=1),
                ),
                f"{training.name}/{RESULT}",
                collect=partial(self._collect, training),
                fields=FIELDS,
                tidy=_tidy,
            )
            for training in self.trainings()
        ]

    def check_data(self, task: str) -> None:
        """Raise LeapformerError if the data of a task is missing, or was prepared with other quirks."""
        folder, wanted = self.data / task, data_quirks(task, self.quirks)
        state = folder / prepared.STATE
        if not state.is_file():
            raise LeapformerError(
                f"--data {self.data}: no {task} in it; make it with `leapformer lra prepare --protocol "
                f"{self.protocol.name}`"
            )
        about = read_json(state, ("options", "summary"), "prepare the data again")
        quirks = about["options"].get("quirks")
        if about["summary"] is None or quirks != wanted:
            reason = "it is not finished" if about["summary"] is None else f"it has the quirks {quirks}, not {wanted}"
            raise LeapformerError(f"--data {folder}: {reason}; prepare it in another folder")
        same = about["summary"]["valid"]["checksum"] == about["summary"]["test"]["checksum"]
        if same and prepare.DEV not in self.quirks:
            raise LeapformerError(
                f"--data {folder}: the development set is the test set; give another, or --quirks {prepare.DEV}"
            )

    def train_words(self, training: Training) -> list[str]:
        """The words of `leapformer train`, "train" included."""
        options = {
            "task": "leapformer_classification",
            "criterion": "leapformer_classification",
            "best-checkpoint-metric": "accuracy",
            "maximize-best-checkpoint-metric": True,
            "no-epoch-checkpoints": True,
            "keep-interval-updates": 1,
            "validate-interval": 1_000_000,  # epochs; validation and checkpoints go by updates
            "save-interval": 1_000_000,
            "log-format": "json",
            "log-interval": 20,
            **self.protocol.options(training.task, training.row, self.quirks),
            "seed": training.seed,
        }
        options["save-interval-updates"] = options["validate-interval-updates"]
        # After the user's options: the folder of a training is not theirs to change.
        save = ["--save-dir", str(self.out / training.name)]
        return ["train", str(self.data / training.task), *words(options), *self.more, *save]

    def test_words(self, training: Training) -> list[str]:
        """The words of `leapformer validate` that test the best checkpoint."""
        options = {
            "task": "leapformer_classification",
            "path": self.out / training.name / BEST,
            "valid-subset": "test",
            "batch-size": self.protocol.options(training.task, training.row, self.quirks)["batch-size"],
            "log-format": "simple",
            "model-overrides": "{'valid_examples': 0}",  # all examples, also with the quirk first-dev-batches
        }
        return ["validate", str(self.data / training.task), *words(options)]

    def _collect(self, training: Training, folder: Path) -> dict[str, Any]:
        labels = Split(self.data / training.task, "test").labels
        scores = score_validation(folder / "test.log", len(labels))["scores"]
        best = describe_checkpoint(folder / BEST)
        return {  # `collect` needs no other file of the training, so checkpoints may be deleted
            **training._asdict(),
            "protocol": self.protocol.name,
            "quirks": list(self.quirks),
            "accuracy": scores["accuracy"],
            "dev": _best_accuracy(folder / "train.log"),
            "examples": len(labels),
            "chance": float(np.bincount(labels).max() / len(labels)),
            "updates": best["updates"],
            "speed": trainings.speed(folder / "train.log", "ups"),
            "parameters": best["parameters"],
            "cores": os.cpu_count(),
            "signature": signature(threads=1),  # of the training process, see `trainings.environment`
        }


def _accuracy(entry: dict[str, Any]) -> str:
    """The development accuracy in an entry of the log, if there is one."""
    return str(entry.get("valid_accuracy", ""))


def _tidy(folder: Path) -> None:
    for checkpoint in folder.glob("checkpoint_[!b]*.pt"):
        checkpoint.unlink()  # all but the best: only needed to resume


def _without_titles(content: dict[str, Any]) -> dict[str, Any]:
    """The parts of a protocol that affect training."""
    rows = {name: {**row, "title": ""} for name, row in content["rows"].items()}
    return {**content, "title": "", "rows": rows}


def _best_accuracy(log: Path) -> float | None:
    accuracies = [float(entry["valid_accuracy"]) for entry in trainings.entries(log) if "valid_accuracy" in entry]
    return max(accuracies, default=None)


def collect(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], Protocol]:
    """Collect the results in some folders, and their protocol.

    Raises LeapformerError if there are none, for runs with different options, and for two results of a task, row and
    seed.
    """
    paths = sorted(path for folder in folders for path in folder.glob(f"*/*/{RESULT}"))
    if not paths:
        raise LeapformerError(f"{' '.join(map(str, folders))}: no {RESULT} in it; `leapformer lra run` makes them")
    records = {(folder / trainings.OPTIONS).read_text(encoding="utf-8").strip() for folder in map(_checked, folders)}
    if len(records) > 1:
        raise LeapformerError(f"runs of different options ({'; '.join(sorted(records))}); give folders of one command")
    results = [read_json(path, FIELDS, "delete it, and the run is repeated") for path in paths]
    counts = Counter(Training(result["task"], result["row"], result["seed"]).name for result in results)
    name, count = counts.most_common(1)[0]
    if count > 1:
        raise LeapformerError(f"{count} results of {name}; give each folder once, and different seeds")
    return results, load(str(paths[0].parents[2] / PROTOCOL))


def _checked(folder: Path) -> Path:
    for name in (trainings.OPTIONS, PROTOCOL):
        if not (folder / name).is_file():
            raise LeapformerError(f"{folder} holds no {name}; give the --out of `leapformer lra run`, whole")
    return folder


def make_data(
    protocol: Protocol, task: str, root: Path | None, data: Path, quirks: Sequence[str], corpora: Path
) -> Iterator[list[str]]:
    """Iterate over the commands of `leapformer` that make the arrays of a task: from `root`, or generated in `corpora`.

    Raises LeapformerError for a task that the protocol does not generate if there is no `root`.
    """
    if task in protocol.corpus:
        root = corpora / task
        options = {"task": task, "out": root, **protocol.corpus[task]}
        yield ["corpus", *words(options)]
    if root is None:
        raise LeapformerError(
            f"{task} is not generated by protocol {protocol.name}; give --root with {prepare.TASKS[task].holds}"
        )
    options = {"out": data / task, "quirks": ",".join(data_quirks(task, quirks)) or None}
    yield ["prepare", "lra", task, str(root), *words(options)]
