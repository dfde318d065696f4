"""Compares systems of simultaneous translation: collects the scores below a folder, as data and as a table.

`leapformer score --json` writes scores to FOLDER/SYSTEM/k<K>/scores.json and FOLDER/SYSTEM/offline/scores.json; SYSTEM
may be several folders deep, e.g. leap/tst-COMMON. The options of a run are in the files `options` above it: those of
its training, then those of its evaluation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..support.errors import LeapformerError
from ..support.files import read_json
from .names import run_title
from .systems import Place, p_values
from .table import Column, Record, Table

BASELINE = "softmax"
TESTED = ("BLEU", "AL", "LAAL", "LongYAAL")  # whose p are in tables; data has those of all scores
# column of the table -> key of the row
COLUMNS = {
    "BLEU": "BLEU",
    "chrF": "chrF",
    "rare words %": "rare_recall",
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

FORMS = {
    **dict.fromkeys(("BLEU", "chrF", "rare_recall"), ".1f"),
    **dict.fromkeys(("AP", "perplexity"), ".2f"),
    **dict.fromkeys(("compute", "without_prenet"), ".3f"),
}


def collect(folder: str | Path) -> dict[str, Any]:
    """Collect all scores: {"systems": {name: {"title", "options", "rows"}}, "signatures"}.

    `name` is the folder of a system, `title` a unique name for people; a row has the scores for one k, or offline, and
    "intervals". It has "p" of the differences to the row of this k of the "baseline", by score: the first system with
    softmax, or else the first of all, of the same test set. That needs what the systems wrote beside their scores.
    Raises LeapformerError if nothing below the folder was scored, or if scores are damaged.
    """
    folder = Path(folder)
    systems: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    places: dict[tuple[str, Any], Place] = {}
    for path in sorted(folder.glob("*/**/scores.json"), key=_order):
        run = path.parent.parent
        scores = read_json(path, ("scores", "signatures", "compute", "n_instances"), "score this run again")
        name, options = str(run.relative_to(folder)), _options(run, folder)
        system = systems.setdefault(name, {"title": run_title(name, options), "options": options, "rows": []})
        row = _row(path.parent.name, scores)
        system["rows"].append(row)
        places[name, row["k"]] = Place.of(path.parent, scores)
        signatures.update(scores["signatures"])
    if not systems:
        raise LeapformerError(f"{folder} holds no scores; give the --out folder of a finished quickstart or recipe")
    _compare(systems, places)
    titles = Counter(system["title"] for system in systems.values())
    for name, system in systems.items():
        if titles[system["title"]] > 1:  # a title leaves out most options
            system["title"] += f" ({name})"
    return {"systems": systems, "signatures": signatures}


def _compare(systems: dict[str, Any], places: Mapping[tuple[str, Any], Place]) -> None:
    """Add "baseline" and "p" to rows, but for those that are of no test set of a baseline."""
    softmax = [name for name, system in systems.items() if _is_softmax(system["options"])]
    for name, system in systems.items():
        candidates = softmax or [*systems]
        baselines = candidates[: candidates.index(name)] if name in candidates else candidates
        for row in system["rows"]:
            for other in baselines:
                place = places.get((other, row["k"]))
                if place and (found := p_values(place, places[name, row["k"]])):
                    row |= {"baseline": other, "p": found}
                    break


def _is_softmax(options: str) -> bool:
    """Whether all attention in the options of a run is softmax."""
    return {plan.partition(":")[0] for plan in re.findall(r"--(?:\S+-)?attention (\S+)", options)} == {BASELINE}


def _order(path: Path) -> tuple[str, float]:
    """Sort key: by system, then by k; offline comes last."""
    lagging = re.fullmatch(r"k(\d+)", path.parent.name)
    return str(path.parent.parent), float(lagging[1]) if lagging else float("inf")


def _options(run: Path, folder: Path) -> str:
    places = [place / "options" for place in (*reversed(run.parents), run) if place.is_relative_to(folder)]
    return " ".join(place.read_text(encoding="utf-8").strip() for place in places if place.is_file())


def _row(name: str, scores: dict[str, Any]) -> dict[str, Any]:
    compute = scores["compute"] or {}
    row = {"k": int(name[1:]) if re.fullmatch(r"k\d+", name) else name, "sentences": scores["n_instances"]}
    row["threads"] = _threads(scores)
    times = {"compute": compute.get("seconds_per_second"), "without_prenet": compute.get("without_prenet")}
    return row | scores["scores"] | times | {"intervals": scores.get("intervals", {})}


def _threads(scores: dict[str, Any]) -> int | None:
    """The threads of the scored run, from its log of computation or its signature; None if neither has them."""
    if logged := (scores["compute"] or {}).get("threads"):
        return int(logged)
    match = re.search(r"\|threads:(\d+)", str((scores.get("model") or {}).get("signature")))
    return int(match[1]) if match else None


def table(comparison: dict[str, Any]) -> Table:
    """The table of a comparison, one line per system and k."""
    rows = [{"system": system["title"], **row} for system in comparison["systems"].values() for row in system["rows"]]
    optional = ("rare_recall", "YAAL", "AL_CA", "compute", "without_prenet", "perplexity")
    columns = [Column("system", "attention"), Column("k"), Column("sentences")]
    columns += [
        Column(key, title, FORMS.get(key, ".0f"), with_interval(key), optional=key in optional)
        for title, key in COLUMNS.items()
    ]
    return Table(rows, [*columns, *p_columns()])


def with_interval(key: str) -> Callable[[Record], Any]:
    """Return what gets the value of a score from a row, with its interval if there is one."""

    def value(row: Record) -> Any:
        half = row.get("intervals", {}).get(key)
        score = row.get(key)
        return score if half is None or score is None else {"score": score, "interval": half}

    return value


def p_columns() -> list[Column]:
    """Columns of p for the scores that have it in `TESTED`."""
    return [Column(f"p.{key}", f"p ({key})", ".3f", optional=True) for key in TESTED]
