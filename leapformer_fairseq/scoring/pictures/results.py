"""Draws what commands have stored: benchmarks, and by the keys of their JSON all other results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ..figure import LEAST, Figure, Panel, grid
from ..names import plan_title
from . import latency, scores

Row = dict[str, Any]
ON_A_GPU = ("relu", "leap", "gated-leap", "cosformer", "abc-mlp", "luna")  # those that the picture of a GPU shows


def read_results(path: str | Path) -> dict[str, Any]:
    """Read results that can be drawn. Raises LeapformerError for another file."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LeapformerError(f"{path} cannot be read as JSON ({error}); give what `leapformer bench` wrote") from error
    return results if isinstance(results, dict) else {}


def figure_of(path: str | Path) -> Figure:
    """The figure of a file of results. Raises LeapformerError for one that cannot be drawn."""
    results = read_results(path)
    for keys, draw in STORED:
        if keys <= set(results):
            return draw(results)
    name = results.get("benchmark")
    if name is None and {"times", "steps", "memory"} <= set(results):
        name = "attention"  # early files of this benchmark lack the name
    if name not in DRAWN:
        raise LeapformerError(
            f"{path} holds no results of a benchmark that can be drawn ({', '.join(DRAWN)}); "
            "give what `leapformer bench` wrote"
        )
    section, draw = DRAWN[name]
    if not results.get(section):
        raise LeapformerError(f"{path} lacks the {section} of {name}; run the benchmark again")
    try:
        return draw(results)
    except KeyError as error:
        raise LeapformerError(f"{path} lacks {error} in results of {name}; run the benchmark again") from error


def draw_results(path: str | Path, out: str | Path, figure: Figure | None = None) -> str:
    """Draw a file of results, or its `figure`, as the picture `out`; return the line of Markdown that shows it.

    Raises LeapformerError for a file without results, with too few points, or if the picture cannot be written.
    """
    figure = figure or figure_of(path)
    if not figure.shows:
        raise LeapformerError(f"{path} has fewer than {LEAST} points of each line or fewer bars; measure more sizes")
    try:
        return figure.save(out)
    except OSError as error:
        raise LeapformerError(f"--out {out} cannot be written: {error.strerror}; choose another file") from error


def _attention(results: dict[str, Any]) -> Figure:
    """Speed relative to torch's attention by the length of the longer side: a panel per kind, a line per mechanism."""
    rows = [{**row, "length": max(row["queries"], row["keys"])} for row in results["times"] if row["form"] == "auto"]
    return _ratios("Attention: forward and backward pass", rows, "length of the longer side, tokens")


def _gpu(results: dict[str, Any]) -> Figure:
    """Speed relative to SDPA by length, of some mechanisms: a panel per precision and mask."""
    rows = [row for row in results["attention"] if row["mechanism"] in ON_A_GPU and row.get("ratio") is not None]
    rows = [{**row, **dict(zip(("kind", "length"), row["case"].rsplit(" ", 1), strict=True))} for row in rows]
    rows = [{**row, "length": int(row["length"].replace(",", ""))} for row in rows if row["kind"] != "wait-k"]
    return _ratios("Attention on a GPU: forward and backward pass", rows, "tokens per sequence", share="xy")


def _ratios(title: str, rows: list[Row], x: str, share: str = "") -> Figure:
    places = list(dict.fromkeys((row["device"], row["kind"]) for row in rows))
    places.sort(key=lambda place: _values(rows, "device").index(place[0]))
    figure = Figure(title, grid(len(places)), share)
    for device, kind in places:
        panel = figure.panel(f"{kind}, {_place(device)}", x, "times as fast as SDPA")
        _by_length(panel, _only(rows, device=device, kind=kind), "length", "ratio")
        panel.level(1, "SDPA")
    return figure


def _decode(results: dict[str, Any]) -> Figure:
    """Milliseconds per token by target length, a panel per number of rows, and the size of the state.

    Lines go through the shortest source of each target length; points for longer sources are hollow.
    """
    rows = [{**row, "state_mib": row["state_bytes"] / 2**20} for row in results["decoders"]]
    counts, devices = _values(rows, "rows"), _values(rows, "device")
    figure = Figure("Decoding: a token of a whole decoder", grid(len(devices) * (len(counts) + 1)))
    for device in devices:
        panels = [(count, "ms", f"{count} row{'s' * (count > 1)}", "ms per token") for count in counts]
        panels.append((counts[0], "state_mib", f"state, {panels[0][2]}", "MiB"))
        for count, value, title, unit in panels:
            here = _only(rows, device=device, rows=count)
            shortest = {n: min(row["source"] for row in here if row["target"] == n) for n in _values(here, "target")}
            others = [row for row in here if row["source"] != shortest[row["target"]]]
            more = " (hollow: longer source)" if others else ""
            panel = figure.panel(f"{title}, {_place(device)}", f"target tokens in the state{more}", unit)
            _by_length(panel, [row for row in here if row["source"] == shortest[row["target"]]], "target", value)
            for row in others:
                panel.line(plan_title(row["mechanism"]), [(row["target"], row[value])], hollow=True, label="")
    return figure


def _train(results: dict[str, Any]) -> Figure:
    """Tokens per second and peak memory of a training step: groups of bars by tokens per sample."""
    parts = [(results["times"], "tokens_per_second", "tokens per second")]
    parts.append((results["memory"], "peak_mib", "peak memory, MiB"))
    return _sections("Training step of a language model", "tokens per sample", parts, _grouped)


