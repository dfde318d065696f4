"""Pathfinder: a picture of dashed curves with two discs. Are the discs at the ends of the same curve?

The generator follows the pathfinder repository of Linsley et al., 2018 (arXiv:1805.08315), with the parameters of Long
Range Arena (Tay et al., 2021, arXiv:2011.04006). A curve (snake) is a chain of short lines (paddles). This file writes
and reads the files; pathfinder_pictures.py draws.

The release has a folder per difficulty, with imgs/BATCH/sample_N.png and metadata/BATCH.npy, a text file with one line
per picture: folder, file, N, label, continuity, paddles of a target, ...
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...support.errors import LeapformerError
from ...support.files import write_text
from ...support.lines import read_lines
from ...support.options import at_least
from ...support.processes import pool_of
from ...support.progress import Watch, unwatched
from .. import prepared
from ..arrays import Example
from .pathfinder_pictures import PUBLISHED, Sizes, draw

NAME = "pathfinder"
IMAGES = 200_000
BATCH = 1_000  # pictures per folder
SHEET, COLUMNS = "examples.png", 8  # about this many pictures of each label
ENLARGED, FRAME = 4, 3  # factor, and width in enlarged pixels


def build(
    out: str | Path,
    sizes: Sizes = PUBLISHED,
    images: int = IMAGES,
    seed: int = 1,
    workers: int = 1,
    watch: Watch = unwatched,
) -> prepared.Summary:
    """Write one difficulty to the folder `out`, in the layout of the release, or reuse it; return size and SHA-256.

    Also writes examples.png, with connected discs in the top row and the others below. Labels are balanced in each
    batch. The same options give the same pixels, for any number of processes. An interrupted build resumes at the next
    batch. `watch` receives the numbers of pictures done and in total. Raises LeapformerError for unsupported options,
    and an `out` with other files.
    """
    sizes.check()
    if images < 2:
        raise LeapformerError(f"--images {images}: give at least 2, one of each label")
    at_least(1, workers=workers)
    options = {"corpus": NAME, "images": images, "seed": seed, **asdict(sizes)}
    out = Path(out)
    if (summary := prepared.begin(out, options)) is not None:
        return summary
    folder = out / sizes.folder
    counts = [min(BATCH, images - start) for start in range(0, images, BATCH)]
    missing = [batch for batch in range(len(counts)) if not metadata_of(folder, batch).is_file()]
    done = images - sum(counts[batch] for batch in missing)
    for count in _in_processes(partial(_make_batch, folder, sizes, seed), missing, counts, workers):
        done += count
        watch(done, images)
    digest = hashlib.sha256()
    for batch, count in enumerate(counts):
        for number in range(count):
            with Image.open(picture_of(folder, batch, number)) as image:
                digest.update(image.tobytes())
        digest.update(metadata_of(folder, batch).read_bytes())
    contact_sheet(read(listed(folder)[0][: 2 * COLUMNS])).save(out / SHEET)
    summary = {"images": images, "folder": folder.name, "checksum": digest.hexdigest()}
    prepared.finish(out, options, summary)
    return summary


def contact_sheet(examples: Iterable[Example]) -> Image.Image:
    """Enlarged pictures, those with label 1 (connected) in the first row and those with label 0 in the second."""
    rows: dict[int, list[NDArray[np.uint8]]] = {1: [], 0: []}
    for (pixels,), label in examples:
        side = math.isqrt(len(pixels))
        large = pixels.reshape(side, side).repeat(ENLARGED, 0).repeat(ENLARGED, 1)
        rows[label].append(np.pad(large, FRAME, constant_values=255))
    columns = max(map(len, rows.values()))
    blank = np.full_like(next(tile for row in rows.values() for tile in row), 255)
    return Image.fromarray(np.vstack([np.hstack(row + [blank] * (columns - len(row))) for row in rows.values()]))


def picture_of(folder: Path, batch: int, number: int) -> Path:
    """The file of a picture in a folder of the release."""
    return folder / "imgs" / str(batch) / f"sample_{number}.png"


def metadata_of(folder: Path, batch: int) -> Path:
    """The file with the labels of a batch, which is a text file despite its suffix."""
    return folder / "metadata" / f"{batch}.npy"


def _make_batch(folder: Path, sizes: Sizes, seed: int, batch: int, count: int) -> int:
    """Write the pictures of a batch, then its metadata, which mark the batch as complete; return `count`."""
    random = Random(f"{seed}/{batch}")  # a generator per batch, so that processes and resuming do not matter
    labels = [i % 2 for i in range(count)]
    random.shuffle(labels)
    picture_of(folder, batch, 0).parent.mkdir(parents=True, exist_ok=True)
    metadata_of(folder, batch).parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, label in enumerate(labels):
        path = picture_of(folder, batch, number)
        Image.fromarray(draw(random, sizes, label).pixels).save(path)
        about = f"{sizes.continuity} {sizes.contour} {sizes.length} {sizes.thickness} {sizes.contrast}"
        lines.append(f"imgs/{batch} {path.name} {number} {label} {about}\n")
    write_text(metadata_of(folder, batch), "".join(lines), "--out")
    return count


def _in_processes(
    make: Callable[[int, int], int], batches: Sequence[int], counts: Sequence[int], workers: int
) -> Iterator[int]:
    """Yield what `make` returns for each batch and its count, as it becomes available."""
    selected = [counts[batch] for batch in batches]
    if workers <= 1:
        yield from map(make, batches, selected)
        return
    with pool_of(workers, f"--workers {workers}", "finished pictures are kept, and the same command resumes") as pool:
        yield from pool.map(make, batches, selected)


# ---------------------------------------------------------------------------------------------------------------- files
def listed(folder: Path) -> tuple[list[tuple[Path, int]], int]:
    """The pictures of a folder of the release with their labels, in order, and the number of empty files left out.

    Raises LeapformerError if metadata or pictures are missing, or a line has a different format.
    """
    pictures, empty = [], 0
    batches = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path.name))
    if not batches:
        raise LeapformerError(f"{folder / 'metadata'} holds no .npy files; check the path, or download it again")
    for path in batches:
        for number, line in enumerate(read_lines(path), 1):
            fields = line.split()
            if not fields:
                continue
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise LeapformerError(f"{path}, line {number}: {line!r} has no label 0 or 1 in its fourth field")
            picture = folder / fields[0] / fields[1]
            try:
                size = picture.stat().st_size
            except OSError as error:
                raise LeapformerError(f"{picture}, of {path}, is missing; download the folder again") from error
            if size:  # the release has a few empty files
                pictures.append((picture, int(fields[3])))
            else:
                empty += 1
    return pictures, empty


def read(pictures: Iterable[tuple[Path, int]]) -> Iterator[Example]:
    """Yield the pictures as brightness from 0 to 255, (side * side,), row by row.

    Raises LeapformerError for a damaged picture, and for one that is not as large as the first.
    """
    side = None
    for path, label in pictures:
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("L"))
        except (OSError, SyntaxError, ValueError) as error:
            raise LeapformerError(f"{path} is damaged ({error}); download it again") from error
        side = side or len(pixels)
        if pixels.shape != (side, side):
            raise LeapformerError(f"{path} is {pixels.shape[1]} x {pixels.shape[0]}, not {side} x {side}")
        yield Example((pixels.reshape(-1),), label)
