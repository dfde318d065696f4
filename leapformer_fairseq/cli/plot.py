"""`leapformer plot`: draw the results of a benchmark, or those that another command has stored."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "draw the results of a benchmark, or the table.json, scores.json, curve.json, ... of other commands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("results", metavar="RESULTS.json", help="what `leapformer bench` or another command wrote")
    parser.add_argument("--out", metavar="FILE", help="an SVG or PNG (default: RESULTS.svg next to the JSON)")


def run(args: argparse.Namespace) -> int:
    """Draw the picture and print its name. Raises LeapformerError for a file without results, or if writing fails."""
    from ..scoring.pictures.results import draw_results, read_results

    out = Path(args.results).with_suffix(".svg") if args.out is None else Path(args.out)
    figure = None
    if args.results.endswith(".csv") or {"full", "rows"} <= set(read_results(args.results)):  # of Sparsefinder
        from ..studies.sparsefinder.pictures import figure_of

        figure = figure_of(Path(args.results))
    draw_results(args.results, out, figure)
    print(out)
    return 0
