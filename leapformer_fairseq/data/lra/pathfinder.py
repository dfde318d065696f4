"""Pathfinder: a picture of dashed curves with two discs. Are the discs at the ends of the same curve?

Linsley et al., 2018 (arXiv:1805.08315), with the sizes of Tay et al., 2021 (arXiv:2011.04006): Linsley's pathfinder
repository, with its parameters in Long Range Arena. A curve (snake) is a chain of short lines (paddles).

The release has one folder per difficulty, with imgs/BATCH/sample_N.png and metadata/BATCH.npy, a text file with one
line per picture: folder, file, N, label, continuity, paddles of a target, ...
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...errors import LeapformerError
from ...files import write_text
from ...progress import Watch, unwatched
from .. import prepared
from ..arrays import Example
from ..lines import read_lines

NAME = "pathfinder"
SIDE, CONTOUR = 32, 14  # of Long Range Arena
IMAGES = 200_000
BATCH = 1_000  # pictures of a folder
CONTRASTS = ("published", "equal")

Point = tuple[float, float]  # row and column
Pixels = NDArray[np.float32]
Taken = NDArray[np.bool_]
Window = tuple[slice, slice]

MIDDLE = 6  # pixels around the tail of a paddle that hold all of it
VISIBLE = 0.25  # of the brightness of a paddle: where it takes a pixel
MARKER = 0.5  # brightness of the discs, times that of a distractor
SHEET, COLUMNS = "examples.png", 8  # about so many of each label
ENLARGED, FRAME = 4, 3
TINY = 1e-9  # a total probability that is none
ROOM = 0.065, 2  # the longest target, times the pixels of a picture and times its side: beyond, hardly any try succeeds


@dataclass(frozen=True)
class Sizes:
    """Parameters of the pictures, in pixels of the picture; defaults are Long Range Arena's.

    contour:    paddles of each of the two target curves: 6 is easy, 9 intermediate, 14 hard (the task of LRA).
    side:       of the picture; the distance between the starts of the two curves and the number of distractors grow
                with it.
    contrast:   "published": paddles of targets have 3/4 of the brightness of distractors, which reveals them; or
                "equal".
    """

    contour: int = CONTOUR
    contrast: str = "published"
    side: int = SIDE
    antialias: int = 2
    padding: int = 1
    length: float = 2
    thickness: float = 0.5
    margin: int = 1
    marker_radius: float = 1.5
    continuity: float = 1
    paddle_retries: int = 2
    distractor_retries: int = 4

    def check(self) -> None:
        """Raise LeapformerError for unsupported values."""
        for name, least in (("contour", 2), ("side", 12)):
            if getattr(self, name) < least:
                raise LeapformerError(f"--{name} {getattr(self, name)}: give at least {least}")
        if self.contour * self.step > min(ROOM[0] * self.side**2, ROOM[1] * self.side):
            raise LeapformerError(
                f"--contour {self.contour}: two curves of {self.contour * self.step:g} pixels find no room in --side "
                f"{self.side}; give a shorter contour or a larger picture"
            )
        if self.contrast not in CONTRASTS:
            raise LeapformerError(f"--contrast {self.contrast}: choose from: {', '.join(CONTRASTS)}")

    @property
    def step(self) -> float:
        """The distance from the tail of a paddle to that of the next."""
        return self.length + 2 * self.margin

    @property
    def seed_distance(self) -> float:
        """The distance between the tails of the first paddles of the two targets."""
        return 7 * self.side / SIDE

    @property
    def distractor_paddles(self) -> int:
        """The number of paddles of all distractors together."""
        return 20 * self.side**2 // SIDE**2

    @property
    def distractor_contour(self) -> int:
        """The number of paddles of a distractor."""
        return max(1, self.contour // 3)

    @property
    def folder(self) -> str:
        """The name of the folder with these pictures in the release."""
        return "curv_baseline" if self.contour == 6 else f"curv_contour_length_{self.contour}"


class Paddle(NamedTuple):
    """A line from its tail, in a direction in radians."""

    tail: Point
    angle: float

    def at(self, distance: float) -> Point:
        """The point at a distance from the tail, along the line."""
        return self.tail[0] + distance * math.sin(self.angle), self.tail[1] + distance * math.cos(self.angle)


class Picture(NamedTuple):
    """A picture with values from 0 to 255, its label, the two targets, all distractors, and the discs' positions."""

    pixels: NDArray[np.uint8]
    label: int
    targets: tuple[Sequence[Paddle], Sequence[Paddle]]
    distractors: Sequence[Sequence[Paddle]]
    markers: tuple[Point, Point]


