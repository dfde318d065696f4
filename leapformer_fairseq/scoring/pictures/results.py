"""Plots benchmark results from their JSON files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ..names import MECHANISMS
from .comparison import COLOURS, LEAST, spread
from .figures import save

Row = dict[str, Any]
PANEL = (4.2, 3.2)  # inches
MARKERS = "osD^vP*X"
ON_A_GPU = ("relu", "leap", "gated-leap", "cosformer", "abc-mlp", "luna")  # those that the picture of a GPU shows
LABEL = 0.065  # height of a line's label, over that of a panel


def read_results(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Read the name of a benchmark and its results. Raises LeapformerError for a file without results."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LeapformerError(f"{path} cannot be read as JSON ({error}); give what `leapformer bench` wrote") from error
    name = results.get("benchmark") if isinstance(results, dict) else None
    if name is None and isinstance(results, dict) and {"times", "steps", "memory"} <= set(results):
        name = "attention"  # early files of this benchmark lack the name
    if name not in DRAWN:
        raise LeapformerError(
            f"{path} holds no results of a benchmark that can be drawn ({', '.join(DRAWN)}); "
            "give what `leapformer bench` wrote"
        )
    return name, results


def draw_results(path: str | Path, out: str | Path) -> None:
    """Draw the results in the JSON file `path` as the PNG `out`. Raises LeapformerError for a file without results."""
    name, results = read_results(path)
    section, draw = DRAWN[name]
    if not results.get(section):
        raise LeapformerError(f"{path} lacks the {section} of {name}; run the benchmark again")
    try:
        figure = draw(results)
    except KeyError as error:
        raise LeapformerError(f"{path} lacks {error} in results of {name}; run the benchmark again") from error
    try:
        save(figure, out)
    except OSError as error:
        raise LeapformerError(f"--out {out} cannot be written: {error.strerror}; choose another file") from error


def _attention(results: dict[str, Any]) -> Any:
    """Speed relative to torch's attention by the length of the longer side: a panel per kind, a line per mechanism."""
    rows = [{**row, "length": max(row["queries"], row["keys"])} for row in results["times"] if row["form"] == "auto"]
    kinds, devices, styles = _values(rows, "kind"), _values(rows, "device"), _styles(rows)
    figure, grid = _grid(len(devices), len(kinds), "Attention: forward and backward pass")
    for device, line in zip(devices, grid, strict=True):
        for kind, axes in zip(kinds, line, strict=True):
            here = _only(rows, device=device, kind=kind)
            _lines(axes, here, "length", "ratio", styles)
            axes.axhline(1, color="0.4", linewidth=1, linestyle=":")
            axes.set(title=f"{kind}, {device}", xlabel="length N of the longer side")
        line[0].set_ylabel("times as fast as SDPA")
    return _with_legend(figure)


def _decode(results: dict[str, Any]) -> Any:
    """Milliseconds per token by target length, a panel per number of rows, and the size of the state.

    Lines go through the shortest source of each target length; points for longer sources are hollow.
    """
    rows = results["decoders"]
    counts, devices, styles = _values(rows, "rows"), _values(rows, "device"), _styles(rows)
    figure, grid = _grid(len(devices), len(counts) + 1, "Decoding: a token of a whole decoder")
    for device, line in zip(devices, grid, strict=True):
        panels = [(count, "ms", f"{count} row{'s' * (count > 1)}") for count in counts]
        panels.append((counts[0], "state_bytes", f"state, {panels[0][2]}"))
        for axes, (count, value, title) in zip(line, panels, strict=True):
            here = _only(rows, device=device, rows=count)
            shortest = {n: min(row["source"] for row in here if row["target"] == n) for n in _values(here, "target")}
            _lines(axes, [row for row in here if row["source"] == shortest[row["target"]]], "target", value, styles)
            others = [row for row in here if row["source"] != shortest[row["target"]]]
            _points(axes, others, "target", value, styles)
            more = " (hollow: longer source)" if others else ""
            axes.set(title=f"{title}, {device}", xlabel=f"target tokens in the state{more}")
            axes.set_ylabel("bytes" if value == "state_bytes" else "ms per token")
    return _with_legend(figure)


