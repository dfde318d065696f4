"""`leapformer prepare`: from a downloaded data set to a folder for training and evaluation."""

from __future__ import annotations

import argparse

from ..data import covost2, mustc
from ..data.speech import VOCAB_SIZE, SplitSummary, prepare

HELP = "prepare a speech translation data set: features, subwords, manifests, evaluation lists"
DATASETS = {module.DATASET.name: module.DATASET for module in (mustc, covost2)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add = parser.add_argument
    add("dataset", choices=tuple(DATASETS), help="mustc is en-de, covost2 is fr-en")
    add("root", metavar="ROOT", help="mustc: holds en-de/data; covost2: holds validated.tsv, covost_v2.*.tsv, clips")
    add("--out", required=True, metavar="DIR", help="where to write; the same command again goes on after a break")
    add("--vocab-size", type=int, default=VOCAB_SIZE, metavar="N", help="subwords per language (default: %(default)s)")
    add("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Prepare and print what was kept and left out. Raises LeapformerError for what is missing or unusable."""
    summaries = prepare(DATASETS[args.dataset], args.root, args.out, args.vocab_size, args.workers)
    for split, summary in summaries.items():
        print(f"{split}: {_line(summary)}")
    return 0


def _line(summary: SplitSummary) -> str:
    kept = f"{summary.utterances} utterances, {summary.seconds / 3600:.2f} h"
    return f"{kept}; left out: {summary.reasons() or 'none'}"