class _NoRoomError(Exception):
    pass


class _Stamp(NamedTuple):
    """A paddle that was drawn once, for all places: its pixels, those it takes, and those next to them, too.

    The tail is in the pixel at (MIDDLE, MIDDLE). What is taken is a set of places in a canvas, as the bits of a number.
    """

    pixels: Pixels
    own: int
    around: int


class _Canvas:
    """The paddles that were drawn, and the places that are taken: by them, next to them, and beyond the border.

    Places are bits of a number, line by line: a try to add a paddle is then an operation on two numbers, and a picture
    takes some thousand tries.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.width = sizes.side + 2 * MIDDLE  # so that no stamp leaves it
        self.settled = _border(sizes)  # and all but the last paddle of each curve
        self.heads: list[int] = []  # the last paddle of each curve
        self.drawn: list[tuple[Window, Pixels]] = []

    def taken(self, but: int | None = None) -> int:
        """All places that are taken, or without the last paddle of the curve with this number."""
        found = self.settled
        for curve, head in enumerate(self.heads):
            if curve != but:
                found |= head
        return found

    def add(self, paddle: Paddle, contrast: float, taken: int) -> int:
        """Draw a paddle; returns what it takes. Raises _NoRoomError, and draws nothing, where that is taken."""
        row, column, stamp = self.stamp(paddle)
        shift = row * self.width + column
        if taken & stamp.own << shift:
            raise _NoRoomError
        side = 2 * MIDDLE + 1
        self.drawn.append(((slice(row, row + side), slice(column, column + side)), contrast * stamp.pixels))
        return stamp.around << shift

    def stamp(self, paddle: Paddle) -> tuple[int, int, _Stamp]:
        """How a paddle looks, and the line and column where that begins."""
        scale, side = self.sizes.antialias, self.sizes.side
        (top, left), (bottom, right) = (
            (round((row + 0.5) * scale - 0.5), round((column + 0.5) * scale - 0.5))
            for row, column in (paddle.tail, paddle.at(self.sizes.length))
        )
        row, column = top // scale, left // scale
        if not (0 <= row < side and 0 <= column < side):
            raise _NoRoomError
        return row, column, _drawn(self.sizes, top % scale, left % scale, bottom - top, right - left)

    def pixels(self) -> Pixels:
        """All paddles; where they meet, the brightest."""
        found: Pixels = np.zeros((self.width, self.width), dtype=np.float32)
        for window, pixels in self.drawn:
            np.maximum(found[window], pixels, out=found[window])
        return found[MIDDLE:-MIDDLE, MIDDLE:-MIDDLE]


@lru_cache
def _border(sizes: Sizes) -> int:
    """What no paddle may take: the outermost pixels of the picture, and what is beyond them."""
    side, inside = sizes.side + 2 * MIDDLE, MIDDLE + sizes.padding
    border = np.ones((side, side), dtype=bool)
    border[inside:-inside, inside:-inside] = False
    return bits(border)


@lru_cache(maxsize=10_000)
def _drawn(sizes: Sizes, row: int, column: int, rows: int, columns: int) -> _Stamp:
    """A line of `rows` and `columns` at `antialias` times the size from a place within the middle pixel, reduced."""
    scale, side = sizes.antialias, 2 * MIDDLE + 1
    image = Image.new("L", (side * scale, side * scale))
    top, left = MIDDLE * scale + row, MIDDLE * scale + column
    ends = [(left, top), (left + columns, top + rows)]
    ImageDraw.Draw(image).line(ends, fill=255, width=max(1, round(sizes.thickness * scale)))
    small = np.asarray(image.resize((side, side), Image.Resampling.LANCZOS), dtype=np.float32)
    pixels = small / small.max()
    own = pixels > VISIBLE
    beyond = (0, sizes.side - 1)  # the rest of a line of the canvas
    return _Stamp(pixels, *(bits(np.pad(x, ((0, 0), beyond))) for x in (own, dilated(own, sizes.margin))))


def bits(places: Taken) -> int:
    """A set of positions as an integer, the first in its lowest bit."""
    return int.from_bytes(np.packbits(places, bitorder="little").tobytes(), "little")


def dilated(x: Taken, by: int) -> Taken:
    """Pixels within `by` of a pixel that is set, horizontally, vertically and in between: a square."""
    padded, (rows, columns) = np.pad(x, by), x.shape
    shifts = range(2 * by + 1)
    found: Taken = np.any([padded[i : i + rows, j : j + columns] for i in shifts for j in shifts], axis=0)
    return found


class _Snake:
    """A curve that grows."""

    def __init__(self, canvas: _Canvas, contrast: float, first: Paddle) -> None:
        self.canvas, self.contrast, self.number = canvas, contrast, len(canvas.heads)
        self.paddles = [first]
        canvas.heads.append(canvas.add(first, contrast, canvas.taken()))

    def grow(self, random: Random) -> None:
        """Add a paddle: a turn has a probability of cos^2, where the pixel that it points to is free.

        It may touch the paddle before it. Raises _NoRoomError.
        """
        canvas, sizes, before = self.canvas, self.canvas.sizes, self.paddles[-1]
        tail, taken = before.at(sizes.step), canvas.taken(but=self.number)
        i, j = round(tail[0]), round(tail[1])
        reach = math.ceil(sizes.length + sizes.margin)
        if not (-reach <= i < sizes.side + reach and -reach <= j < sizes.side + reach):
            raise _NoRoomError
        around = taken >> (i + MIDDLE - reach) * canvas.width + j + MIDDLE - reach
        angles, cumulated = _turns(sizes, before.angle, ~around & _circle(sizes))
        for _ in range(1 + sizes.paddle_retries):
            paddle = Paddle(tail, random.choices(angles, cum_weights=cumulated)[0])
            try:
                head = canvas.add(paddle, self.contrast, taken)
            except _NoRoomError:
                continue
            self.paddles.append(paddle)
            canvas.settled |= canvas.heads[self.number]
            canvas.heads[self.number] = head
            return
        raise _NoRoomError


@lru_cache
def _directions(sizes: Sizes) -> list[tuple[int, float]]:
    """Pixels of a circle around 0, and where they lie.

    A pixel is a bit of the places of a canvas from the corner of the square that holds the circle.
    """
    radius, width = sizes.length + sizes.margin, sizes.side + 2 * MIDDLE
    reach = math.ceil(radius)
    square = [(i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1)]
    return [
        (1 << (i + reach) * width + j + reach, math.atan2(i, j))
        for i, j in square
        if abs(math.hypot(i, j) - radius) < 0.5
    ]


@lru_cache
def _circle(sizes: Sizes) -> int:
    """All pixels of the circle."""
    return sum(pixel for pixel, _ in _directions(sizes))


@lru_cache(maxsize=100_000)
def _turns(sizes: Sizes, before: float, free: int) -> tuple[list[float], list[float]]:
    """Directions that a curve may turn to, and their cumulated weights. Raises _NoRoomError where there are none."""
    angles, weights = [], []
    for pixel, angle in _directions(sizes):
        if free & pixel:
            turn = abs((angle - before + math.pi) % (2 * math.pi) - math.pi)
            angles.append(angle)
            weights.append(max(0.0, math.cos(min(sizes.continuity * turn, math.pi / 2))) ** 2)
    if sum(weights) < TINY:
        raise _NoRoomError
    return angles, list(accumulate(weights))


def draw(random: Random, sizes: Sizes, label: int) -> Picture:
    """A picture. It is restarted until there is room for the targets; there may be fewer distractors."""
    while True:
        try:
            return _draw(random, sizes, label)
        except _NoRoomError:
            continue


def _draw(random: Random, sizes: Sizes, label: int) -> Picture:
    canvas = _Canvas(sizes)
    bright = 0.75 if sizes.contrast == "published" else 1.0
    first = _Snake(canvas, bright, _first(random, canvas, int(2 * sizes.seed_distance)))
    tail = Paddle(first.paddles[0].tail, random.random() * 2 * math.pi).at(sizes.seed_distance)
    second = _Snake(canvas, bright, Paddle(tail, _any_angle(random)))
    for _ in range(sizes.contour - 1):
        first.grow(random)
        second.grow(random)
    distractors = list(_distractors(random, canvas))
    chosen = (first, second) if random.random() < 0.5 else (second, first)
    ends = chosen[0].paddles[0].tail, chosen[1 - label].paddles[-1].at(sizes.length)
    pixels = canvas.pixels()
    for end in ends:
        np.maximum(pixels, MARKER * disc(end, sizes), out=pixels)
    return Picture(_stretched(pixels), label, (first.paddles, second.paddles), distractors, ends)


def _any_angle(random: Random) -> float:
    """In whole degrees."""
    return math.radians(int(random.random() * 360))


def _first(random: Random, canvas: _Canvas, border: int) -> Paddle:
    """The first paddle of a curve, its tail on a free pixel so far from the border."""
    places = np.frombuffer(canvas.taken().to_bytes(-(-(canvas.width**2) // 8), "little"), dtype=np.uint8)
    taken = np.unpackbits(places, count=canvas.width**2, bitorder="little").reshape(canvas.width, canvas.width)
    inside = slice(MIDDLE + border, MIDDLE + canvas.sizes.side - border)
    rows, columns = np.nonzero(taken[inside, inside] == 0)
    if not len(rows):
        raise _NoRoomError
    i = int(random.random() * len(rows))
    return Paddle((float(rows[i] + border), float(columns[i] + border)), _any_angle(random))


def _distractors(random: Random, canvas: _Canvas) -> Iterator[Sequence[Paddle]]:
    sizes = canvas.sizes
    count = sizes.distractor_contour
    for _ in range(sizes.distractor_paddles // count):
        for _ in range(1 + sizes.distractor_retries):
            before = canvas.settled, canvas.heads[:], canvas.drawn[:]
            try:
                snake = _Snake(canvas, 1.0, _first(random, canvas, sizes.padding))
                while len(snake.paddles) < count:
                    snake.grow(random)
            except _NoRoomError:
                canvas.settled, canvas.heads, canvas.drawn = before
                continue
            yield snake.paddles
            break


def disc(middle: Point, sizes: Sizes) -> Pixels:
    """A disc with a soft edge of one pixel; values from 0 to 1."""
    rows, columns = np.mgrid[: sizes.side, : sizes.side]
    inside = sizes.marker_radius + 0.5 - np.hypot(rows - middle[0], columns - middle[1])
    return np.clip(inside, 0, 1).astype(np.float32)


def _stretched(pixels: Pixels) -> NDArray[np.uint8]:
    """From 0 to 255, whatever the brightest is."""
    return np.round(pixels * (255 / float(pixels.max()))).astype(np.uint8)


def build(
    out: str | Path,
    sizes: Sizes = Sizes(),
    images: int = IMAGES,
    seed: int = 1,
    workers: int = 1,
    watch: Watch = unwatched,
) -> prepared.Summary:
    """Write one difficulty in the release's layout to the folder `out`, or reuse it; returns size and sha256.

    Also writes examples.png: pictures with connected discs in the top row, others below.

    Labels are balanced in each batch. The same options give the same pixels, for any number of processes. An
    interrupted build resumes at the next batch. `watch` receives the number of pictures done and wanted. Raises
    LeapformerError for unsupported options, and an `out` with other files.
    """
    sizes.check()
    if images < 2:
        raise LeapformerError(f"--images {images}: give at least 2, one of each label")
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
    """Pictures with label 1, connected, in the first row, and those with label 0 in the second; enlarged."""
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
    """The text file with the labels of a batch, despite its suffix."""
    return folder / "metadata" / f"{batch}.npy"


def _make_batch(folder: Path, sizes: Sizes, seed: int, batch: int, count: int) -> int:
    """The pictures of a batch, then its metadata, which is the mark that they are all there."""
    random = Random(f"{seed}/{batch}")
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
    """What `make` returns for each batch and its count, as they are done."""
    chosen = [counts[batch] for batch in batches]
    if workers <= 1:
        yield from map(make, batches, chosen)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(make, batches, chosen)


# ---------------------------------------------------------------------------------------------------------------- files
def listed(folder: Path) -> tuple[list[tuple[Path, int]], int]:
    """The pictures of a folder of the release with their labels, in order, and the number left out: empty files.

    Raises LeapformerError if metadata or pictures are missing, or a line has a different format.
    """
    found, empty = [], 0
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
            if size:
                found.append((picture, int(fields[3])))
            else:
                empty += 1
    return found, empty


def read(pictures: Iterable[tuple[Path, int]]) -> Iterator[Example]:
    """Brightness 0 to 255 of the pixels, row by row.

    Raises LeapformerError for a damaged picture, and one that differs in size from the first.
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