def _bounded(results: dict[str, Any]) -> Figure:
    """Milliseconds and peak memory by length: a line per system, including cumulative sums."""
    timed = _values(results["times"], "mechanism")
    times = [*results["times"], *(row for row in results["cumulative"] if row["mechanism"] not in timed)]
    parts = [(times, "ms", "milliseconds"), (results["memory"], "peak_mib", "peak MiB above the inputs")]
    title = "Causal training with a bounded memory: forward and backward pass"
    return _sections(title, "tokens", parts, _by_length)


def _sections(title: str, x: str, parts: list[tuple[list[Row], str, str]], draw: Callable[..., None]) -> Figure:
    """A panel per device and section of the results: its rows, the value and its unit."""
    parts = [part for part in parts if part[0]]  # memory cannot be measured on every system
    devices = _values(parts[0][0], "device")
    figure = Figure(title, grid(len(devices) * len(parts), height=3.0))
    for device in devices:
        for rows, value, unit in parts:
            draw(figure.panel(_place(device), x, unit), _only(rows, device=device), "length", value)
    return figure


def _model(results: dict[str, Any]) -> Figure:
    """Speed of decoder and encoder relative to fairseq by length, a line per plan; FLOPs as bars."""
    devices = _values(results["decoders"], "device")
    title = "Text to speech by attention plan (encoder / decoder / cross)"
    figure = Figure(title, [row for _ in devices for row in ((2, 2.9), (1, 2.6))])
    for device in devices:
        for section, x, name, unit in (
            ("decoders", "steps", "decoder", "decoder steps"), ("encoders", "source", "encoder", "phonemes"),
        ):  # fmt: skip
            panel = figure.panel(f"{name}, {_place(device)}", unit, "times as fast as fairseq")
            _by_length(panel, _only(results[section], device=device), x, "ratio", log="x")
        flops = figure.panel("GFLOP of a sentence", "decoder steps", "GFLOP")
        _grouped(flops, results["flops"], "steps", "gflop")
    return figure


def _targets(results: dict[str, Any]) -> Figure:
    """Milliseconds a token of exported models by the length of source and target: a panel per number of rows."""
    counts = _values(results["lengths"], "rows")
    figure = Figure("Whole targets: a token on average", grid(len(counts)))
    for count in counts:
        panel = figure.panel(f"{count} row{'s' * (count > 1)}", "tokens of source and target", "ms per token")
        _by_length(panel, _only(results["lengths"], rows=count), "target", "ms")
    return figure


def _translate(results: dict[str, Any]) -> Figure:
    """Sentences a second of every system: a panel for lines one at a time, and one for batches."""
    rows = results["translate"]
    figure = Figure("Trained models: from text to text", grid(len(_values(rows, "case"))))
    for case in _values(rows, "case"):
        bars = {row["mechanism"]: [row["a_second"]] for row in _only(rows, case=case)}
        figure.panel(case, "", "sentences a second").bars([""], bars)
    return figure


# name -> required section, function that draws the figure
DRAWN: dict[str, tuple[str, Callable[[dict[str, Any]], Figure]]] = {
    "attention": ("times", _attention),
    "decode": ("decoders", _decode),
    "train": ("times", _train),
    "bounded": ("times", _bounded),
    "model": ("decoders", _model),
    "gpu": ("attention", _gpu),
    "targets": ("lengths", _targets),
    "translate": ("translate", _translate),
}
# keys of other results, function that draws the figure
STORED: tuple[tuple[set[str], Callable[[dict[str, Any]], Figure]], ...] = (
    ({"systems"}, latency.comparison_figure),
    ({"checkpoints", "rows", "refused"}, lambda results: latency.curve_figure(results["rows"])),
    ({"expected", "rows", "runs"}, lambda results: scores.runs_figure(results["rows"], results["title"])),
    ({"source", "std", "rows"}, scores.tradeoff_figure),
    ({"study", "found"}, lambda results: scores.probes_figure(results["found"])),
    ({"swaps"}, lambda results: scores.order_figure(results["swaps"], {}, "distance to the teacher")),
    ({"students", "unit"}, scores.students_figure),
    ({"recommended", "rows", "metric"}, scores.ablation_figure),
)


def _place(device: str) -> str:
    """The precision of a GPU, or the device."""
    return device.partition(" ")[2] or ("float32" if device == "cuda" else device)


def _by_length(panel: Panel, rows: list[Row], x: str, y: str, log: str = "xy") -> None:
    """Draw a line per mechanism, with ticks at the measured lengths; if these are few, bars."""
    lengths = _values(rows, x)
    if len(lengths) < LEAST:
        _grouped(panel, rows, x, y)
        return
    for name in _values(rows, "mechanism"):
        panel.line(plan_title(name), sorted((row[x], row[y]) for row in rows if row["mechanism"] == name))
    panel.log("x", lengths)
    if "y" in log:
        panel.log("y")


def _grouped(panel: Panel, rows: list[Row], group: str, y: str) -> None:
    """Draw groups of bars by the values of column `group`, a bar per mechanism."""
    groups, at = _values(rows, group), {(row["mechanism"], row[group]): row[y] for row in rows}
    bars = {plan_title(name): [at.get((name, n)) for n in groups] for name in _values(rows, "mechanism")}
    panel.bars([f"{n:,}" for n in groups], bars)


def _values(rows: Iterable[Row], key: str) -> list[Any]:
    """The distinct values of a column, in the order of the rows."""
    return list(dict.fromkeys(row[key] for row in rows))


def _only(rows: Iterable[Row], /, **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]
