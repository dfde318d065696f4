"""Parameters of Pathfinder's pictures, and the canvas on which short lines (paddles) are drawn where there is room."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...support.errors import LeapformerError

SIDE, CONTOUR = 32, 14  # of Long Range Arena
CONTRASTS = ("published", "equal")

Point = tuple[float, float]  # row and column
Pixels = NDArray[np.float32]
Taken = NDArray[np.bool_]
Window = tuple[slice, slice]

MIDDLE = 6  # pixels around the tail of a paddle that hold all of it
VISIBLE = 0.25  # of the brightness of a paddle: where it takes a pixel
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


PUBLISHED = Sizes()


class Paddle(NamedTuple):
    """A line from its tail, in a direction in radians."""

    tail: Point
    angle: float

    def at(self, distance: float) -> Point:
        """The point at a distance from the tail, along the line."""
        return self.tail[0] + distance * math.sin(self.angle), self.tail[1] + distance * math.cos(self.angle)


class NoRoomError(Exception):
    pass


class Stamp(NamedTuple):
    """A paddle that was drawn once, for all places: its pixels, those it takes, and those next to them, too.

    The tail is in the pixel at (MIDDLE, MIDDLE). What is taken is a set of places in a canvas, as the bits of a number.
    """

    pixels: Pixels
    own: int
    around: int


class Canvas:
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
        """Draw a paddle; returns what it takes. Raises NoRoomError, and draws nothing, where that is taken."""
        row, column, stamp = self.stamp(paddle)
        shift = row * self.width + column
        if taken & stamp.own << shift:
            raise NoRoomError
        side = 2 * MIDDLE + 1
        self.drawn.append(((slice(row, row + side), slice(column, column + side)), contrast * stamp.pixels))
        return stamp.around << shift

    def stamp(self, paddle: Paddle) -> tuple[int, int, Stamp]:
        """How a paddle looks, and the line and column where that begins."""
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
def _drawn(sizes: Sizes, row: int, column: int, rows: int, columns: int) -> Stamp:
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
    return Stamp(pixels, *(bits(np.pad(x, ((0, 0), beyond))) for x in (own, dilated(own, sizes.margin))))


def bits(places: Taken) -> int:
    """A set of positions as an integer, the first in its lowest bit."""
    return int.from_bytes(np.packbits(places, bitorder="little").tobytes(), "little")


def dilated(x: Taken, by: int) -> Taken:
    """Pixels within `by` of a pixel that is set, horizontally, vertically and in between: a square."""
    padded, (rows, columns) = np.pad(x, by), x.shape
    shifts = range(2 * by + 1)
    found: Taken = np.any([padded[i : i + rows, j : j + columns] for i in shifts for j in shifts], axis=0)
    return found