def _train(results: dict[str, Any]) -> Any:
    """Tokens per second and peak memory of a training step: groups of bars by tokens per sample."""
    panels = [
        (results[section], value, title)
        for section, value, title in (
            ("times", "tokens_per_second", "tokens per second"),
            ("memory", "peak_mib", "peak memory (MiB)"),
        )
        if results[section]  # memory cannot be measured on every system
    ]
    devices, styles = _values(results["times"], "device"), _styles(results["times"])
    figure, grid = _grid(len(devices), len(panels), "Training step of a language model")
    for device, line in zip(devices, grid, strict=True):
        for axes, (rows, value, title) in zip(line, panels, strict=True):
            here = _only(rows, device=device)
            _bars(axes, here, "length", value, styles)
            axes.set(title=f"{title}, {device}", xlabel="tokens per sample")
    return _with_legend(figure)


def _bounded(results: dict[str, Any]) -> Any:
    """Milliseconds and peak memory by length: a line per system, including cumulative sums."""
    timed = _values(results["times"], "mechanism")
    times = [*results["times"], *(row for row in results["cumulative"] if row["mechanism"] not in timed)]
    panels = [(times, "ms", "milliseconds"), (results["memory"], "peak_mib", "peak MiB above the inputs")]
    panels = [panel for panel in panels if panel[0]]
    devices, styles = _values(times, "device"), _styles(times)
    figure, grid = _grid(len(devices), len(panels), "Causal training with a bounded memory: forward and backward pass")
    for device, line in zip(devices, grid, strict=True):
        for axes, (rows, value, title) in zip(line, panels, strict=True):
            _lines(axes, _only(rows, device=device), "length", value, styles)
            axes.set(title=f"{title}, {device}", xlabel="tokens")
    return _with_legend(figure)


def _model(results: dict[str, Any]) -> Any:
    """Speed of decoder and encoder relative to fairseq by length, a line per plan; FLOPs as bars."""
    rows = results["decoders"]
    devices, styles = _values(rows, "device"), _styles(rows)
    figure, grid = _grid(len(devices), 3, "Text to speech by attention plan (encoder/decoder/cross)")
    for device, (decoder, encoder, flops) in zip(devices, grid, strict=True):
        for axes, section, x, title, label in (
            (decoder, "decoders", "steps", "decoder", "decoder steps"),
            (encoder, "encoders", "source", "encoder", "phonemes"),
        ):
            _lines(axes, _only(results[section], device=device), x, "ratio", styles)
            axes.set(title=f"{title}, {device}", xlabel=label, yscale="linear")
        decoder.set_ylabel("times as fast as fairseq")
        _bars(flops, results["flops"], "steps", "gflop", styles)
        flops.set(title="GFLOP of a sentence", xlabel="decoder steps")
    return _with_legend(figure)


