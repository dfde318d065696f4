"""`leapformer sentence-ends`: train a small network that finds where sentences end in speech without pauses."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..support.files import make_folder
from ..support.progress import progress
from ..support.signature import signature

HELP = "train a small network that finds where sentences end in speech without pauses, for --sentence-ends"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add = parser.add_argument
    add("--train", required=True, metavar="TSV", help="manifest of recordings of single sentences, e.g. train_st.tsv")
    add("--valid", required=True, metavar="TSV", help="manifest of others, to choose the threshold, e.g. dev_st.tsv")
    add("--out", required=True, type=Path, metavar="FILE", help="the trained network, such as sentence_ends.npz; "
        "the same command resumes an interrupted training")  # fmt: skip
    add("--updates", type=int, default=1500, metavar="N", help="updates, each of 16 samples of 12 s (default: 1500)")
    add("--ahead-ms", type=int, default=320, metavar="MS", help="audio of the next sentence that is heard before an "
        "end is reported; less is quicker but finds fewer (default: 320)")  # fmt: skip
    add("--units", type=int, default=96, metavar="N", help="width of the network (default: 96)")
    add("--lr", type=float, default=2e-3, metavar="LR", help="highest learning rate (default: 0.002)")
    add("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    add("--num-threads", type=int, default=1, metavar="N", help="of the CPU (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Train, write the file, and print its accuracy. Raises LeapformerError for unsuitable data."""
    from .. import register
    from ..simul.live import set_threads
    from ..simul.sentence_training import Counts, Recordings, Settings, train

    register()
    settings = Settings(args.updates, args.ahead_ms, args.units, args.lr, args.seed)
    set_threads(args.num_threads)
    training, held_out = Recordings(args.train), Recordings(args.valid)
    make_folder(args.out.parent)
    checkpoint = args.out.with_name(f".{args.out.name}.training")
    with progress("sentence ends", "update") as watch:
        model = train(training, held_out, settings, signature(seed=args.seed), watch, checkpoint)
    model.save(args.out)
    checkpoint.unlink(missing_ok=True)
    counts = Counts(**model.about["found"])
    off = counts.off_ms / max(1, counts.right)
    print(
        f"{args.out}: finds {counts.right} of {counts.right + counts.missed} ends, {off:.0f} ms off on average, and "
        f"{counts.wrong} where none is (F1 {counts.f1:.3f}, threshold {model.threshold:g}); use it with "
        f"--sentence-ends {args.out}"
    )
    return 0
