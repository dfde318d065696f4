"""Pictures of Pathfinder: curves (snakes) of short lines (paddles), drawn where there is room, and discs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...support.errors import LeapformerError
from ...support.options import at_least

SIDE, CONTOUR = 32, 14  # those of Long Range Arena
CONTRASTS = ("published", "equal")

Point = tuple[float, float]  # row and column
Pixels = NDArray[np.float32]
Taken = NDArray[np.bool_]
Window = tuple[slice, slice]

MIDDLE = 6  # pixels in each direction from a paddle's tail that contain all of it
VISIBLE = 0.25  # a paddle takes the pixels that have at least this share of its brightness
ROOM = 0.065, 2  # greatest length of a target per pixel, and per side, of the picture; longer ones hardly ever fit


@dataclass(frozen=True)
class Sizes:
    """Parameters of the pictures, lengths in pixels; the defaults are Long Range Arena's.

    contour:    number of paddles of each of the two target curves: 6 is easy, 9 intermediate, 14 hard (LRA's task).
    side:       width and height of the picture; the distance between the starts of the targets and the number of
                distractors grow with it.
    contrast:   "published": targets have 3/4 of the brightness of distractors, which gives them away; or "equal".
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
        at_least(2, contour=self.contour)
        at_least(12, side=self.side)
        if self.contour * self.step > min(ROOM[0] * self.side**2, ROOM[1] * self.side):
            raise LeapformerError(
                f"--contour {self.contour}: two curves of {self.contour * self.step:g} pixels find no room in --side "
                f"{self.side}; give a shorter contour or a larger picture"
            )
        if self.contrast not in CONTRASTS:
            raise LeapformerError(f"--contrast {self.contrast}: choose from: {', '.join(CONTRASTS)}")

    @property
    def step(self) -> float:
        """The distance from the tail of a paddle to the tail of the next one."""
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


PUBLISHED = Sizes()


class Paddle(NamedTuple):
    """A line from its tail in a direction, in radians."""

    tail: Point
    angle: float

    def at(self, distance: float) -> Point:
        """The point at a distance from the tail, along the line."""
        return self.tail[0] + distance * math.sin(self.angle), self.tail[1] + distance * math.cos(self.angle)


class NoRoomError(Exception):
    """There is no room for a paddle; the caller tries again, or restarts the curve or the picture."""


class Stamp(NamedTuple):
    """A paddle drawn once and reused everywhere; its tail is in the pixel (MIDDLE, MIDDLE).

    `covered` are the pixels that it takes, and `around` also those within the margin, as bits of the canvas.
    """

    pixels: Pixels
    covered: int
    around: int


class Canvas:
    """The paddles drawn so far and the pixels that are taken: by them, within their margin, and outside the border.

    A set of pixels is an integer with a bit per pixel, row by row. Trying to add a paddle is then one operation on two
    integers, which matters since a picture takes some thousand tries.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.width = sizes.side + 2 * MIDDLE  # with a frame, so that no stamp extends beyond it
        self.settled = _border(sizes)  # the border, and all paddles except the last one of each curve
        self.heads: list[int] = []  # the last paddle of each curve, which the next one may touch
        self.drawn: list[tuple[Window, Pixels]] = []

    def taken(self, ignored: int | None = None) -> int:
        """The pixels that are taken, except by the last paddle of the curve with the `ignored` index."""
        taken = self.settled
        for curve, head in enumerate(self.heads):
            if curve != ignored:
                taken |= head
        return taken

    def add(self, paddle: Paddle, contrast: float, taken: int) -> int:
        """Draw a paddle and return the pixels that it takes. Raises NoRoomError if one of them is taken already."""
        row, column, stamp = self.stamp(paddle)
        shift = row * self.width + column
        if taken & stamp.covered << shift:
            raise NoRoomError
        side = 2 * MIDDLE + 1
        self.drawn.append(((slice(row, row + side), slice(column, column + side)), contrast * stamp.pixels))
        return stamp.around << shift

    def stamp(self, paddle: Paddle) -> tuple[int, int, Stamp]:
        """The row and column of a paddle's stamp, and the stamp. Raises NoRoomError if the tail is outside."""
        scale, side = self.sizes.antialias, self.sizes.side
        (top, left), (bottom, right) = (
            (round((row + 0.5) * scale - 0.5), round((column + 0.5) * scale - 0.5))
            for row, column in (paddle.tail, paddle.at(self.sizes.length))
        )
        row, column = top // scale, left // scale
        if not (0 <= row < side and 0 <= column < side):
            raise NoRoomError
        return row, column, _drawn(self.sizes, top % scale, left % scale, bottom - top, right - left)

    def pixels(self) -> Pixels:
        """All paddles, (side, side); if several cover a pixel, the brightest counts."""
        canvas: Pixels = np.zeros((self.width, self.width), dtype=np.float32)
        for window, pixels in self.drawn:
            np.maximum(canvas[window], pixels, out=canvas[window])
        return canvas[MIDDLE:-MIDDLE, MIDDLE:-MIDDLE]


@lru_cache
def _border(sizes: Sizes) -> int:
    """The pixels that no paddle may take: the outermost ones of the picture, and those outside it."""
    side, inside = sizes.side + 2 * MIDDLE, MIDDLE + sizes.padding
    border = np.ones((side, side), dtype=bool)
    border[inside:-inside, inside:-inside] = False
    return bits(border)


@lru_cache(maxsize=10_000)
def _drawn(sizes: Sizes, row: int, column: int, rows: int, columns: int) -> Stamp:
    """The stamp of a line, drawn at `antialias` times the size and reduced.

    In enlarged pixels, it starts at (`row`, `column`) within the middle pixel and extends by `rows` and `columns`.
    """
    scale, side = sizes.antialias, 2 * MIDDLE + 1
    image = Image.new("L", (side * scale, side * scale))
    top, left = MIDDLE * scale + row, MIDDLE * scale + column
    ends = [(left, top), (left + columns, top + rows)]
    ImageDraw.Draw(image).line(ends, fill=255, width=max(1, round(sizes.thickness * scale)))
    small = np.asarray(image.resize((side, side), Image.Resampling.LANCZOS), dtype=np.float32)
    pixels = small / small.max()  # the brightest pixel is 1, wherever the line lies between pixels
    covered = pixels > VISIBLE
    rest_of_row = (0, sizes.side - 1)  # pads a row of the stamp to a row of the canvas, so that bits only need a shift
    masks = (covered, dilated(covered, sizes.margin))
    return Stamp(pixels, *(bits(np.pad(mask, ((0, 0), rest_of_row))) for mask in masks))


def bits(places: Taken) -> int:
    """A mask as an integer, with its first element in the lowest bit."""
    return int.from_bytes(np.packbits(places, bitorder="little").tobytes(), "little")


def dilated(x: Taken, by: int) -> Taken:
    """Dilate a mask by a square: sets all pixels within `by` rows and columns of one that is set."""
    padded, (rows, columns) = np.pad(x, by), x.shape
    shifts = range(2 * by + 1)
    mask: Taken = np.any([padded[i : i + rows, j : j + columns] for i in shifts for j in shifts], axis=0)
    return mask


MARKER = 0.5  # brightness of the discs relative to that of a distractor
TINY = 1e-9  # a total probability below this counts as zero


class Picture(NamedTuple):
    """A picture, (side, side) from 0 to 255, its label, the two targets, all distractors, and the discs' centres."""

    pixels: NDArray[np.uint8]
    label: int
    targets: tuple[Sequence[Paddle], Sequence[Paddle]]
    distractors: Sequence[Sequence[Paddle]]
    markers: tuple[Point, Point]


class _Snake:
    """A curve that grows from its first paddle. Raises NoRoomError if there is no room for that one."""

    def __init__(self, canvas: Canvas, contrast: float, first: Paddle) -> None:
        self.canvas, self.contrast, self.number = canvas, contrast, len(canvas.heads)
        self.paddles = [first]
        canvas.heads.append(canvas.add(first, contrast, canvas.taken()))

    def grow(self, random: Random) -> None:
        """Add a paddle, which may touch the paddle before it. Raises NoRoomError if there is no room.

        Among the directions whose end point is free, a turn of an angle a is drawn in proportion to cos(a)^2.
        """
        canvas, sizes, before = self.canvas, self.canvas.sizes, self.paddles[-1]
        tail, taken = before.at(sizes.step), canvas.taken(ignored=self.number)
        i, j = round(tail[0]), round(tail[1])
        reach = math.ceil(sizes.length + sizes.margin)
        if not (-reach <= i < sizes.side + reach and -reach <= j < sizes.side + reach):
            raise NoRoomError
        around = taken >> (i + MIDDLE - reach) * canvas.width + j + MIDDLE - reach
        angles, cumulated = _turns(sizes, before.angle, ~around & _circle(sizes))
        for _ in range(1 + sizes.paddle_retries):
            paddle = Paddle(tail, random.choices(angles, cum_weights=cumulated)[0])
            try:
                head = canvas.add(paddle, self.contrast, taken)
            except NoRoomError:
                continue
            self.paddles.append(paddle)
            canvas.settled |= canvas.heads[self.number]
            canvas.heads[self.number] = head
            return
        raise NoRoomError


@lru_cache
def _directions(sizes: Sizes) -> list[tuple[int, float]]:
    """The pixels of the circle of end points around a tail, and the angle of each.

    A pixel is a bit of the canvas, counted from the corner of the square that contains the circle.
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
    """The set of all pixels of the circle."""
    return sum(pixel for pixel, _ in _directions(sizes))


@lru_cache(maxsize=100_000)  # the same directions and free pixels recur in every picture
def _turns(sizes: Sizes, before: float, free: int) -> tuple[list[float], list[float]]:
    """The directions that a curve may turn to, and their cumulative weights. Raises NoRoomError if there are none."""
    angles, weights = [], []
    for pixel, angle in _directions(sizes):
        if free & pixel:
            turn = abs((angle - before + math.pi) % (2 * math.pi) - math.pi)
            angles.append(angle)
            weights.append(max(0.0, math.cos(min(sizes.continuity * turn, math.pi / 2))) ** 2)
    if sum(weights) < TINY:
        raise NoRoomError
    return angles, list(accumulate(weights))


def draw(random: Random, sizes: Sizes, label: int) -> Picture:
    """Draw a picture, starting again until there is room for the targets; distractors without room are left out."""
    while True:
        try:
            return _draw(random, sizes, label)
        except NoRoomError:
            continue


def _draw(random: Random, sizes: Sizes, label: int) -> Picture:
    canvas = Canvas(sizes)
    bright = 0.75 if sizes.contrast == "published" else 1.0
    first = _Snake(canvas, bright, _first(random, canvas, int(2 * sizes.seed_distance)))
    tail = Paddle(first.paddles[0].tail, random.random() * 2 * math.pi).at(sizes.seed_distance)
    second = _Snake(canvas, bright, Paddle(tail, _any_angle(random)))
    for _ in range(sizes.contour - 1):  # in turn, so that neither takes the other's room
        first.grow(random)
        second.grow(random)
    distractors = list(_distractors(random, canvas))
    chosen = (first, second) if random.random() < 0.5 else (second, first)
    # Both discs are on the first curve for label 1, and on different curves for label 0.
    ends = chosen[0].paddles[0].tail, chosen[1 - label].paddles[-1].at(sizes.length)
    pixels = canvas.pixels()
    for end in ends:
        np.maximum(pixels, MARKER * disc(end, sizes), out=pixels)
    return Picture(_stretched(pixels), label, (first.paddles, second.paddles), distractors, ends)


def _any_angle(random: Random) -> float:
    """A random angle in radians, a whole number of degrees."""
    return math.radians(int(random.random() * 360))


def _first(random: Random, canvas: Canvas, border: int) -> Paddle:
    """A curve's first paddle, its tail on a free pixel at least `border` pixels inside. Raises NoRoomError."""
    places = np.frombuffer(canvas.taken().to_bytes(-(-(canvas.width**2) // 8), "little"), dtype=np.uint8)
    taken = np.unpackbits(places, count=canvas.width**2, bitorder="little").reshape(canvas.width, canvas.width)
    inside = slice(MIDDLE + border, MIDDLE + canvas.sizes.side - border)
    rows, columns = np.nonzero(taken[inside, inside] == 0)
    if not len(rows):
        raise NoRoomError
    i = int(random.random() * len(rows))
    return Paddle((float(rows[i] + border), float(columns[i] + border)), _any_angle(random))


def _distractors(random: Random, canvas: Canvas) -> Iterator[Sequence[Paddle]]:
    sizes = canvas.sizes
    count = sizes.distractor_contour
    for _ in range(sizes.distractor_paddles // count):
        for _ in range(1 + sizes.distractor_retries):
            before = canvas.settled, canvas.heads[:], canvas.drawn[:]
            try:
                snake = _Snake(canvas, 1.0, _first(random, canvas, sizes.padding))
                while len(snake.paddles) < count:
                    snake.grow(random)
            except NoRoomError:
                canvas.settled, canvas.heads, canvas.drawn = before
                continue
            yield snake.paddles
            break


def disc(middle: Point, sizes: Sizes) -> Pixels:
    """A disc around `middle` with a soft edge of one pixel: (side, side), from 0 to 1."""
    rows, columns = np.mgrid[: sizes.side, : sizes.side]
    inside = sizes.marker_radius + 0.5 - np.hypot(rows - middle[0], columns - middle[1])
    return np.clip(inside, 0, 1).astype(np.float32)


def _stretched(pixels: Pixels) -> NDArray[np.uint8]:
    """Scale to 0 to 255, so that the brightest pixel is 255."""
    return np.round(pixels * (255 / float(pixels.max()))).astype(np.uint8)
