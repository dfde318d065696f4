"""The figure of every report: lines, bars, points and heat maps in one style, with labels that do not overlap.

A figure is as wide as a README page, on white, in colours that colour-blind people can tell apart (Okabe and Ito's).
Names stand beside the lines in their colour, moved up or down until they are free; only where there are many, a legend
stands below. What has fewer than three points is not drawn, since it shows nothing that a sentence would not say.
Figures need matplotlib, which is imported when one is made.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, lcm, pi, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from ..support.errors import LeapformerError
from ..support.files import write_with

WIDTH = 8.3  # inches: 800 pixels of a page
LEAST = 3  # points that show something
LABELLED = 8  # lines with a label each; more have a legend
MOST_LABELLED = 6  # panels whose lines have labels
WRAPPED = 26  # characters in a line of a label
SUFFIXES = (".svg", ".png")
TITLE, TEXT, SMALL = 11, 9, 8  # font sizes in points
GREY = "0.35"
# fmt: off
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#999933", "#888888",
)
# fmt: on
MARKERS = "osD^vP*X<>"
_PLAIN: dict[str, Any] = {"parse_math": False}  # a $ in a name does not start a formula
_LINE = {"markersize": 4.5, "linewidth": 1.6}
_NOT_DRAWN = f"No picture: there are fewer than {LEAST} points."

Point = tuple[float, float]


def grid(panels: int, columns: int = 2, height: float = 2.7) -> list[tuple[int, float]]:
    """Rows for this many panels, at most `columns` in each: (panels, height in inches)."""
    columns = min(panels, columns)
    return [(columns, height)] * ceil(panels / columns) if panels else []


class Figure:
    """A picture of panels, filled row by row; `rows` has the number of panels and the height in inches of each row.

    Axes are shared by all panels where `share` says so ("x", "y" or "xy").
    """

    def __init__(
        self, title: str, rows: Sequence[tuple[int, float]] = ((1, 3.8),), share: str = "", width: float = WIDTH
    ) -> None:
        from matplotlib.figure import Figure as Drawing

        self.title, self.share = title, share
        self.places = [(line, height, count) for line, (count, height) in enumerate(rows) for _ in range(count)]
        self.panels: list[Panel] = []
        self.colours: dict[str, str] = {}
        self.drawing = Drawing(figsize=(width, 4), layout="constrained")
        heading = wrapped(title, int(10 * width))
        self.drawing.suptitle(heading, x=0.012, ha="left", fontsize=TITLE, fontweight="bold", **_PLAIN)

    def panel(self, title: str = "", x: str = "", y: str = "") -> Panel:
        """The next panel; `x` and `y` name its axes, with units."""
        first = self.panels[0].axes if self.panels else None
        axes = self.drawing.add_subplot(**{f"share{side}": first for side in self.share})
        axes.set_title(title, loc="left", fontsize=TEXT, **_PLAIN)
        axes.set_xlabel(x, fontsize=TEXT, **_PLAIN)
        axes.set_ylabel(y, fontsize=TEXT, **_PLAIN)
        axes.tick_params(labelsize=SMALL, colors=GREY, labelcolor="black")
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(GREY)
        self.panels.append(Panel(self, axes))
        return self.panels[-1]

    def _arrange(self) -> None:
        """Give the panels that show something their places, row by row, and remove the others."""
        rows: dict[int, list[Panel]] = {}
        for (line, _, _), panel in zip(self.places, self.panels, strict=False):
            if panel.points >= LEAST:
                rows.setdefault(line, []).append(panel)
            else:
                panel.axes.remove()
        self.panels = [panel for row in rows.values() for panel in row]
        by_line = {line: (height, count) for line, height, count in self.places}
        heights = [by_line[line][0] for line in rows]
        columns = lcm(*(by_line[line][1] for line in rows))
        self.drawing.set_figheight(0.5 + sum(heights))
        cells = self.drawing.add_gridspec(len(rows), columns, height_ratios=heights)
        for at, (line, row) in enumerate(rows.items()):
            width = columns // by_line[line][1]
            for i, panel in enumerate(row):
                panel.axes.set_subplotspec(cells[at, width * i : width * (i + 1)])
                panel.wrapped = WRAPPED if by_line[line][1] == 1 else WRAPPED - 8

    def scale(self, image: Any, label: str = "", **style: Any) -> None:
        """Explain the colours of a map beside all panels."""
        bar = self.drawing.colorbar(image, ax=[panel.axes for panel in self.panels], shrink=0.8, **style)
        bar.set_label(label, fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL)

    def colour(self, name: str) -> str:
        """The colour of a name, the same in all panels."""
        return self.colours.setdefault(name, COLOURS[len(self.colours) % len(COLOURS)])

    def marker(self, name: str) -> str:
        """The marker of a name, another one when the colours repeat."""
        self.colour(name)
        return MARKERS[list(self.colours).index(name) // len(COLOURS) % len(MARKERS)]

    @property
    def shows(self) -> bool:
        """Whether a panel has enough points to show something."""
        return any(panel.points >= LEAST for panel in self.panels)

    def finish(self) -> Any:
        """Place all labels, and return matplotlib's figure."""
        self._arrange()
        names = {label.name for panel in self.panels for label in panel.labels}
        if len(names) > LABELLED or len(self.panels) > MOST_LABELLED:
            self._legend()
        if self.share == "xy" and len(self.panels) == len(self.places):
            for panel in self.panels:
                panel.axes.label_outer()
        for _ in range(2):  # the size of the panels depends on the labels, and the places of labels on that
            self.drawing.draw_without_rendering()
            for panel in self.panels:
                panel.place()
        return self.drawing

    def _legend(self) -> None:
        handles = {label.name: label.handle for panel in self.panels for label in panel.labels}
        for panel in self.panels:
            panel.labels.clear()
        widest = max(map(len, handles))
        columns = max(1, min(len(handles), 100 // (widest + 6)))
        self.drawing.legend(
            handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=SMALL, frameon=False
        )

    def save(self, path: str | Path, alt: str = "") -> str:
        """Write an SVG or PNG, as the suffix says, and return the line of Markdown that shows it.

        If there is nothing to see, a picture of an earlier run is deleted and the line says so. Raises LeapformerError
        for another suffix, or if the file cannot be written.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise LeapformerError(f"{path}: pictures are SVG or PNG files; end its name with {' or '.join(SUFFIXES)}")
        if not self.shows:
            path.unlink(missing_ok=True)
            return _NOT_DRAWN
        from matplotlib import rc_context

        drawing, kind = self.finish(), path.suffix[1:]
        # The same results give the same bytes; text stays text, which can be searched and needs no room.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "leapformer_fairseq"}):
            about = {"Date": None} if kind == "svg" else None
            write_with(path, lambda partial: drawing.savefig(partial, format=kind, dpi=150, metadata=about))
        return f"![{alt or self.title}]({path.name})"


def wrapped(text: str, width: int = WRAPPED) -> str:
    """Break text into lines of at most `width` characters."""
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, width))


@dataclass
class Label:
    """The name of a line or bars, to be written beside the panel at the height of the last point in view."""

    name: str
    points: Sequence[Point]
    colour: str
    handle: Any
    text: Any = None

    def height(self, low: float, high: float) -> float:
        ys = [y for _, y in sorted(self.points, reverse=True)]
        return next((y for y in ys if min(low, high) <= y <= max(low, high)), ys[0])


class Panel:
    """Axes of a figure and what is drawn on them. `axes` is matplotlib's, for what only one picture has.

    `points` counts the points, bars or cells.
    """

    def __init__(self, figure: Figure, axes: Any) -> None:
        self.figure, self.axes = figure, axes
        self.points, self.wrapped = 0, WRAPPED
        self.labels: list[Label] = []
        self.tags: list[tuple[Any, float]] = []  # text, radius of its point

    # ------------------------------------------------------------------------------------------------- what is drawn
    def line(
        self,
        name: str,
        points: Iterable[Point],
        *,
        reach: Sequence[tuple[float, float]] = (),
        across: Sequence[tuple[float, float]] = (),
        colour: str | None = None,
        marker: str | None = None,
        hollow: bool = False,
        label: str | None = None,
        **style: Any,
    ) -> Any:
        """Draw a line through points, or only the points if there are fewer than three.

        reach:  the least and greatest value of each point along the y axis, as a bar.
        across: the same along the x axis.
        hollow: draw dashes and empty markers, for a variant of another line.
        label:  written beside the end in place of the name; "" writes nothing.
        """
        xs, ys = (list(values) for values in zip(*points, strict=True)) if (points := list(points)) else ([], [])
        colour, marker = colour or self.figure.colour(name), self.figure.marker(name) if marker is None else marker
        dash = ("--" if hollow else "-") if len(xs) >= LEAST else "none"
        look = {"color": colour, "marker": marker, "linestyle": dash, "label": name, **_LINE}
        look |= {"markerfacecolor": "white"} if hollow else {}
        errors: dict[str, Any] = {}
        for axis, centres, bars in ("x", xs, across), ("y", ys, reach):
            if bars:
                ends = [[c - low, high - c] for c, (low, high) in zip(centres, bars, strict=True)]
                errors[f"{axis}err"] = list(zip(*ends, strict=True))
        bar = {"capsize": 2.5, "elinewidth": 1}
        drawn = self.axes.errorbar(xs, ys, **errors, **bar, **{**look, **style}) if errors else None
        drawn = drawn or self.axes.plot(xs, ys, **{**look, **style})[0]
        self.points += len(xs)
        if xs and label != "":
            self.labels.append(Label(label or name, list(zip(xs, ys, strict=True)), colour, drawn))
        return drawn

    def area(self, name: str, xs: Any, least: Any, greatest: Any) -> None:
        """Shade the range around a line."""
        self.axes.fill_between(xs, least, greatest, color=self.figure.colour(name), alpha=0.18, linewidth=0)

    def level(self, value: float, name: str = "", colour: str = GREY, label: bool = True) -> None:
        """Draw a dotted horizontal line, such as a baseline."""
        drawn = self.axes.axhline(value, color=colour, linewidth=1.1, linestyle=":", label=name or None)
        if name and label:
            self.labels.append(Label(name, [(0, value)], colour, drawn))

    def bars(self, groups: Sequence[str], values: Mapping[str, Sequence[float | None]], stacked: bool = False) -> None:
        """Draw a bar for each name in each group, side by side or, as shares of a whole, upon each other."""
        width = 0.8 / (1 if stacked else max(1, len(values)))
        below = [0.0] * len(groups)
        for i, (name, heights) in enumerate(values.items()):
            places = [j if stacked else j - 0.4 + width * (i + 0.5) for j, y in enumerate(heights) if y is not None]
            known = [y for y in heights if y is not None]
            base = below if stacked else None
            # The second ten of many bars are hatched.
            look = {"color": self.figure.colour(name), "hatch": "//" * (i // len(COLOURS)), "edgecolor": "white"}
            drawn = self.axes.bar(places, known, width, bottom=base, label=name, linewidth=0.4, **look)
            self.points += len(known)
            if known:
                height = below[-1] + known[-1] / 2 if stacked else known[-1]
                self.labels.append(Label(name, [(0, height)], self.figure.colour(name), drawn))
            below = [b + (y or 0.0) for b, y in zip(below, heights, strict=True)] if stacked else below
        self.axes.set_xticks(range(len(groups)), groups, **_PLAIN)
        self.axes.grid(False, axis="x")

    def rows(self, names: Sequence[str]) -> None:
        """Name the rows of a panel whose y axis counts them, from the top down."""
        self.axes.set_yticks(range(len(names)), names, **_PLAIN)
        self.axes.set_ylim(len(names) - 0.4, -0.6)
        self.axes.grid(False, axis="y")

    def steps(self, name: str, heights: Any, edges: Any) -> None:
        """Draw a histogram."""
        colour = self.figure.colour(name)
        drawn = self.axes.stairs(heights, edges, fill=True, alpha=0.5, color=colour, label=name)
        self.points += len(heights)
        self.labels.append(Label(name, [(0, heights[-1])], colour, drawn))

    def heat(self, matrix: Any, scale: tuple[float, float], colours: Any = "viridis", **style: Any) -> Any:
        """Draw a matrix as a map of colours, and return the image for `Figure.scale`."""
        self.axes.grid(False)
        self.points += int(matrix.size)
        return self.axes.imshow(matrix, colours, aspect="auto", vmin=scale[0], vmax=scale[1], **style)

    def point(self, name: str, x: float, y: float, area: float = 40.0, **style: Any) -> None:
        """Draw a named circle of an area in square points."""
        look = {"color": self.figure.colour(name), "alpha": 0.65, "linewidth": 0, **style}
        self.axes.scatter([x], [y], s=[area], **look)
        self.points += 1
        self.tag(name, x, y, "black", sqrt(area / pi))

    def tag(self, text: str, x: float, y: float, colour: str = GREY, radius: float = 3.0) -> None:
        """Write text beside a point of a radius in points, where it is free."""
        place = {"textcoords": "offset points", "xytext": (0, 0), "ha": "center", "va": "center"}
        drawn = self.axes.annotate(text, (x, y), fontsize=SMALL, color=colour, annotation_clip=False, **place, **_PLAIN)
        drawn.set_in_layout(False)  # it is placed when the panels have their size
        self.tags.append((drawn, radius))

    def log(self, axis: str, ticks: Iterable[float] = ()) -> None:
        """Make an axis logarithmic, with ticks at 1, 2 and 5 of each power of ten, or at some of the given numbers."""
        from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

        side = {"x": self.axes.xaxis, "y": self.axes.yaxis}[axis]
        (self.axes.set_xscale if axis == "x" else self.axes.set_yscale)("log")
        ticks = sorted(set(ticks), reverse=True)
        if ticks:
            kept, apart = ticks[:1], (ticks[0] / ticks[-1]) ** (1 / 6)
            for tick in ticks[1:]:
                if kept[-1] / tick >= apart:  # else their labels would touch
                    kept.append(tick)
            side.set_ticks(kept, [f"{tick:,}" for tick in kept])
            side.set_minor_locator(NullLocator())
        else:
            side.set_major_locator(LogLocator(subs=(1, 2, 5)))
            side.set_major_formatter("{x:,g}")
        side.set_minor_formatter(NullFormatter())

    # -------------------------------------------------------------------------------------------------------- labels
    def place(self) -> None:
        """Write the labels and tags where they are free; the figure must have been laid out."""
        for label in self.labels:
            if label.text is None:
                label.text = self.axes.text(
                    1.02, 0.5, wrapped(label.name, self.wrapped), color=label.colour, fontsize=SMALL, va="center",
                    transform=self.axes.transAxes, **_PLAIN,
                )  # fmt: skip
        frame = self.axes.get_window_extent()
        wanted = []
        for label in self.labels:
            end = self.axes.transData.transform((self.axes.get_xlim()[0], label.height(*self.axes.get_ylim())))[1]
            wanted.append((min(max(end, frame.y0), frame.y1), label.text.get_window_extent().height + 2))
        for label, centre in zip(self.labels, spread_out(wanted, frame.y0, frame.y1), strict=True):
            label.text.set_y((centre - frame.y0) / frame.height)
        self._place_tags()

    def _place_tags(self) -> None:
        """Move each tag from its point until it covers no text, few lines, and lies within the panel."""
        import numpy as np

        taken = [label.text.get_window_extent().get_points() for label in self.labels]
        inside, pixels, marks = self.axes.get_window_extent(), self.figure.drawing.dpi / 72, self._marks()
        for text, radius in self.tags:
            text.set_position((0, 0))
            box = text.get_window_extent()
            up, aside = box.height / pixels / 2 + radius + 1, box.width / pixels / 2 + radius + 2
            away = [(x, y * (up + 3 * step)) for step in range(40) for y in (1, -1) for x in (0, aside, -aside)]
            shifts = np.array([*away, (aside, 0), (-aside, 0)])
            low, high = (corner + shifts * pixels for corner in box.get_points())
            over = [((low < top) & (high > bottom)).all(-1) for bottom, top in taken]
            out = ((low < inside.p0 - (0, 4 * pixels)) | (high > inside.p1 + (0, 4 * pixels))).any(-1)
            near = (marks > low[:, None] - 1.5 * pixels) & (marks < high[:, None] + 1.5 * pixels)
            cost = 1e6 * np.any(over, axis=0) + 1e3 * out + 6 * near.all(-1).sum(-1) + abs(shifts) @ (0.25, 1)
            best = int(cost.argmin())
            text.set_position(shifts[best])
            taken.append(np.array([low[best], high[best]]))

    def _marks(self) -> Any:
        """Places on the lines and bars and at the points of the panel, in pixels, (N, 2)."""
        import numpy as np
        from matplotlib.collections import LineCollection

        places: list[Any] = []
        for points in self.axes.collections:
            bars = points.get_segments() if isinstance(points, LineCollection) else []
            places += [np.linspace(bar[0], bar[-1], 24) for bar in bars] if bars else [points.get_offsets()]
        for line in self.axes.get_lines():
            if line.get_transform() == self.axes.transData:  # not across the panel
                path = line.get_path()
                places.append((path if line.get_linestyle() == "None" else path.interpolated(24)).vertices)
        return self.axes.transData.transform(np.concatenate([np.empty((0, 2)), *places]))


def spread_out(wanted: Sequence[tuple[float, float]], least: float, most: float) -> list[float]:
    """Move labels, given as (centre, height), so that they do not overlap; return the new centres.

    Labels that touch are stacked, and the stack is centred on what its members want, within `least` and `most` if it
    fits.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i][0])
    heights = [wanted[i][1] for i in order]
    # The distance of each label above the lowest one, if all touch.
    above = list(accumulate((sum(pair) / 2 for pair in pairwise(heights)), initial=0.0)) if wanted else []
    stacks: list[list[float]] = []  # where each member of a stack wants the lowest label of all
    for i, distance in zip(order, above, strict=True):
        stacks.append([wanted[i][0] - distance])
        while len(stacks) > 1 and fmean(stacks[-2]) > fmean(stacks[-1]):
            top = stacks.pop()
            stacks[-1] += top
    bases = [fmean(stack) for stack in stacks for _ in stack]
    low, high = (least + heights[0] / 2, most - heights[-1] / 2 - above[-1]) if wanted else (0.0, 0.0)
    centres = [max(low, min(high, base)) + distance for base, distance in zip(bases, above, strict=True)]
    return [centre for _, centre in sorted(zip(order, centres, strict=True))]
