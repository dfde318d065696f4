"""`leapformer report`: compare quality and latency of the finished runs in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..files import write_json, write_text
from ..scoring.comparison import collect, draw, table
from ..signature import signature

HELP = "compare the scored runs of a quickstart or recipe folder: table, JSON and curve"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("folder", metavar="DIR", help="the --out folder of scripts/quickstart.sh or of a recipe")


def run(args: argparse.Namespace) -> int:
    """Print the table; write report.md, scores.json and curve.png to the folder.

    Raises LeapformerError if nothing was scored, scores are damaged, or the folder is not writable.
    """
    folder = Path(args.folder)
    comparison = collect(folder)
    comparison["signatures"]["leapformer_fairseq"] = signature()
    write_json(folder / "scores.json", comparison)
    draw(comparison, folder / "curve.png")
    write_text(folder / "report.md", _markdown(comparison))
    print(table(comparison))
    return 0


def _markdown(comparison: dict[str, Any]) -> str:
    runs = [f"* `{name}`: `{system['options']}`" for name, system in comparison["systems"].items()]
    signatures = [f"* {name}: `{text}`" for name, text in comparison["signatures"].items()]
    return "\n".join(
        [
            "# Simultaneous speech translation: quality and latency",
            "",
            table(comparison, "github"),
            "",
            "![BLEU against average lagging](curve.png)",
            "",
            "AL, LAAL, DAL, ATD in milliseconds, AP a ratio; `_CA` adds the time of computation; compute is seconds of "
            "computation per second of audio, one thread. Offline: the whole source, beam 5.",
            "",
            "Options of the runs:",
            *runs,
            "",
            "Signatures:",
            *signatures,
            "",
        ]
    )
