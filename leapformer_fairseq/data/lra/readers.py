"""Readers of the tasks Image, Text and Retrieval.

Image is CIFAR-10 in greyscale, from either of its releases, binary records or Python pickles. Text has reviews (IMDb)
and Retrieval pairs of papers (AAN), as sequences of bytes: a byte becomes its value + 1, since 0 is padding.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...support.errors import LeapformerError
from ...support.lines import read_lines
from ..arrays import Example, Numbers

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
WEIGHTS = (0.2989, 0.5870, 0.1140)  # of red, green and blue in TensorFlow's rgb_to_grayscale
_TRAIN = [f"data_batch_{i}" for i in range(1, 6)]
_TEST = ["test_batch"]


def read_images(root: Path, train: bool) -> Iterator[Example]:
    """Yield the pictures of the training or test set, in file order.

    Raises LeapformerError for missing or damaged files.
    """
    names = _TRAIN if train else _TEST
    for folder, suffix, load in (("cifar-10-batches-bin", ".bin", _records), ("cifar-10-batches-py", "", _pickled)):
        for place in (root / folder, root):
            if (place / f"{names[0]}{suffix}").is_file():
                for name in names:
                    for colours, label in zip(*load(place / f"{name}{suffix}"), strict=True):
                        yield Example((grey(colours),), int(label))
                return
    raise LeapformerError(
        f"{root} holds neither cifar-10-batches-bin/{names[0]}.bin nor cifar-10-batches-py/{names[0]}; check the path"
    )


def grey(colours: Numbers) -> Numbers:
    """Convert a picture (3, 1024) to brightness from 0 to 255, (1024,), with TensorFlow's weights and rounding."""
    scaled = colours.astype(np.float32) * np.float32(1 / 255)
    mixed = sum(np.float32(weight) * channel for weight, channel in zip(WEIGHTS, scaled, strict=True))
    # TensorFlow's convert_image_dtype scales to integers by their maximum plus 0.5, and truncates.
    brightness: Numbers = np.clip(mixed * np.float32(255.5), 0, 255).astype(np.uint8)
    return brightness


def _records(path: Path) -> tuple[Numbers, Numbers]:
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise LeapformerError(f"{path} cannot be read ({error.strerror}); download it again") from error
    if not len(raw) or len(raw) % RECORD:
        raise LeapformerError(f"{path}: {len(raw)} bytes are no records of {RECORD}; download it again")
    records = raw.reshape(-1, RECORD)
    return _checked(path, records[:, 1:].reshape(-1, 3, SIDE * SIDE), records[:, 0])


def _pickled(path: Path) -> tuple[Numbers, Numbers]:
    try:
        with path.open("rb") as file:
            content = _Restricted(io.BytesIO(file.read()), encoding="bytes").load()
        pixels, labels = np.asarray(content[b"data"], dtype=np.uint8), np.asarray(content[b"labels"], dtype=np.int64)
        return _checked(path, pixels.reshape(-1, 3, SIDE * SIDE), labels)
    except Exception as error:  # a damaged pickle can raise anything
        raise LeapformerError(f"{path} is not a batch of CIFAR-10 ({error}); download it again") from error


def _checked(path: Path, pixels: Numbers, labels: Numbers) -> tuple[Numbers, Numbers]:
    if len(labels) != len(pixels) or labels.min() < 0 or labels.max() > 9:
        raise LeapformerError(f"{path}: labels from {labels.min()} to {labels.max()}; CIFAR-10 has 0 to 9")
    return pixels, labels


class _Restricted(pickle.Unpickler):
    """Loads arrays and plain values, and refuses a pickle that names anything else before it runs."""

    ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


LONGEST = 4000  # bytes
SIDES = ("neg", "pos")


def as_bytes(text: str, longest: int = LONGEST) -> Numbers:
    """The first `longest` bytes of the text in UTF-8, each plus 1."""
    return np.frombuffer(text.encode()[:longest], dtype=np.uint8).astype(np.uint16) + 1


def reviews(folder: Path) -> list[tuple[Path, int]]:
    """The files of aclImdb/train or aclImdb/test with their labels. Raises LeapformerError if there are none."""
    files = [(path, label) for label, side in enumerate(SIDES) for path in sorted((folder / side).glob("*.txt"))]
    for label, side in enumerate(SIDES):
        if all(other != label for _, other in files):
            raise LeapformerError(f"{folder / side} holds no .txt files; check the path, or download it again")
    return files


def read_reviews(files: list[tuple[Path, int]]) -> Iterator[Example]:
    """Yield the reviews in these files. Raises LeapformerError for a file that cannot be read."""
    for path, label in files:
        try:
            yield Example((as_bytes(path.read_text(encoding="utf-8")),), label)
        except (OSError, UnicodeDecodeError) as error:
            raise LeapformerError(f"{path} cannot be read ({error}); download it again") from error


def read_pairs(path: Path) -> Iterator[Example]:
    """Yield the pairs of papers of new_aan_pairs.*.tsv; the label is 1 if one cites the other.

    A line has label, two identifiers and two texts. Raises LeapformerError for a line in another format.
    """
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
            raise LeapformerError(
                f"{path}, line {number}: {len(fields)} fields that begin with {fields[0][:20]!r}, instead of a label, "
                "0 or 1, two identifiers and two texts; download it again"
            )
        yield Example((as_bytes(fields[3]), as_bytes(fields[4])), int(float(fields[0])))
