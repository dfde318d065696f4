"""Convert the published files of Long Range Arena to arrays (`data/arrays.py`), task by task.

Flaws of the published preparation that change the data are `QUIRKS`. Each is off unless it is requested by name, so
that its effect can be measured separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from ...support.errors import LeapformerError
from ...support.files import read_json, write_json
from .. import prepared
from ..arrays import About, Example, write_about, write_split
from . import listops, pathfinder, readers
from .pathfinder_pictures import PUBLISHED

NAME = "lra"
SPLITS = ("train", "valid", "test")
FINISHED = "finished.json"  # in the folder of a split, written last
SEED = 1  # of the splits that the release does not define
BRACKETS, BLACK, DEV = "brackets-dropped", "black-is-padding", "dev-is-test"


class Quirk(NamedTuple):
    """A flaw of the published data, and the tasks that have it."""

    tasks: tuple[str, ...]
    what: str


QUIRKS = {
    BRACKETS: Quirk(("listops",), "the ends of operations are left out"),
    BLACK: Quirk(("pathfinder", "image"), "black pixels are 0, which is padding"),
    DEV: Quirk(("text",), "the test set is also the development set"),
}


Splits = Mapping[str, Iterable[Example]]


@dataclass(frozen=True)
class Data:
    """The examples of each split, in order, and the numbers of examples left out, by reason."""

    splits: Splits
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A task: its numbers of classes, of distinct integers and of sequences, and the files that its release `holds`.

    0 is padding, and the last integer marks the beginning of a sequence. The papers' embedding has the same size,
    except for Image with black as padding: it has 256 entries, so that the CLS token is also white.
    """

    classes: int
    vocabulary: int
    inputs: int
    holds: str
    read: Callable[[Path, frozenset[str]], Data]
    published_vocabulary: int | None = None

    def about(self, quirks: Sequence[str]) -> About:
        published = self.published_vocabulary if BLACK in quirks else None
        return About(published or self.vocabulary, self.classes, self.inputs)


def find(root: Path, *places: str) -> Path:
    """The first of these files or folders that exists below the root.

    Raises LeapformerError that names the last one whose parent folder exists, or else the first one.
    """
    for place in places:
        if (root / place).exists():
            return root / place
    likely = [place for place in places if (root / place).parent != root and (root / place).parent.is_dir()]
    raise LeapformerError(f"{root / [*places[:1], *likely][-1]} is missing; check the path, or download it again")


def _listops(root: Path, quirks: frozenset[str]) -> Data:
    splits = dict(zip(SPLITS, listops.FILES.values(), strict=True))
    folders = ("", "listops-1000/", "lra_release/listops-1000/")
    paths = {split: find(root, *(folder + name for folder in folders)) for split, name in splits.items()}
    return Data({split: listops.read(path, brackets=BRACKETS not in quirks) for split, path in paths.items()})


def _text(root: Path, quirks: frozenset[str]) -> Data:
    train, test = (readers.reviews(find(root, split, f"aclImdb/{split}")) for split in ("train", "test"))
    if DEV in quirks:
        return Data(dict(zip(SPLITS, map(readers.read_reviews, (train, test, test)), strict=True)))
    Random(SEED).shuffle(train)
    held = len(train) // 10  # the release has no development set
    parts = (train[held:], train[:held], test)
    return Data(dict(zip(SPLITS, map(readers.read_reviews, parts), strict=True)))


def _retrieval(root: Path, quirks: frozenset[str]) -> Data:
    names = zip(SPLITS, ("train", "eval", "test"), strict=True)
    folders = ("", "tsv_data/", "lra_release/tsv_data/")
    paths = {split: find(root, *(f"{folder}new_aan_pairs.{name}.tsv" for folder in folders)) for split, name in names}
    return Data({split: readers.read_pairs(path) for split, path in paths.items()})


