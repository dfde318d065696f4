"""The points of a sweep: each pattern with each value of its options in a grid.

The paper has two different grids, in section 5 and in appendix C.2; each point records its origin.
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
OURS = ("small", "fine")  # not in the union, which is the paper's
# D.2 for masked language models; section 5 and C.2 for translation
MLM_WINDOWS = (0, 1, 3, 7, 11, 25, 31, 41, 51, 75, 101, 125, 151, 175, 201, 251, 301, 351, 401, 451, 501, 512)
MT_WINDOWS = (0, 1, 3, 5, 7, 9, 11, 15, 19, 23, 27)

# blocks attended to, tokens of a block, centroids of version 2: section 6.1, and appendix F for blocks of one token
BLOCKS = {
    "union": ((2, 3, 4, 8, 16, 22), (1, 2, 4, 8, 16), (2, 4, 8, 12, 16, 20)),
    "small": ((2, 4), (1, 16), (4,)),
}
COUNTS = (2, 4, 6, 8, 10, 12, 16, 20)  # of buckets, random keys and random global tokens in the grid of section 5
# Values of the options of each pattern, by grid: a section of the paper, "released" code, or our own.
VALUES: dict[str, dict[str, tuple[dict[str, Any], ...]]] = {
    "sparsefinder-distance": {
        "section5": tuple({"sparsefinder_threshold": t / 2} for t in range(1, 11)),
        "c2": tuple({"sparsefinder_threshold": t / 2} for t in range(1, 6)),
        "small": tuple({"sparsefinder_threshold": t} for t in (0.5, 1.0, 2.0)),
        "fine": tuple({"sparsefinder_threshold": t / 4} for t in range(1, 21)),
    },
    "sparsefinder-kmeans": {
        "section5": tuple(
            {"sparsefinder_centroids": c, "sparsefinder_nearest": n} for n in (1, 2) for c in COUNTS if n < c
        ),
        "c2": tuple(
            {"sparsefinder_centroids": c, "sparsefinder_nearest": n}
            for n in (1, 2)
            for c in (2, 4, 6, 8, 10, 12)
            if n < c
        ),
        "small": tuple({"sparsefinder_centroids": c} for c in (2, 4, 8)),
    },
    "sparsefinder-quantize": {
        "section5": tuple({"sparsefinder_bins": b} for b in (1, 2, 3, 4, 5)),
        "c2": tuple({"sparsefinder_bins": b} for b in (1, 2, 3)),
        "released": tuple({"sparsefinder_bin_tokens": n} for n in (4, 8, 12, 16, 20)),
        "small": tuple({"sparsefinder_bins": b} for b in (2, 4)),
    },
    "entmax-window": {"section5": ({},), "c2": ({},), "small": ({},)},
    "entmax-longformer": {
        "section5": tuple({"longformer_globals": n} for n in COUNTS),
        "c2": tuple({"longformer_globals": n} for n in (4, 8, 12, 16, 20)),
        "small": tuple({"longformer_globals": n} for n in (4, 16)),
    },
    "entmax-bigbird": {
        "section5": tuple({"bigbird_random": n} for n in COUNTS),
        "c2": tuple({"bigbird_random": n} for n in COUNTS[:5]),
        "small": tuple({"bigbird_random": n} for n in (4, 16)),
    },
    "entmax-reformer": {
        "section5": tuple({"reformer_buckets": b} for b in COUNTS),
        "c2": tuple({"reformer_buckets": b} for b in (2, 4, 6, 8, 10, 12)),
        "released": tuple({"reformer_buckets": b} for b in (2, 4, 6, 8, 10, 14, 18, 22, 26, 30)),
        "small": tuple({"reformer_buckets": b} for b in (2, 4, 8)),
    },
    "entmax-routing": {
        "section5": tuple({"routing_centroids": c} for c in COUNTS),
        "c2": tuple({"routing_centroids": c} for c in (2, 4, 6, 8, 10)),
        "released": tuple({"routing_centroids": c} for c in (2, 4, 6, 8, 10, 12)),
        "small": tuple({"routing_centroids": c} for c in (2, 4, 8)),
    },
}


@dataclass(frozen=True)
class Point:
    """A pattern with options, and the grids that contain it; windows and global tokens are added by the sweep."""

    mechanism: str
    options: dict[str, Any]
    origins: tuple[str, ...] = field(default=(), compare=False)

    @property
    def seeded(self) -> bool:
        """Whether anything about it is random or fitted."""
        cls = find(self.mechanism)
        return issubclass(cls, Fitted) or SEED in cls.options

    @property
    def name(self) -> str:
        """The name in tables, e.g. `sparsefinder-distance threshold=1.0`."""
        values = (f"{name.partition('_')[2]}={value}" for name, value in self.options.items())
        return " ".join([self.mechanism, *values])

    @property
    def file_name(self) -> str:
        """`name` with unsafe characters replaced."""
        return re.sub(r"[^A-Za-z0-9.=-]+", "_", self.name)


def patterns() -> list[str]:
    """Return the names of all sparsity patterns with a grid."""
    return sorted(VALUES)


def points(grid: str, mechanisms: Sequence[str], block: str) -> list[Point]:
    """Return the points of a grid for the patterns that support the block; "union" also has those of the released code.

    Raises LeapformerError for an unknown grid, and for mechanisms that are no sparsity pattern.
    """
    if grid not in GRIDS:
        raise LeapformerError(f"--grid {grid}: choose from: {', '.join(GRIDS)}")
    points_of: dict[tuple[str, str], Point] = {}
    for name in mechanisms:
        cls = find(name)
        if not issubclass(cls, Pattern):
            raise LeapformerError(f"--mechanisms {name} is no sparsity pattern; choose from: {', '.join(patterns())}")
        if cls.capabilities.unsupported_reason(block) is not None:
            continue
        for origin, values in VALUES.get(name, {}).items():
            if origin != grid and (grid != "union" or origin in OURS):
                continue
            for options in values:
                key = name, repr(sorted(options.items()))
                before = points_of[key].origins if key in points_of else ()
                points_of[key] = Point(name, dict(options), (*before, origin))
    return list(points_of.values())


def block_points(grid: str, mechanisms: Sequence[str]) -> list[Point]:
    """Return the points of the experiment with blocks; "union" is the paper's grid.

    Raises LeapformerError for an unknown grid, and for mechanisms that do not attend to blocks.
    """
    if grid not in BLOCKS:
        raise LeapformerError(f"--grid {grid}: choose from: {', '.join(BLOCKS)}")
    attended, sizes, centroids = BLOCKS[grid]
    chosen = []
    for name in mechanisms:
        if not issubclass(find(name), Blocked):
            known = ", ".join(sorted(name for name, cls in MECHANISMS.items() if issubclass(cls, Blocked)))
            raise LeapformerError(f"--mechanisms {name} does not attend to blocks; choose from: {known}")
        clusters: tuple[dict[str, Any], ...] = ({},)
        if "centroids" in dict(build(name, 8, 1).named_buffers()):
            clusters = tuple({CENTROIDS.name: count} for count in centroids)
        chosen += [
            Point(name, {SIZE.name: size, ATTENDED.name: count, **options})
            for size in sizes
            for count in attended
            for options in clusters
        ]
    return chosen


def values_of(option: str) -> list[int]:
    """Return all values of an option in any grid, sorted."""
    grids = (options for grids in VALUES.values() for values in grids.values() for options in values)
    return sorted({options[option] for options in grids if option in options})


def windows_of(block: str) -> tuple[int, ...]:
    """Return the paper's windows for this block: longer ones for masked language models, none for cross-attention."""
    return {"encoder-self": MLM_WINDOWS, "decoder-cross": (0,)}.get(block, MT_WINDOWS)