def _gpu(results: dict[str, Any]) -> Any:
    """Speed relative to SDPA by length: a panel per precision and mask, a labelled line per mechanism.

    Raises LeapformerError for fewer than `LEAST` lengths.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    rows = [row for row in results["attention"] if row["mechanism"] in ON_A_GPU and row.get("ratio") is not None]
    rows = [{**row, **dict(zip(("kind", "size"), row["case"].rsplit(" ", 1), strict=True))} for row in rows]
    rows = [{**row, "length": int(row["size"].replace(",", ""))} for row in rows if row["kind"] != "wait-k"]
    if len(_values(rows, "length")) < LEAST:
        raise LeapformerError(f"the results have fewer than {LEAST} lengths; run the benchmark without --fast")
    kinds, devices = _values(rows, "kind"), _values(rows, "device")
    styles = {name: (colour, "o") for name, colour in zip(ON_A_GPU, COLOURS, strict=False)}
    figure, grid = _grid(len(devices), len(kinds), "Attention on a GPU: forward and backward pass")
    figure.set_figwidth(1.25 * figure.get_figwidth())  # for labels
    for device, line in zip(devices, grid, strict=True):
        for kind, axes in zip(kinds, line, strict=True):
            here = _only(rows, device=device, kind=kind)
            axes.set_visible(bool(here))  # there may have been no time for all
            _lines(axes, here, "length", "ratio", styles)
            axes.axhline(1, color="0.4", linewidth=1, linestyle=":")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set(title=f"{kind}, {device.partition(' ')[2] or 'float32'}", xlabel="tokens per sequence")
        lows, highs = zip(*(axes.get_ylim() for axes in line), strict=True)
        for axes in line:
            axes.set_ylim(min(lows), max(highs))
            _label_ends(axes)
        line[0].set_ylabel("times as fast as SDPA")
    return figure


def _label_ends(axes: Any) -> None:
    """Write the mechanism's name, and SDPA at 1, beside the axes, each as close to its line's end as others allow."""
    ends = {line.get_label(): (line.get_ydata()[-1], line.get_color()) for line in axes.get_lines()[:-1]}
    labels = [("SDPA", 1.0, "0.4"), *((MECHANISMS[name], *end) for name, end in ends.items())]
    to_panel = axes.transScale + axes.transLimits
    heights = [to_panel.transform((axes.get_xlim()[1], value))[1] for _, value, _ in labels]
    for (name, _, colour), height in zip(labels, spread([(at, LABEL) for at in heights], 0, 1), strict=True):
        axes.text(1.02, height, name, color=colour, fontsize=8, va="center", transform=axes.transAxes)


# name -> required section, function that draws the figure
DRAWN: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "attention": ("times", _attention),
    "decode": ("decoders", _decode),
    "train": ("times", _train),
    "bounded": ("times", _bounded),
    "model": ("decoders", _model),
    "gpu": ("attention", _gpu),
}


def _grid(lines: int, columns: int, title: str) -> tuple[Any, Any]:
    """A figure and its panels by line and column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL[0] * columns, 0.4 + PANEL[1] * lines), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    return figure, grid


def _with_legend(figure: Any) -> Any:
    """Add a legend below the panels, and return the figure."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named, loc="outside lower center", ncols=len(named), fontsize=8)
    return figure


def _styles(rows: Iterable[Row]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each mechanism, the same in all panels."""
    return {name: (f"C{i % 10}", MARKERS[i % len(MARKERS)]) for i, name in enumerate(_values(rows, "mechanism"))}


def _lines(axes: Any, rows: list[Row], x: str, y: str, styles: dict[str, tuple[str, str]]) -> None:
    """Draw a line per mechanism on logarithmic axes, with ticks at the measured lengths."""
    from matplotlib.ticker import LogFormatter

    for name, (colour, marker) in styles.items():
        points = sorted((row[x], row[y]) for row in rows if row["mechanism"] == name)
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted(_values(rows, x)), [f"{length:,}" for length in sorted(_values(rows, x))], fontsize=7)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())  # labels between powers of ten if the range is small


def _bars(axes: Any, rows: list[Row], group: str, y: str, styles: dict[str, tuple[str, str]]) -> None:
    """Draw groups of bars by the values of column `group`, a bar per mechanism."""
    groups, names = _values(rows, group), _values(rows, "mechanism")
    for row in rows:
        offset = (names.index(row["mechanism"]) + 0.5) / len(names) - 0.5
        colour, _ = styles[row["mechanism"]]
        place, label = groups.index(row[group]) + 0.8 * offset, row["mechanism"]
        axes.bar(place, row[y], 0.8 / len(names), color=colour, label=label)
    axes.set_xticks(range(len(groups)), [f"{number:,}" for number in groups])


def _points(axes: Any, rows: list[Row], x: str, y: str, styles: dict[str, tuple[str, str]]) -> None:
    for row in rows:
        colour, marker = styles[row["mechanism"]]
        axes.plot(row[x], row[y], marker, color=colour, markerfacecolor="none", markersize=4)


def _values(rows: Iterable[Row], key: str) -> list[Any]:
    """The distinct values of a column, in the order of the rows."""
    return list(dict.fromkeys(row[key] for row in rows))


def _only(rows: Iterable[Row], /, **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]