def _pathfinder(root: Path, quirks: frozenset[str]) -> Data:
    pictures, empty = pathfinder.listed(root if (root / "metadata").is_dir() else _hardest(root))
    Random(SEED).shuffle(pictures)
    first, second = len(pictures) * 8 // 10, len(pictures) * 9 // 10
    parts = (pictures[:first], pictures[first:second], pictures[second:])
    splits = {split: _pixels(pathfinder.read(part), quirks) for split, part in zip(SPLITS, parts, strict=True)}
    return Data(splits, {"empty pictures": empty})


def _hardest(root: Path) -> Path:
    """The folder with the longest contours below the root: Long Range Arena uses the hardest of the release."""
    folders = ("pathfinder32/", "", "lra_release/pathfinder32/")
    difficulties = [path for folder in folders for path in (root / folder).glob("curv_*")]
    hardest = max(difficulties, key=lambda path: int((re.search(r"_(\d+)$", path.name) or [0, 0])[1]), default=None)
    return hardest or find(root, folders[0] + PUBLISHED.folder)


def _image(root: Path, quirks: frozenset[str]) -> Data:
    count = sum(1 for _ in readers.read_images(root, train=True))
    train = count * 9 // 10
    parts = (
        islice(readers.read_images(root, train=True), train),
        islice(readers.read_images(root, train=True), train, None),
        readers.read_images(root, train=False),
    )
    return Data({split: _pixels(part, quirks) for split, part in zip(SPLITS, parts, strict=True)})


def _pixels(examples: Iterable[Example], quirks: frozenset[str]) -> Iterator[Example]:
    """Shift brightness by 1, so that 0 is only padding; with the quirk, leave it as it is."""
    shift = 0 if BLACK in quirks else 1
    for example in examples:
        # 255 + 1 does not fit into a byte.
        yield Example(tuple(x.astype("uint16") + shift for x in example.sequences), example.label)


TASKS = {
    "listops": Task(10, 32, 1, "basic_{train,val,test}.tsv", _listops),
    "text": Task(2, 512, 1, "aclImdb/{train,test}/{pos,neg}/*.txt", _text),
    "retrieval": Task(2, 512, 2, "new_aan_pairs.{train,eval,test}.tsv", _retrieval),
    "pathfinder": Task(2, 512, 1, "pathfinder32/curv_contour_length_14/{imgs,metadata}", _pathfinder),
    "image": Task(10, 258, 1, "cifar-10-batches-bin or cifar-10-batches-py", _image, published_vocabulary=256),
}


def prepare(name: str, root: str | Path, out: str | Path, quirks: Sequence[str] = ()) -> prepared.Summary:
    """Write the arrays of a task, or reuse those in `out`; return numbers of examples and SHA-256 by split.

    A finished split is kept. Raises LeapformerError for an unknown task, missing or damaged files, quirks that the task
    does not have, and an `out` with other data.
    """
    if name not in TASKS:
        raise LeapformerError(f"unknown task {name!r} of Long Range Arena; choose from: {', '.join(TASKS)}")
    for quirk in quirks:
        if quirk not in QUIRKS or name not in QUIRKS[quirk].tasks:
            choices = [choice for choice, about in QUIRKS.items() if name in about.tasks]
            raise LeapformerError(f"--quirks {quirk}: the data of {name} has {', '.join(choices) or 'none'}")
    task, root, out = TASKS[name], Path(root).absolute(), Path(out).absolute()
    options = {"dataset": NAME, "task": name, "quirks": sorted(quirks)}
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    if not root.is_dir():
        raise LeapformerError(f"{NAME} root {root} is not a folder; check the path")
    data = task.read(root, frozenset(quirks))
    prepared.begin(out, options)
    about = task.about(quirks)
    write_about(out, about)
    summary = {"left_out": dict(data.left_out)}
    for split in SPLITS:
        finished = out / split / FINISHED
        if not finished.is_file():
            written = write_split(out, split, data.splits[split], about)
            if not written["examples"]:
                raise LeapformerError(f"{root}: no example of {name} in its {split} set; download it again")
            write_json(finished, written)
        summary[split] = read_json(finished)
    prepared.finish(out, options, summary)
    return summary
