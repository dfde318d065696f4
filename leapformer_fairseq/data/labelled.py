"""Labelled sentences for fairseq's sentence_prediction (GLUE) and sentence_ranking (RACE, CommonsenseQA).

GLUE is by Wang et al., 2019 (arXiv:1804.07461), RACE by Lai et al., 2017 (arXiv:1704.04683) and CommonsenseQA by Talmor
et al., 2019 (arXiv:1811.00937). OUT/input0/SPLIT and, if examples have more than one text, OUT/input1/SPLIT and so on
contain texts split into subwords: the sentences of a task of GLUE; or what the choices of a question share, then each
choice. OUT/label/SPLIT (SPLIT.label for choices) contains the label, or the index of the correct choice from 0, but
GLUE's test sets have none. The splits are train, valid and, if it was published, test; MNLI also has valid1 and test1
(mismatched). OUT/dict.txt and, for GLUE, OUT/label/dict.txt are the dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..support.errors import LeapformerError
from ..support.lines import find_text, read_lines, write_lines
from . import prepared, releases
from .text import tidy
from .vocabulary import DICTIONARY, Cut, copy_vocabulary, encoded, load_vocabulary

NAME = "glue"


class Example(NamedTuple):
    """The texts of an example, and its label; None if the labels are not public."""

    texts: tuple[str, ...]
    label: str | None


def _write_split(
    out: Path, split: str, examples: Sequence[Example], inputs: int, cut: Cut, label_file: str | None
) -> None:
    """Write the `inputs` texts of each example of a split, and the labels unless there is no file for them."""
    for place in range(inputs):
        (out / f"input{place}").mkdir(exist_ok=True)
        texts = (tidy(example.texts[place]) for example in examples)
        write_lines(out / f"input{place}" / split, encoded(texts, cut))
    if label_file is not None:
        (out / "label").mkdir(exist_ok=True)
        write_lines(out / "label" / label_file, (str(example.label) for example in examples))


# ---------------------------------------------------------------------------------------------------------------- GLUE
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


def prepare_task(
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
    files = _find_task_files(task, root, download)
    cut = load_vocabulary(vocabulary)
    prepared.begin(out, options)
    copy_vocabulary(vocabulary, out)
    (out / "label").mkdir(exist_ok=True)
    write_lines(out / "label" / DICTIONARY, (f"{label} 1" for label in task.labels))
    summary = {}
    for split, path in files.items():
        labelled = not split.startswith("test")
        examples, left_out = read_examples(path, task, labelled)
        _write_split(out, split, examples, len(task.inputs), cut, split if labelled else None)
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


def _find_task_files(task: Task, root: Path, download: bool) -> dict[str, Path]:
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


# ---------------------------------------------------------------------------------------------------- multiple choice
class Dataset(NamedTuple):
    """A data set: its number of choices, a file pattern per split, and the function that reads a file."""

    name: str
    choices: int
    files: dict[str, str]
    read: Callable[[Path], Iterator[Example]]


def _passages(path: Path) -> Iterator[Example]:
    """The questions about a passage of RACE; each choice fills the question's blank, or follows the question."""
    passage = json.loads(path.read_text(encoding="utf-8"))
    for question, choices, answer in zip(passage["questions"], passage["options"], passage["answers"], strict=True):
        filled = [question.replace("_", text) if "_" in question else f"{question} {text}" for text in choices]
        yield Example((passage["article"], *filled), _index(answer, "ABCD"))


def _questions(path: Path) -> Iterator[Example]:
    """The questions of CommonsenseQA, one per line; the prefixes Q: and A: are those of fairseq's RoBERTa example."""
    for line in read_lines(path):
        question = json.loads(line)
        stem, choices = question["question"]["stem"], question["question"]["choices"]
        labels = [choice["label"] for choice in choices]
        texts = (f"Q: {stem}", *(f"A: {choice['text']}" for choice in choices))
        yield Example(texts, _index(question["answerKey"], labels))


def _index(answer: str, labels: Sequence[str]) -> str:
    if answer not in labels:
        raise ValueError(f"answer {answer!r} is not one of {', '.join(labels)}")
    return str(labels.index(answer))


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "race", 4, {"train": "train/*/*.txt", "valid": "dev/*/*.txt", "test": "test/*/*.txt"}, _passages
        ),
        Dataset("csqa", 5, {"train": "train_rand_split.jsonl", "valid": "dev_rand_split.jsonl"}, _questions),
    )
}  # fmt: skip


def prepare_choices(name: str, root: str | Path, out: str | Path, vocabulary: str | Path) -> prepared.Summary:
    """Prepare the data set `name` in the folder `root` for training in `out`, with a pre-trained model's `vocabulary`.

    Returns the number of examples per split. Raises LeapformerError for missing or damaged files, a folder that is not
    a vocabulary, and an `out` that contains other data.
    """
    dataset = DATASETS[name]
    root, out, vocabulary = (Path(path).absolute() for path in (root, out, vocabulary))
    options = {"dataset": name, "vocabulary": str(vocabulary)}
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    files = _find_choices(dataset, root)
    cut = load_vocabulary(vocabulary)
    prepared.begin(out, options)
    copy_vocabulary(vocabulary, out)
    summary = {}
    for split, paths in files.items():
        examples = [example for path in paths for example in _examples(dataset, path)]
        _write_split(out, split, examples, dataset.choices + 1, cut, f"{split}.label")
        summary[split] = len(examples)
    prepared.finish(out, options, summary)
    return summary


def _examples(dataset: Dataset, path: Path) -> list[Example]:
    try:
        examples = list(dataset.read(path))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason: Any = f"no {error}" if isinstance(error, KeyError) else error
        raise LeapformerError(f"{path} is not a file of {dataset.name} ({reason}); download it again") from error
    wrong = next((example for example in examples if len(example.texts) - 1 != dataset.choices), None)
    if wrong is not None:
        raise LeapformerError(
            f"{path}: {len(wrong.texts) - 1} choices for a question, {dataset.name} has {dataset.choices}; download it "
            "again"
        )
    return examples


def _find_choices(dataset: Dataset, root: Path) -> dict[str, list[Path]]:
    """The files of every split; the test set is left out if it is missing."""
    if not root.is_dir():
        raise LeapformerError(f"{dataset.name} root {root} is not a folder; check the path")
    files = {split: sorted(root.glob(pattern)) for split, pattern in dataset.files.items()}
    for split, paths in list(files.items()):
        if not paths and split == "test":
            del files[split]
        elif not paths:
            raise LeapformerError(f"no file {root / dataset.files[split]}; check the data folder")
    return files
