"""`leapformer plot`: draw the results of a benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..support.errors import LeapformerError

HELP = "draw the results of a benchmark"
PNG = ".png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("results", metavar="RESULTS.json", help="a file that `leapformer bench` wrote")
    parser.add_argument("--out", metavar="FILE.png", help="default: RESULTS.png next to the JSON")


def run(args: argparse.Namespace) -> int:
    """Draw the picture and print its name. Raises LeapformerError for a file without results, or if writing fails."""
    from ..scoring.pictures.results import draw_results

    out = Path(args.results).with_suffix(PNG) if args.out is None else Path(args.out)
    if out.suffix != PNG:
        raise LeapformerError(f"--out {out}: pictures are PNG files; let its name end with {PNG}")
    draw_results(args.results, out)
    print(out)
    return 0
