"""The points of a sweep: each pattern with each value of its options in a grid.

The paper has two grids that differ, in section 5 and in appendix C.2; each point carries where it comes from. The
values stand with the patterns (`Pattern.grids`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...attention import MECHANISMS, build, find
from ...attention.sparse.blocks import ATTENDED, SIZE, Blocked
from ...attention.sparse.fitted import Fitted
from ...attention.sparse.pattern import SEED, Pattern
from ...attention.sparse.predicted import CENTROIDS
from ...support.errors import LeapformerError

GRIDS = ("section5", "c2", "union", "small", "fine")
OURS = ("small", "fine")  # the union is the papers'
# D.2 for masked language models; section 5 and C.2 for translation
MLM_WINDOWS = (0, 1, 3, 7, 11, 25, 31, 41, 51, 75, 101, 125, 151, 175, 201, 251, 301, 351, 401, 451, 501, 512)
MT_WINDOWS = (0, 1, 3, 5, 7, 9, 11, 15, 19, 23, 27)

# blocks attended to, tokens of a block, centroids of version 2: section 6.1, and appendix F for blocks of one token
BLOCKS = {
    "union": ((2, 3, 4, 8, 16, 22), (1, 2, 4, 8, 16), (2, 4, 8, 12, 16, 20)),
    "small": ((2, 4), (1, 16), (4,)),
}


@dataclass(frozen=True)
class Point:
    """A pattern with options, and the grids that it is a point of; windows and global tokens come on top."""

    mechanism: str
    options: dict[str, Any]
    origins: tuple[str, ...] = field(default=(), compare=False)

    @property
    def seeded(self) -> bool:
        """Whether something about it is random, or fitted."""
        cls = find(self.mechanism)
        return issubclass(cls, Fitted) or SEED in cls.options

    @property
    def name(self) -> str:
        """For tables, as in `sparsefinder-distance threshold=1.0`."""
        values = (f"{name.partition('_')[2]}={value}" for name, value in self.options.items())
        return " ".join([self.mechanism, *values])

    @property
    def file_name(self) -> str:
        """`name` without what file names had better not have."""
        return re.sub(r"[^A-Za-z0-9.=-]+", "_", self.name)


def patterns() -> list[str]:
    """All mechanisms that are sparsity patterns, by name."""
    return sorted(name for name, cls in MECHANISMS.items() if issubclass(cls, Pattern) and cls.grids)


def points(grid: str, mechanisms: Sequence[str], block: str) -> list[Point]:
    """The points of a grid for the patterns that can serve the block. The union also has what was released."""
    if grid not in GRIDS:
        raise LeapformerError(f"--grid {grid}: choose from: {', '.join(GRIDS)}")
    found: dict[tuple[str, str], Point] = {}
    for name in mechanisms:
        cls = find(name)
        if not issubclass(cls, Pattern):
            raise LeapformerError(f"--mechanisms {name} is no sparsity pattern; choose from: {', '.join(patterns())}")
        if cls.capabilities.unsupported_reason(block) is not None:
            continue
        for origin, values in cls.grids.items():
            if origin != grid and (grid != "union" or origin in OURS):
                continue
            for options in values:
                key = name, repr(sorted(options.items()))
                before = found[key].origins if key in found else ()
                found[key] = Point(name, dict(options), (*before, origin))
    return list(found.values())


def block_points(grid: str, mechanisms: Sequence[str]) -> list[Point]:
    """The points of the experiment with blocks: "union" is the paper's grid."""
    if grid not in BLOCKS:
        raise LeapformerError(f"--grid {grid}: choose from: {', '.join(BLOCKS)}")
    attended, sizes, centroids = BLOCKS[grid]
    found = []
    for name in mechanisms:
        if not issubclass(find(name), Blocked):
            known = ", ".join(sorted(name for name, cls in MECHANISMS.items() if issubclass(cls, Blocked)))
            raise LeapformerError(f"--mechanisms {name} does not attend to blocks; choose from: {known}")
        clusters: tuple[dict[str, Any], ...] = ({},)
        if "centroids" in dict(build(name, 8, 1).named_buffers()):
            clusters = tuple({CENTROIDS.name: count} for count in centroids)
        found += [
            Point(name, {SIZE.name: size, ATTENDED.name: count, **options})
            for size in sizes
            for count in attended
            for options in clusters
        ]
    return found


def values_of(option: str) -> list[int]:
    """All values that an option has in any grid."""
    found = [cls for cls in MECHANISMS.values() if issubclass(cls, Pattern)]
    grids = (options for cls in found for values in cls.grids.values() for options in values)
    return sorted({options[option] for options in grids if option in options})


def windows_of(block: str) -> tuple[int, ...]:
    """The windows of the paper for this block: those of masked language models are longer, cross-attention has none."""
    return {"encoder-self": MLM_WINDOWS, "decoder-cross": (0,)}.get(block, MT_WINDOWS)


def read_options(mechanism: str, given: Sequence[str]) -> dict[str, Any]:
    """Options of a pattern from NAME=VALUE, each of the type of its default. Raises LeapformerError for others."""
    if not issubclass(find(mechanism), Pattern):
        raise LeapformerError(f"--mechanism {mechanism}: it is no sparsity pattern; `leapformer list` shows them")
    known = {option.name: option for option in find(mechanism).options}
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in known:
            raise LeapformerError(f"--set {text}: {mechanism} has no option {name!r}; its options: {', '.join(known)}")
        try:
            default = known[name].default
            found[name] = {"True": True, "False": False}[value] if isinstance(default, bool) else type(default)(value)
        except KeyError:
            raise LeapformerError(f"--set {text}: give {name}=True or {name}=False") from None
        except ValueError:
            raise LeapformerError(f"--set {text}: give a number, as in {name}={known[name].default}") from None
    return found


def with_options(point: Point, given: Sequence[str]) -> Point:
    """The point with those of the options, NAME=VALUE, that its pattern has."""
    known = {option.name for option in find(point.mechanism).options}
    own = [text for text in given if text.partition("=")[0] in known]
    return replace(point, options={**point.options, **read_options(point.mechanism, own)}) if own else point
