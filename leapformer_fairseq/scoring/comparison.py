"""Comparison of several systems: collects the scores below a folder, as a table, as data and as a plot.

`leapformer score --json` writes them to FOLDER/SYSTEM/k<K>/scores.json and FOLDER/SYSTEM/offline/scores.json; SYSTEM
may be several folders deep, e.g. leap/tst-COMMON. The options of a run are in the nearest file `options` above.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ..errors import LeapformerError
from ..files import read_json

# column of the table -> where the value is in a row
COLUMNS = {
    "BLEU": "BLEU",
    "chrF": "chrF",
    "AL ms": "AL",
    "LAAL ms": "LAAL",
    "AP": "AP",
    "DAL ms": "DAL",
    "ATD ms": "ATD",
    "YAAL ms": "YAAL",
    "AL_CA ms": "AL_CA",
    "compute s/s": "compute",
    "without pre-net": "without_prenet",
    "perplexity": "perplexity",
}

_FORMATS = {"BLEU": ".1f", "chrF": ".1f", "AP": ".2f", "compute": ".3f", "without_prenet": ".3f", "perplexity": ".2f"}


def collect(folder: str | Path) -> dict[str, Any]:
    """{"systems": {name: {"options", "rows"}}, "signatures"}; a row is one k, or offline, with its scores.

    Raises LeapformerError if nothing below the folder was scored, or scores are damaged.
    """
    folder = Path(folder)
    systems: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for path in sorted(folder.glob("*/**/scores.json"), key=_order):
        run = path.parent.parent
        scores = read_json(path, ("scores", "signatures", "compute", "n_instances"), "score this run again")
        system = systems.setdefault(str(run.relative_to(folder)), {"options": _options(run, folder), "rows": []})
        system["rows"].append(_row(path.parent.name, scores))
        signatures.update(scores["signatures"])
    if not systems:
        raise LeapformerError(f"{folder} holds no scores; give the --out folder of a finished quickstart or recipe")
    return {"systems": systems, "signatures": signatures}


def _order(path: Path) -> tuple[str, float]:
    """By system, then by k; offline comes last."""
    lagging = re.fullmatch(r"k(\d+)", path.parent.name)
    return str(path.parent.parent), float(lagging[1]) if lagging else float("inf")


def _options(run: Path, folder: Path) -> str:
    places = [place / "options" for place in (run, *run.parents) if place.is_relative_to(folder)]
    return next((place.read_text(encoding="utf-8").strip() for place in places if place.is_file()), "")


def _row(name: str, scores: dict[str, Any]) -> dict[str, Any]:
    compute = scores["compute"] or {}
    row = {"k": int(name[1:]) if re.fullmatch(r"k\d+", name) else name, "sentences": scores["n_instances"]}
    times = {"compute": compute.get("seconds_per_second"), "without_prenet": compute.get("without_prenet")}
    return row | scores["scores"] | times


def table(comparison: dict[str, Any], style: str = "simple") -> str:
    """One line per system and k; "github" is Markdown."""
    rows = [(name, row) for name, system in comparison["systems"].items() for row in system["rows"]]
    optional = ("YAAL", "without_prenet", "perplexity")  # most runs have none
    columns = {
        title: key for title, key in COLUMNS.items() if key not in optional or any(row.get(key) for _, row in rows)
    }
    lines = [[name, row["k"], row["sentences"], *(row.get(key) for key in columns.values())] for name, row in rows]
    formats = ("", "", "", *(_FORMATS.get(key, ".0f") for key in columns.values()))
    return tabulate(lines, headers=["attention", "k", "sentences", *columns], tablefmt=style, floatfmt=formats)


def draw(comparison: dict[str, Any], path: str | Path) -> None:
    """Plot BLEU against AL, plain and computation-aware, one colour per system; offline BLEU as a dotted line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, system) in enumerate(comparison["systems"].items()):
        colour = f"C{number}"
        rows = [row for row in system["rows"] if "AL" in row]
        for latency, style, label in (("AL", "o-", name), ("AL_CA", "s--", f"{name}, computation-aware")):
            points = [(row[latency], row["BLEU"]) for row in rows if latency in row]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label)
        for row in rows:
            axes.annotate(
                f"k={row['k']}", (row["AL"], row["BLEU"]), textcoords="offset points", xytext=(-4, 6), fontsize=8
            )
        for row in system["rows"]:
            if row["k"] == "offline":
                axes.axhline(row["BLEU"], linestyle=":", color=colour, label=f"{name}, offline beam 5")
    axes.set(xlabel="average lagging AL (ms)", ylabel="BLEU", title="Quality against latency")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    FigureCanvasAgg(figure).print_png(str(path))
