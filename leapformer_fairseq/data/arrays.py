"""Labelled sequences of integers in memory-mapped files, the input of `--task leapformer_classification`.

A folder contains data.json and, for each split (train, valid, test):

    SPLIT/input0.npy          the integers of all sequences, concatenated, or an array (N, L) with one sequence per row
    SPLIT/input0.offsets.npy  N + 1 offsets at which sequences begin; not beside an array (N, L)
    SPLIT/input1.npy ...      the second sequences, if there are two
    SPLIT/labels.npy          N classes, from 0

0 is padding, which is ignored. All other integers are below `vocabulary` - 1, which marks the beginning of a sequence
(the task inserts it). data.json contains `vocabulary`, `classes` and `inputs`, the number of sequences per example. To
use your own arrays, write these files with numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..support.errors import LeapformerError
from ..support.files import partial_of, read_json, replacing, write_json
from .prepared import STATE

ABOUT, LABELS = "data.json", "labels.npy"
REMEDY = "prepare it with `leapformer prepare lra`, or write it as leapformer_fairseq/data/arrays.py says"
Numbers = NDArray[Any]


@dataclass(frozen=True)
class About:
    """Limits of all splits: integers below `vocabulary`, classes below `classes`; `inputs` sequences per example."""

    vocabulary: int
    classes: int
    inputs: int = 1


class Example(NamedTuple):
    """One or two sequences and their class."""

    sequences: tuple[Numbers, ...]
    label: int


class Split(Sequence[Example]):
    """The examples of a split, or only its `first` ones, read from memory-mapped files.

    Raises LeapformerError for files that are missing or damaged, or do not match.
    """

    def __init__(self, folder: str | Path, split: str, first: int = 0) -> None:
        self.about = read_about(folder)
        self.folder = Path(folder) / split
        self.labels = _integers(self.folder / LABELS, 1)
        if not len(self.labels):
            raise LeapformerError(f"{self.folder / LABELS}: no example; {REMEDY}")
        self._inputs = [self._input(i) for i in range(self.about.inputs)]
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.about.classes:
            raise LeapformerError(
                f"{self.folder / LABELS}: classes from {self.labels.min()} to {self.labels.max()}; {ABOUT} says that "
                f"there are {self.about.classes}, from 0"
            )
        if first:
            self.labels = self.labels[:first]
            self._inputs = [(numbers, spans[:first]) for numbers, spans in self._inputs]

    def _input(self, i: int) -> tuple[Numbers, Numbers]:
        """All numbers, (M,), and where in them each sequence begins and ends, (N, 2)."""
        path = self.folder / f"input{i}.npy"
        numbers = _integers(path, 1, 2)
        if not (self.folder.parent / STATE).is_file():  # data that we prepared was checked by `write_split`
            self._check(path, numbers)
        if numbers.ndim == 2:  # a sequence ends with the row's last number that is not padding
            starts = np.arange(len(numbers), dtype=np.int64) * numbers.shape[1]
            spans = np.stack([starts, starts + (numbers.shape[1] - (numbers[:, ::-1] != 0).argmax(1))], 1)
            spans[~numbers.any(1), 1] = spans[~numbers.any(1), 0]  # argmax is 0, too, in a row of padding alone
            numbers = numbers.reshape(-1)
        else:
            offsets = _integers(path.with_suffix(".offsets.npy"), 1)
            spans = np.stack([offsets[:-1], offsets[1:]], 1)
        if (
            len(spans) != len(self.labels)
            or (spans[0, 0] < 0 or spans[-1, 1] > len(numbers))
            or (spans[:, 1] < spans[:, 0]).any()
        ):
            raise LeapformerError(
                f"{path}: {len(spans)} sequences in {len(numbers)} numbers beside {len(self.labels)} labels; {REMEDY}"
            )
        return numbers, spans

    def _check(self, path: Path, numbers: Numbers) -> None:
        """Raise LeapformerError for numbers outside the vocabulary, and for its last one, which is reserved."""
        least, greatest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        if least < 0 or greatest > self.about.vocabulary - 2:
            raise LeapformerError(
                f"{path}: numbers from {least} to {greatest}; the last one below the vocabulary of {ABOUT}, "
                f"{self.about.vocabulary}, marks the beginning of a sequence: raise that"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> Example:  # type: ignore[override]
        return Example(tuple(numbers[slice(*spans[i])] for numbers, spans in self._inputs), int(self.labels[i]))

    def lengths(self) -> Numbers:
        """The length of the longest sequence of each example, (N,)."""
        lengths: Numbers = np.stack([spans[:, 1] - spans[:, 0] for _, spans in self._inputs]).max(0)
        return lengths


def read_about(folder: str | Path) -> About:
    """Read data.json. Raises LeapformerError if it is missing or damaged, or has impossible values."""
    content = read_json(Path(folder) / ABOUT, ("vocabulary", "classes", "inputs"), REMEDY)
    about = About(*(content[name] for name in ("vocabulary", "classes", "inputs")))
    for name, value, allowed in (
        ("vocabulary", about.vocabulary, range(3, 1 << 31)),
        ("classes", about.classes, range(2, 1 << 31)),
        ("inputs", about.inputs, range(1, 3)),
    ):
        if not isinstance(value, int) or value not in allowed:
            greatest = f" to {allowed[-1]}" if len(allowed) < 10 else ""
            raise LeapformerError(
                f"{Path(folder) / ABOUT}: {name} {value!r}; give a whole number from {allowed[0]}{greatest}"
            )
    return about


def write_about(folder: Path, about: About) -> None:
    write_json(folder / ABOUT, asdict(about), "--out")


def write_split(folder: Path, split: str, examples: Iterable[Example], about: About) -> dict[str, Any]:
    """Write a split and return its number of examples and their SHA-256.

    The examples are written as they arrive, so that only offsets and labels are in memory. Raises LeapformerError for
    integers and classes that `about` does not allow.
    """
    out = folder / split
    out.mkdir(parents=True, exist_ok=True)
    # The smallest type that fits: Pathfinder alone has 200,000 pictures of 1,024 numbers.
    dtype = np.uint8 if about.vocabulary <= 256 else np.uint16 if about.vocabulary <= 65_536 else np.int32
    names = [f"input{i}" for i in range(about.inputs)]
    offsets, labels, digest = [[0] for _ in names], list[int](), hashlib.sha256()
    with ExitStack() as stack:
        # Raw numbers first: the header of a .npy file states their number, known only at the end.
        files = []
        for name in names:
            raw_file = partial_of(out / name)
            stack.callback(raw_file.unlink)
            files.append(stack.enter_context(raw_file.open("w+b")))
        for example in examples:
            if not 0 <= example.label < about.classes or len(example.sequences) != about.inputs:
                raise LeapformerError(
                    f"{split}, example {len(labels)}: class {example.label} and {len(example.sequences)} sequences; "
                    f"there are classes below {about.classes} and {about.inputs} sequences"
                )
            for i, sequence in enumerate(example.sequences):
                if len(sequence) and not 0 <= int(sequence.min()) <= int(sequence.max()) < about.vocabulary:
                    raise LeapformerError(
                        f"{split}, example {len(labels)}: numbers from {sequence.min()} to {sequence.max()}; they lie "
                        f"between 0 and {about.vocabulary - 1}"
                    )
                raw = np.ascontiguousarray(sequence, dtype=dtype).tobytes()
                files[i].write(raw)
                digest.update(raw)
                offsets[i].append(offsets[i][-1] + len(sequence))
            labels.append(example.label)
        for i, name in enumerate(names):
            files[i].flush()
            count = offsets[i][-1]  # an empty file cannot be mapped
            _save(out / f"{name}.npy", np.memmap(files[i], dtype, "r") if count else np.empty(0, dtype))
            _save(out / f"{name}.offsets.npy", np.array(offsets[i], dtype=np.int64))
    digest.update(np.array(labels, dtype=np.int64).tobytes())
    _save(out / LABELS, np.array(labels, dtype=np.int64))
    return {"examples": len(labels), "checksum": digest.hexdigest()}


def _integers(path: Path, *dimensions: int) -> Numbers:
    """Memory-map an array of integers with one of these numbers of dimensions; raises LeapformerError for any other."""
    try:
        array: Numbers = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise LeapformerError(f"{path} cannot be read ({' '.join(str(error).split())}); {REMEDY}") from error
    if array.dtype.kind not in "iu" or array.ndim not in dimensions:
        raise LeapformerError(f"{path}: {array.ndim} dimensions of {array.dtype}; {REMEDY}")
    return array


def _save(path: Path, array: Numbers) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        np.save(file, array)
