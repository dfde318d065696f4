"""`leapformer plot`: draw the results of a benchmark, or those that another command has stored."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

OPTIONS = """
results RESULTS.json    what `leapformer bench` or another command wrote
--out FILE              an SVG or PNG (default: RESULTS.svg next to the JSON)
"""


def run(args: Namespace) -> int:
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
