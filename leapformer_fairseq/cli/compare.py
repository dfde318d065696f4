"""`leapformer compare`: paired bootstrap resampling of translations of one test set."""

from __future__ import annotations

import argparse
from pathlib import Path

from tabulate import tabulate

from ..files import write_json
from ..scoring.significance import SAMPLES, as_rows, paired_bootstrap, read_systems
from ..signature import signature

HELP = "whether translations differ by more than the choice of test sentences: paired bootstrap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("baseline", metavar="BASELINE", help="a generate-*.txt, or a folder of a run that holds one")
    parser.add_argument("systems", nargs="+", metavar="SYSTEM", help="others, of the same test set")
    parser.add_argument("--references", required=True, metavar="FILE", help="one detokenised reference per line")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU tokenizer: 13a, zh, ja-mecab, ... (default: 13a)")
    parser.add_argument("--samples", type=int, default=SAMPLES, metavar="N", help=f"resamples (default: {SAMPLES:,})")
    parser.add_argument("--json", metavar="FILE", help="also write the scores to FILE")


def run(args: argparse.Namespace) -> int:
    """Print scores with confidence intervals and p. Raises LeapformerError for translations that cannot be compared."""
    systems, references = read_systems([args.baseline, *args.systems], Path(args.references))
    found, signatures = paired_bootstrap(systems, references, args.tokenize, args.samples)
    rows = as_rows(found)
    lines = [
        [row["system"]]
        + [f"{row[name]['score']:.2f} ± {row[name]['interval']:.2f}{_p(row[name]['p'])}" for name in signatures]
        for row in rows
    ]
    print(tabulate(lines, ["", *signatures], tablefmt="github", disable_numparse=True))
    print(
        f"\n±: 95 % interval; p: of the difference to {rows[0]['system']}, {args.samples:,} resamples of the sentences"
    )
    for name, text in signatures.items():
        print(f"{name}: {text}")
    if args.json:
        write_json(args.json, {"rows": rows, "signatures": signatures, "signature": signature()}, "--json")
    return 0


def _p(value: float | None) -> str:
    return "" if value is None else f" (p = {value:.3f})"
