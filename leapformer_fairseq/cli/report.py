"""`leapformer report`: compare the scored runs of a quickstart."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from ..scoring.comparison import collect, table
from ..scoring.pictures.latency import comparison_figure
from ..scoring.table import bullets, page, signed
from ..support.files import write_json, write_text
from ..support.signature import signature

INTERVALS = "±: half of the 95 % interval by resampling of the sentences"
OPTIONS = """
folder DIR              the --out folder of scripts/quickstart.sh or of a recipe
--next LINE... =        the last lines of the report
"""


def run(args: Namespace) -> int:
    """Print the table; write report.md, scores.json and, for three points or more, curve.svg to the folder.

    Raises LeapformerError if nothing was scored, scores are damaged, or the folder is not writable.
    """
    folder = Path(args.folder)
    comparison = collect(folder)
    counts = {row["threads"] for system in comparison["systems"].values() for row in system["rows"]} - {None}
    threads = counts.pop() if len(counts) == 1 else None  # one signature covers all runs, so they must agree
    comparison["signatures"]["leapformer_fairseq"] = signature(threads=threads)
    write_json(folder / "scores.json", comparison)
    picture = comparison_figure(comparison).save(folder / "curve.svg", "BLEU against average lagging")
    write_text(folder / "report.md", _markdown(comparison, picture, args.next))
    print(table(comparison))
    return 0


def _markdown(comparison: dict[str, Any], picture: str, last: list[str]) -> str:
    systems = comparison["systems"]
    timed = any("AL_CA" in row for system in systems.values() for row in system["rows"])
    runs = [f"{system['title']}: `{system['options']}`, in `{name}`" for name, system in systems.items()]
    legend = "k: how many steps of speech the translation stays behind. AL, LAAL, DAL and ATD in milliseconds of "
    legend += "speech, AP a ratio, above 1 where hypotheses are longer than references. "
    if any(row["intervals"] for system in systems.values() for row in system["rows"]):
        legend += f"{INTERVALS}, as the bars of the picture. "
    baselines = dict.fromkeys(row["baseline"] for system in systems.values() for row in system["rows"] if "p" in row)
    if baselines:
        titles = " or ".join(systems[name]["title"] for name in baselines)
        legend += f"p: of a difference to {titles} this large at the same k, in either direction. "
    if timed:
        legend += "`_CA` adds the time of computation; compute is seconds of computation per second of audio"
        legend += f", with {_threads(systems)}. "
    return page(
        f"# {_heading(systems)}",
        picture,
        table(comparison).markdown(),
        legend + "Offline: the whole source, beam 5.",
        f"Runs:\n{bullets(runs)}",
        f"Signatures:\n{bullets(signed(comparison['signatures']))}",
        bullets(last),
    )


def _threads(systems: dict[str, Any]) -> str:
    """The numbers of threads with which the runs were timed, in words."""
    counts = {row["threads"] for system in systems.values() for row in system["rows"] if "AL_CA" in row}
    if None in counts:
        return "an unknown number of threads"
    return " or ".join(f"{count} thread{'s' * (count > 1)}" for count in sorted(counts))


def _heading(systems: dict[str, Any]) -> str:
    """The title of the page. Several test sets of one run count as one system."""
    runs = {name.partition("/")[0] for name in systems}
    what = f"{len(runs)} systems" if len(runs) > 1 else next(iter(systems.values()))["title"]
    return f"Simultaneous speech translation: {what}"
