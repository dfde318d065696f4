"""Multiple-choice questions for fairseq's sentence_ranking.

The data sets are RACE (Lai et al., 2017, arXiv:1704.04683) and CommonsenseQA (Talmor et al., 2019, arXiv:1811.00937).
OUT/input0/SPLIT contains the text that the choices of an example share, OUT/input1/SPLIT and so on the choices, all
split into subwords; OUT/label/SPLIT.label contains the index of the correct choice, from 0. The splits are train, valid
and, if its answers are public, test. OUT/dict.txt is the dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..support.errors import LeapformerError
from ..support.lines import read_lines, write_lines
from . import prepared
from .text import tidy
from .vocabulary import copy_vocabulary, encoded, load_vocabulary


class Example(NamedTuple):
    """The text that the choices share, the choices, and the index of the correct one."""

    shared: str
    choices: tuple[str, ...]
    answer: int


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
        yield Example(passage["article"], tuple(filled), _index(answer, "ABCD"))


def _questions(path: Path) -> Iterator[Example]:
    """The questions of CommonsenseQA, one per line; the prefixes Q: and A: are those of fairseq's RoBERTa example."""
    for line in read_lines(path):
        question = json.loads(line)
        stem, choices = question["question"]["stem"], question["question"]["choices"]
        labels = [choice["label"] for choice in choices]
        texts = tuple(f"A: {choice['text']}" for choice in choices)
        yield Example(f"Q: {stem}", texts, _index(question["answerKey"], labels))


def _index(answer: str, labels: Sequence[str]) -> int:
    if answer not in labels:
        raise ValueError(f"answer {answer!r} is not one of {', '.join(labels)}")
    return labels.index(answer)


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "race", 4, {"train": "train/*/*.txt", "valid": "dev/*/*.txt", "test": "test/*/*.txt"}, _passages
        ),
        Dataset("csqa", 5, {"train": "train_rand_split.jsonl", "valid": "dev_rand_split.jsonl"}, _questions),
    )
}  # fmt: skip


def prepare(name: str, root: str | Path, out: str | Path, vocabulary: str | Path) -> prepared.Summary:
    """Prepare the data set `name` in the folder `root` for training in `out`, with a pre-trained model's `vocabulary`.

    Returns the number of examples per split. Raises LeapformerError for missing or damaged files, a folder that is not
    a vocabulary, and an `out` that contains other data.
    """
    dataset = DATASETS[name]
    root, out, vocabulary = (Path(path).absolute() for path in (root, out, vocabulary))
    options = {"dataset": name, "vocabulary": str(vocabulary)}
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    files = _find(dataset, root)
    cut = load_vocabulary(vocabulary)
    prepared.begin(out, options)
    copy_vocabulary(vocabulary, out)
    folders = [f"input{place}" for place in range(dataset.choices + 1)]
    for folder in (*folders, "label"):
        (out / folder).mkdir(exist_ok=True)
    summary = {}
    for split, paths in files.items():
        examples = [example for path in paths for example in _examples(dataset, path)]
        for place, folder in enumerate(folders):
            texts = (example.choices[place - 1] if place else example.shared for example in examples)
            write_lines(out / folder / split, encoded((tidy(text) for text in texts), cut))
        write_lines(out / "label" / f"{split}.label", (str(example.answer) for example in examples))
        summary[split] = len(examples)
    prepared.finish(out, options, summary)
    return summary


def _examples(dataset: Dataset, path: Path) -> list[Example]:
    try:
        examples = list(dataset.read(path))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason: Any = f"no {error}" if isinstance(error, KeyError) else error
        raise LeapformerError(f"{path} is not a file of {dataset.name} ({reason}); download it again") from error
    wrong = next((example for example in examples if len(example.choices) != dataset.choices), None)
    if wrong is not None:
        raise LeapformerError(
            f"{path}: {len(wrong.choices)} choices for a question, {dataset.name} has {dataset.choices}; download it "
            "again"
        )
    return examples


def _find(dataset: Dataset, root: Path) -> dict[str, list[Path]]:
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
