"""The larger classification tasks of GLUE (Wang et al., 2019, arXiv:1804.07461) for fairseq's sentence_prediction.

OUT/input0/SPLIT and, for pairs, OUT/input1/SPLIT contain sentences split into subwords; OUT/label/SPLIT contains their
labels, but the test sets have none. The splits are train, valid and test; MNLI also has valid1 and test1 (mismatched).
OUT/dict.txt and OUT/label/dict.txt are the dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..support.errors import LeapformerError
from ..support.lines import find_text, read_lines, write_lines
from . import prepared, releases
from .text import tidy
from .vocabulary import DICTIONARY, copy_vocabulary, encoded, load_vocabulary

NAME = "glue"
_FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
}


@dataclass(frozen=True)
class Task:
    """A task: the columns of its sentences and labels, the possible labels, and its file per split.

    Lines with missing fields are skipped in a `ragged` release, and are errors in any other.
    """

    name: str
    inputs: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    files: Mapping[str, str]
    ragged: bool = False


TASKS = {
    task.name: task
    for task in (
        Task(
            "MNLI",
            ("sentence1", "sentence2"),
            "gold_label",
            ("contradiction", "neutral", "entailment"),
            _MNLI_FILES,
        ),
        Task("QNLI", ("question", "sentence"), "label", ("entailment", "not_entailment"), _FILES),
        Task("QQP", ("question1", "question2"), "is_duplicate", ("0", "1"), _FILES, ragged=True),
        Task("SST-2", ("sentence",), "label", ("0", "1"), _FILES),
    )
}


class Example(NamedTuple):
    """One or two sentences and their label; None if the labels are not public."""

    sentences: tuple[str, ...]
    label: str | None


def prepare(
    name: str, root: str | Path, out: str | Path, vocabulary: str | Path, download: bool = False
) -> prepared.Summary:
    """Prepare the task `name` of the GLUE folder `root`, which contains NAME/train.tsv etc., for training in `out`.

    `vocabulary` is that of the pre-trained model. Returns, per split, the number of examples and the number of lines
    left out. Raises LeapformerError for an unknown task, missing or damaged files, a folder that is not a vocabulary,
    and an `out` that contains other data.
    """
    task = find_task(name)
    root, out, vocabulary = (Path(path).absolute() for path in (root, out, vocabulary))
    options = {"dataset": NAME, "task": name, "vocabulary": str(vocabulary)}
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    files = _find(task, root, download)
    cut = load_vocabulary(vocabulary)
    prepared.begin(out, options)
    copy_vocabulary(vocabulary, out)
    folders = [f"input{place}" for place in range(len(task.inputs))]
    for folder in (*folders, "label"):
        (out / folder).mkdir(exist_ok=True)
    write_lines(out / "label" / DICTIONARY, (f"{label} 1" for label in task.labels))
    summary = {}
    for split, path in files.items():
        labelled = not split.startswith("test")
        examples, left_out = read_examples(path, task, labelled)
        for place, folder in enumerate(folders):
            sentences = (tidy(example.sentences[place]) for example in examples)
            write_lines(out / folder / split, encoded(sentences, cut))
        if labelled:
            write_lines(out / "label" / split, (str(example.label) for example in examples))
        summary[split] = {"examples": len(examples), "left_out": left_out}
    prepared.finish(out, options, summary)
    return summary


def find_task(name: str) -> Task:
    """The task with this name. Raises LeapformerError with the choices for an unknown name."""
    if name not in TASKS:
        raise LeapformerError(f"unknown GLUE task {name!r}; choose from: {', '.join(TASKS)}")
    return TASKS[name]


def read_examples(path: Path, task: Task, labelled: bool = True) -> tuple[list[Example], int]:
    """The examples in a file of the release, unchanged, and the number of lines left out because of missing fields.

    Quotation marks have no special meaning: only tabs separate fields and only line feeds end lines. Raises
    LeapformerError if a column of the task is missing, a line has more or fewer fields than the header, or a label is
    not one of the task's.
    """
    lines = (line.split("\t") for line in read_lines(path))
    header = next(lines, [""])
    places = [_column(path, task, header, name) for name in task.inputs]
    label_place = _column(path, task, header, task.label) if labelled else None
    examples, left_out = [], 0
    for number, fields in enumerate(lines, 2):  # line 1 is the header
        if len(fields) != len(header):
            if not task.ragged:
                raise LeapformerError(
                    f"{path}, line {number}: {len(fields)} fields, {len(header)} in the header; download it again"
                )
            left_out += 1
            continue
        label = None if label_place is None else fields[label_place]
        if label is not None and label not in task.labels:
            raise LeapformerError(
                f"{path}, line {number}: label {label!r}, but {task.name} has {', '.join(task.labels)}; "
                "download it again"
            )
        examples.append(Example(tuple(fields[place] for place in places), label))
    if not examples:
        raise LeapformerError(f"{path} holds no examples; download it again")
    return examples, left_out


def _column(path: Path, task: Task, header: Sequence[str], name: str) -> int:
    if name in header:
        return header.index(name)
    remedy = f"is it the {task.name} of GLUE?"
    if name == task.label:
        remedy += " Its test sets have no labels, and cannot train or validate"
    raise LeapformerError(f"{path} has no column {name} but {', '.join(header) or 'none'}; {remedy}")


def _find(task: Task, root: Path, download: bool) -> dict[str, Path]:
    """The file of every split; missing test sets are left out."""
    if not root.is_dir() and not download:
        raise LeapformerError(f"{NAME} root {root} is not a folder; check the path")
    releases.glue(root, task.name, task.files.values(), download)
    files = {}
    for split, name in task.files.items():
        path = find_text(root / task.name, [name])
        if path is not None:
            files[split] = path
        elif not split.startswith("test"):
            missing = root / task.name / name
            raise LeapformerError(f"no file {missing}, nor with .gz; check the data folder, or let --download fetch it")
    return files
