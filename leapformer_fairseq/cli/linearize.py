"""`leapformer linearize`: convert a trained softmax model to other attention."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from . import calls, logs

HELP = "turn a trained softmax model into one with other attention: align its blocks, choose, distil"
USAGE = "leapformer linearize --path CHECKPOINT --attention PLAN --out DIR [OPTIONS] [-- OPTIONS OF fairseq-train]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.usage = USAGE
    add = parser.add_argument
    add("--path", required=True, type=Path, metavar="FILE", help="the teacher: a checkpoint with softmax attention")
    add(
        "--attention", required=True, metavar="PLAN",
        help="the student's attention: a mechanism or plan for all blocks, or ENCODER/DECODER/CROSS; options after "
        "colons",
    )  # fmt: skip
    add("--out", required=True, type=Path, metavar="DIR", help="stages and results; the same command resumes")
    add("--data", type=Path, metavar="DIR", help="the data (default: as in the teacher's training)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--keep", type=int, default=0, metavar="N", help="blocks that stay softmax (default: 0)")
    group.add_argument(
        "--max-distance", type=float, metavar="X",
        help="keep as few softmax blocks as bring the distance to the teacher, before distillation, to X: KL in nats",
    )  # fmt: skip
    for stage, count, text in (
        ("align", None, "that align every replaced block by itself (default: a twentieth of the teacher's)"),
        ("distill", None, "on the teacher's predictions (default: a sixth of the teacher's)"),
        ("task", 0, "on the data alone, at the end (default: 0)"),
    ):
        add(f"--{stage}-updates", type=int, default=count, metavar="N", help=f"updates {text}")
    for stage, rate in (("align", 1e-3), ("distill", 1.5e-3), ("task", 3e-5)):
        add(
            f"--{stage}-rate",
            type=float,
            default=rate,
            metavar="LR",
            help=f"its highest learning rate (default: {rate:g})",
        )
    add(
        "--distillation-weight", type=float, default=0.7, metavar="A",
        help="weight of the teacher's predictions; that of the data is 1 - A (default: 0.7)",
    )  # fmt: skip
    add(
        "--align-weights", type=float, default=0.1, metavar="X",
        help="weight of the error of attention weights; needs quadratic memory unless 0 (default: 0.1)",
    )  # fmt: skip
    add("--sentences", type=int, default=1000, metavar="N", help="validation sentences for the choice (default: 1000)")
    add("--dry-run", action="store_true", help="print the commands of a student without softmax, train nothing")
    add("train_options", nargs="*", metavar="OPTION", help="after --: more options for fairseq-train, for all stages")


def run(args: argparse.Namespace) -> int:
    """Align, select, distil and report. Raises LeapformerError for an unsuitable teacher or plan."""
    logging.disable(logging.INFO)  # fairseq's, in this process; trainings have their own
    logs.set_up()
    try:
        _linearize(args)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def _linearize(args: argparse.Namespace) -> None:
    from ..studies.linearize.report import write_report
    from ..studies.linearize.stages import Linearize, Settings
    from ..studies.recipes.plans import Attention
    from ..studies.recipes.shell import Shell

    options: dict[str, Any] = {name: value for name, value in vars(args).items() if name in Settings.__annotations__}
    options["attention"] = Attention(args.attention)
    shell = Shell(args.out, calls.say, calls.call, dry=args.dry_run)
    folder = Linearize(Settings(**options), shell).run()
    if args.dry_run:
        return
    lines = write_report(args.out)
    shell.say(f"done: {folder}/checkpoint.pt" + (f"; {args.out}/table.md, table.json, linearize.svg" if lines else ""))
    if lines:
        calls.say("\n".join(lines))
