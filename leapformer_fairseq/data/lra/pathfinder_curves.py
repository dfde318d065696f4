"""Pictures of Pathfinder: curves (snakes) that grow paddle by paddle, distractors, and discs at the ends of curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pathfinder_canvas import MIDDLE, Canvas, NoRoomError, Paddle, Pixels, Point, Sizes

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
