"""`leapformer average`: average several checkpoints of a training run."""

from __future__ import annotations

import argparse

HELP = "average the parameters of a training's last or best checkpoints"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("--inputs", required=True, metavar="DIR", help="the --save-dir of a training")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="the last N epochs, or else --save-interval-updates")
    which.add_argument("--best", type=int, metavar="N", help="the best N of --keep-best-checkpoints")
    parser.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")


def run(args: argparse.Namespace) -> int:
    """Average the checkpoints and print their names. Raises LeapformerError for too few or incompatible checkpoints."""
    from ..models.averaging import average_checkpoints, best_checkpoints, last_checkpoints, save_checkpoint

    if args.last is not None:
        paths = last_checkpoints(args.inputs, args.last)
    else:
        paths = best_checkpoints(args.inputs, args.best)
    save_checkpoint(average_checkpoints(paths), args.output)
    print(f"{args.output}: average of {', '.join(path.name for path in paths)}")
    return 0
