"""`leapformer probe`: measure what a mechanism can remember, in minutes on a CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..studies.probes import NAMES, RATES
from ..support.signature import signature
from . import calls

HELP = "train small models to recall, copy, reverse and calculate: what can a mechanism remember?"
ATTENTIONS = ("softmax", "leap", "gated-leap", "delta", "gated-delta")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("--out", required=True, metavar="DIR", help="results; the same command resumes")
    parser.add_argument("--probes", nargs="+", default=list(NAMES), metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument(
        "--attention", nargs="+", default=list(ATTENTIONS), metavar="NAME",
        help="mechanisms, options after colons, as in gated-delta:gate-init=published (default: a selection)",
    )  # fmt: skip
    parser.add_argument(
        "--rates", nargs="+", type=float, default=list(RATES), metavar="LR", help="learning rates; the best is reported"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="(default: 1 2 3)")
    parser.add_argument(
        "--updates", type=int, metavar="N", help="of each training (default: the probe's own, 400 to 1500)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once, each with one thread")
    calls.add_study_options(parser, "trainings")


def run(args: argparse.Namespace) -> int:
    """Train, print the tables, and write them to --out. Raises LeapformerError for mechanisms that cannot be probed."""
    from ..studies.probes.study import Study

    numbers = (args.rates, args.seeds, args.updates)
    study = Study(args.probes, args.attention, *numbers, Path(args.out), signature(threads=1))
    state, status = calls.run_study(study, args, "probes", "training")
    if not status and study.is_whole(state):
        print("\n".join(study.tables(state)))
    return status
