"""`leapformer probe`: what a mechanism can remember: recall, copy, reverse, calculate."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ..studies.probes import NAMES, RATES
from ..support.signature import signature
from . import calls

ATTENTIONS = ("softmax", "leap", "gated-leap", "delta", "gated-delta")


OPTIONS = f"""
--out DIR!              results; the same command resumes
--probes NAME... = {" ".join(NAMES)}  of {", ".join(NAMES)}
--attention NAME... = {" ".join(ATTENTIONS)}  mechanisms, options after colons, as in gated-delta:gate-init=published
                        (default: a selection)
--rates LR...:float = {" ".join(map(str, RATES))}  learning rates; the best is reported
--seeds N...:int = 1 2 3
--updates N:int         of each training (default: the probe's own, 400 to 1500)
--jobs N:int = 1        trainings at once, each with one thread
{calls.study_options("trainings")}
"""


def run(args: Namespace) -> int:
    """Train, print the tables, and write them to --out. Raises LeapformerError for mechanisms that cannot be probed."""
    from ..studies.probes.study import Study

    numbers = (args.rates, args.seeds, args.updates)
    study = Study(args.probes, args.attention, *numbers, Path(args.out), signature(threads=1))
    state, status = calls.run_study(study, args, "probes", "training")
    if not status and study.is_whole(state):
        print("\n".join(study.tables(state)))
    return status
