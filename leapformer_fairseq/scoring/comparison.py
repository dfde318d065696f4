"""Several systems side by side: collects the runs under a folder, as a table, as data and as a picture.

Layout, as scripts/quickstart.sh leaves it: FOLDER/SYSTEM/options, FOLDER/SYSTEM/k<K>/ (SimulEval output) and
FOLDER/SYSTEM/offline/generate-*.txt with its references in FOLDER/corpus/test.target.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ..errors import LeapformerError
from .generation import score_generation
from .report import score_run

# column of the table -> where the value is in a row
COLUMNS = {
    "BLEU": "BLEU",
    "chrF": "chrF",
    "AL ms": "AL",
    "LAAL ms": "LAAL",
    "AP": "AP",
    "DAL ms": "DAL",
    "ATD ms": "ATD",
    "AL_CA ms": "AL_CA",
    "compute s/s": "compute",
}


def collect(folder: str | Path) -> dict[str, Any]:
    """{"systems": {name: {"options", "rows"}}, "signatures"}; a row is one k or offline with its scores."""
    folder = Path(folder)
    systems: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for options in sorted(folder.glob("*/options")):
        run = options.parent
        rows = [_simultaneous_row(path, signatures) for path in sorted(run.glob("k*/instances.log"), key=_lagging)]
        rows += [
            _offline_row(path, folder / "corpus/test.target", signatures) for path in run.glob("offline/generate-*.txt")
        ]
        if rows:
            systems[run.name] = {"options": options.read_text(encoding="utf-8").strip(), "rows": rows}
    if not systems:
        raise LeapformerError(f"{folder} holds no finished run; give the --out folder of scripts/quickstart.sh")
    return {"systems": systems, "signatures": signatures}


def _lagging(log: Path) -> int:
    digits = re.sub(r"\D", "", log.parent.name)
    return int(digits or 0)


def _simultaneous_row(log: Path, signatures: dict[str, str]) -> dict[str, Any]:
    scores = score_run(log.parent)
    signatures.update(scores["signatures"])
    compute = scores["compute"] or {}
    row = {"k": _lagging(log), "sentences": scores["n_instances"], **scores["scores"]}
    return row | {"compute": compute.get("seconds_per_second")}


def _offline_row(path: Path, references: Path, signatures: dict[str, str]) -> dict[str, Any]:
    scores = score_generation(path, references)
    signatures.update(scores["signatures"])
    return {"k": "offline", "sentences": scores["n_instances"], **scores["scores"]}


def table(comparison: dict[str, Any], style: str = "simple") -> str:
    """One line per system and k; "github" is Markdown."""
    lines = [
        [name, row["k"], row["sentences"], *(row.get(key) for key in COLUMNS.values())]
        for name, system in comparison["systems"].items()
        for row in system["rows"]
    ]
    formats = ("", "", "", ".1f", ".1f", ".0f", ".0f", ".2f", ".0f", ".0f", ".0f", ".3f")
    return tabulate(lines, headers=["attention", "k", "sentences", *COLUMNS], tablefmt=style, floatfmt=formats)


def draw(comparison: dict[str, Any], path: str | Path) -> None:
    """BLEU against AL, plain and computation-aware, one colour per system; offline BLEU as a dotted line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, system) in enumerate(comparison["systems"].items()):
        colour = f"C{number}"
        rows = [row for row in system["rows"] if row["k"] != "offline" and "AL" in row]
        for latency, style, label in (("AL", "o-", name), ("AL_CA", "s--", f"{name}, computation-aware")):
            axes.plot([row[latency] for row in rows], [row["BLEU"] for row in rows], style, color=colour, label=label)
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
