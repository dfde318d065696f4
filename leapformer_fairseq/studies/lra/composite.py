"""Composite scores of accuracy and throughput, as a table and a plot, for our runs or the papers' tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ...scoring.pictures.scores import tradeoff_figure
from ...scoring.table import NOTHING, Column, Table, page
from ...support.errors import LeapformerError
from ...support.files import read_json
from . import tables
from .protocols import BASELINE, LEAPFORMER, LUNA, NAMES, Protocol, Row, timed_rows
from .rcp import PAPER_STD, Measured, Score, scores

LENGTH = "4k"  # tokens at which the papers compare throughput
SCORES = {"rcp": "RCP", "rcpmem": "RCPmem", "points_per_doubling": "points lost per doubling"}
SHOWN = {"accuracy": "average accuracy", "speed": "throughput / softmax", "memory": "memory / softmax", **SCORES}


@dataclass(frozen=True)
class Composite:
    """Measured rows and their scores.

    source:  where they are from, the heading of table and plot.
    std:     "paper", "table" or a number, see `rcp.standard_deviation`.
    printed: the RCP that a paper prints, by row.
    untimed: average and RCPmem as printed, by title, of rows without a throughput.
    """

    source: str
    std: str
    titles: Mapping[str, str]
    rows: Mapping[str, Measured]
    scores: Mapping[str, Score]
    printed: Mapping[str, float]
    untimed: Mapping[str, tuple[float, float]]

    def text(self) -> str:
        """The table in Markdown, best row first."""
        baseline = self.rows[BASELINE]
        order = sorted(self.scores, key=lambda name: -(self.scores[name].rcp or float("-inf")))
        records = [
            {
                "row": self.titles[name],
                "accuracy": row.accuracy,
                "speed": row.speed / baseline.speed,
                "memory": row.memory / baseline.memory if row.memory and baseline.memory else None,
                **(asdict(self.scores[name]) if name in self.scores else dict.fromkeys(SCORES, "")),
                "printed": self.printed.get(name) if name in self.scores or not self.printed else "",
            }
            for name, row in ((name, self.rows[name]) for name in (BASELINE, *order))
        ]
        columns = [Column("row", ""), *(_column(key, title) for key, title in SHOWN.items())]
        columns += [_column("printed", "RCP as printed")] if self.printed else []
        rest = [{"row": title, "accuracy": accuracy, "rcpmem": mem} for title, (accuracy, mem) in self.untimed.items()]
        printed = [Column("row", ""), _column("accuracy", SHOWN["accuracy"]), _column("rcpmem", "RCPmem as printed")]
        more = "Scores that the text gives, of rows for which no throughput is printed:"
        spreads = {"paper": f"that of its table 1, {PAPER_STD:.4f}", "table": "that of these rows"}
        return page(
            f"{self.source}. RCP and RCPmem are LeaPformer's (Agostinelli et al., 2024), with a standard deviation, "
            f"here {spreads.get(self.std, self.std)}; points per doubling need none.",
            Table(records, columns).markdown(),
            *([more, Table(rest, printed).markdown()] if rest else []),
            f"{NOTHING}: undefined. The composite has no value for a row that is better than softmax by a standard "
            "deviation or more, points per doubling none for a row that is not faster.",
        )

    def content(self) -> dict[str, Any]:
        """The content of the table, for JSON."""
        rows = {
            name: {
                "title": self.titles[name],
                **asdict(row),
                **(asdict(self.scores[name]) if name in self.scores else {}),
            }
            for name, row in self.rows.items()
        }
        untimed = {title: {"accuracy": accuracy, "rcpmem": mem} for title, (accuracy, mem) in self.untimed.items()}
        return {"source": self.source, "std": self.std, "rows": rows, **({"untimed": untimed} if untimed else {})}

    def draw(self, path: Path) -> None:
        """Draw figure 1 of both papers."""
        tradeoff_figure(self.content()).save(path)


def _column(key: str, title: str) -> Column:
    return Column(key, title, ".2f", missing=NOTHING)


def published(std: str, paper: str) -> Composite:
    """Scores from what a paper prints: LeaPformer's tables 1 and 2, or Luna's (averages without Retrieval).

    LeaPformer prints memory only as labels of a figure. Here it is what the printed RCPmem implies, so that this score
    is circular.
    """
    about, note = tables.papers()[paper], ""
    rows, printed, untimed = {}, {}, {}
    for name, row in about["rows"].items():
        if paper == "luna" and "relative_speed" in row:
            speed, memory = row["relative_speed"][LENGTH], row["relative_memory"][LENGTH]
            rows[name] = Measured(row["without_retrieval"], speed, memory)
        elif paper == "leapformer" and "speed" in row:
            rows[name] = Measured(row["average"], row["speed"][LENGTH], row["memory_from_rcpmem"])
            note = "; memory is what the printed RCPmem implies, so RCPmem is circular"
            if "rcp" in row:
                printed[name] = row["rcp"]
        elif "rcpmem" in row:
            untimed[row["title"]] = row["average"], row["rcpmem"]
    titles = {name: about["rows"][name]["title"] for name in rows}
    what = ", averages without Retrieval as printed" if paper == "luna" else note
    return Composite(f"Printed in {about['source']}{what}", std, titles, rows, scores(rows, std), printed, untimed)


def measured(table: Mapping[str, Mapping[str, tables.Cell]], protocol: Protocol, bench: Path, std: str) -> Composite:
    """Scores of our runs: accuracy averaged over the tasks that all rows have, speed and memory from a benchmark.

    Averages for Luna leave Retrieval out, as its figure 1 does. Raises LeapformerError if the rows share no task, or if
    the benchmark has other models or none of the rows.
    """
    shared = [task for task in protocol.tasks if all(task in row for row in table.values())]
    if not shared:
        raise LeapformerError("there is no task in which all rows have a result; run more, or leave rows out")
    if protocol.name == LUNA:
        shared = [task for task in shared if task not in tables.AVERAGES["without_retrieval"][1]] or shared
    timed = read_bench(bench)
    _check_models(protocol, timed, bench)
    titles = {name: protocol.rows[name].title if name in protocol.rows else name for name in table}
    rows, left_out = {}, []
    for name, row in table.items():
        alike = (x for x in (name, *_same_cost(name, protocol, timed)) if x in timed.speeds)
        if (row_of_bench := next(alike, None)) is None:
            left_out.append(titles[name])
        else:
            accuracy = fmean(row[task].mean for task in shared)
            rows[name] = Measured(accuracy, timed.speeds[row_of_bench], timed.memory.get(row_of_bench))
    if not rows:
        raise LeapformerError(f"--bench {bench}: none of the rows is in it; measure them with `leapformer bench lra`")
    source = (
        f"Protocol {protocol.name}, tasks {', '.join(shared)}; throughput and memory of the Text model of protocol "
        f"{timed.protocol} at {timed.length:,} tokens"
    )
    source += f"; not measured: {', '.join(left_out)}" if left_out else ""
    return Composite(source, std, titles, rows, scores(rows, std), {}, {})


def _check_models(protocol: Protocol, bench: Bench, path: Path) -> None:
    """Raise LeapformerError if one of our protocols has other models than those in the benchmark."""
    models = LUNA if protocol.name == LUNA else LEAPFORMER
    if protocol.name in NAMES and models != bench.protocol:
        raise LeapformerError(
            f"--bench {path}: it has the models of protocol {bench.protocol}; measure those of {protocol.name} with "
            f"`leapformer bench lra --protocol {models}`"
        )


def _same_cost(name: str, protocol: Protocol, bench: Bench) -> list[str]:
    """The rows of a benchmark with the same options except pooling, whose cost is negligible."""

    def options(row: Row) -> dict[str, Any]:
        return {option: value for option, value in row.train.items() if option != "pooling"}

    ours = protocol.rows.get(name)
    return [x for x, row in timed_rows(bench.protocol).items() if ours and options(row) == options(ours)]


class Bench(NamedTuple):
    """Results of `leapformer bench lra` at its longest length, in tokens: steps per second and MiB by row.

    `protocol` is the paper whose models were measured.
    """

    protocol: str
    length: int
    speeds: dict[str, float]
    memory: dict[str, float]


def read_bench(path: Path) -> Bench:
    """Read a report of `leapformer bench lra`. Raises LeapformerError if it is another file or incomplete."""
    report = read_json(path, ("softmax",), "give the lra.json of `leapformer bench lra`")
    memory = report.get("memory", [])
    if report.get("cases_left"):
        raise LeapformerError(f"{path} was interrupted, {report['cases_left']} cases are left; measure it again")
    needed = {"length", "device", "mechanism"}
    if not report["softmax"] or not all(needed <= set(row) for row in (*report["softmax"], *memory)):
        raise LeapformerError(f"{path} is not a report of `leapformer bench lra` with softmax; measure it again")
    length, device = max(row["length"] for row in report["softmax"]), report["softmax"][0]["device"]

    def at(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
        here = [row for row in rows if row["length"] == length and row["device"] == device]
        return {row["mechanism"]: row[name] for row in here}

    speeds = {name: 1e3 / ms for name, ms in at(report["softmax"], "ms").items()}
    # Reports of older versions lack the protocol; there was only one.
    protocol = report.get("options", {}).get("protocol", LEAPFORMER)
    return Bench(protocol, length, speeds, at(memory, "peak_mib"))