def read_options(mechanism: str, given: Sequence[str]) -> dict[str, Any]:
    """Parse options NAME=VALUE of a pattern, each as the type of its default. Raises LeapformerError for others."""
    if not issubclass(find(mechanism), Pattern):
        raise LeapformerError(f"--mechanism {mechanism}: it is no sparsity pattern; `leapformer list` shows them")
    known = {option.name: option for option in find(mechanism).options}
    options: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in known:
            raise LeapformerError(f"--set {text}: {mechanism} has no option {name!r}; its options: {', '.join(known)}")
        try:
            default = known[name].default
            options[name] = {"True": True, "False": False}[value] if isinstance(default, bool) else type(default)(value)
        except KeyError:
            raise LeapformerError(f"--set {text}: give {name}=True or {name}=False") from None
        except ValueError:
            raise LeapformerError(f"--set {text}: give a number, as in {name}={known[name].default}") from None
    return options


def with_options(point: Point, given: Sequence[str]) -> Point:
    """Return the point with those of the options, NAME=VALUE, that its pattern has."""
    known = {option.name for option in find(point.mechanism).options}
    applicable = [text for text in given if text.partition("=")[0] in known]
    if not applicable:
        return point
    return replace(point, options={**point.options, **read_options(point.mechanism, applicable)})
