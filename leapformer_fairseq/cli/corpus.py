"""`leapformer corpus`: build the small English-German speech translation corpus of the quickstart."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..data.corpus.build import SEED, SIZES, SNR_DB, VOCAB_SIZE, Corpus, build
from ..data.corpus.plan import SPLITS

HELP = "synthesise a small English-German speech translation corpus"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, how much, and what makes two corpora different."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpus; an equal one there is reused")
    for split in SPLITS:
        parser.add_argument(f"--{split}", type=int, default=SIZES[split], help=f"{split} utterances (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of sentences, voices and noise (%(default)s)")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help="subwords per language (%(default)s)")
    parser.add_argument(
        "--snr-db", type=float, nargs=2, default=SNR_DB, metavar=("LOW", "HIGH"),
        help="range of the speech to noise ratio in dB (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace another corpus in --out")


def run(args: argparse.Namespace) -> int:
    """Build, or reuse, and print how large each split is."""
    sizes = {split: getattr(args, split) for split in SPLITS}
    low, high = args.snr_db
    print_table(build(args.out, sizes, args.seed, args.vocab_size, (low, high), args.overwrite))
    return 0


def print_table(corpus: Corpus) -> None:
    print(f"{'split':8}{'utterances':>12}{'hours':>8}{'words':>9}{'word types':>12}{'mean seconds':>14}")
    for split, size in corpus.splits.items():
        mean = size.seconds / size.utterances
        hours = size.seconds / 3600
        print(f"{split:8}{size.utterances:>12}{hours:>8.2f}{size.words:>9}{size.word_types:>12}{mean:>14.2f}")
    print(f"corpus in {corpus.folder}\nchecksum {corpus.checksum}")
