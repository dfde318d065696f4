"""`leapformer corpus`: build the small English-German speech translation corpus, or one for text to speech."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..data.corpus import build, tts
from ..data.corpus.folder import SPEECH_TRANSLATION, Corpus
from ..data.corpus.plan import SEED, SPLITS
from ..errors import LeapformerError

HELP = "synthesise a small corpus: English-German speech translation, or text to speech"
SIZES = {SPEECH_TRANSLATION: build.SIZES, tts.NAME: tts.SIZES}
ONLY_FOR = {"vocab_size": SPEECH_TRANSLATION, "snr_db": SPEECH_TRANSLATION}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, which corpus, how much, and what makes two corpora different."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpus; an equal one there is reused")
    parser.add_argument(
        "--task", choices=SIZES, default=SPEECH_TRANSLATION,
        help="st: speech translation, several voices in noise; tts: text to speech, one voice, phonemes and when each "
        "of them is said (%(default)s)",
    )  # fmt: skip
    for split in SPLITS:
        defaults = ", ".join(f"{task}: {sizes[split]}" for task, sizes in SIZES.items())
        parser.add_argument(f"--{split}", type=int, help=f"{split} utterances ({defaults})")
    parser.add_argument("--seed", type=int, default=SEED, help="of sentences, voices and noise (%(default)s)")
    parser.add_argument("--vocab-size", type=int, help=f"subwords per language (st: {build.VOCAB_SIZE})")
    parser.add_argument(
        "--snr-db", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help=f"range of the speech to noise ratio in dB (st: {build.SNR_DB[0]:g} {build.SNR_DB[1]:g})",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace another corpus in --out")


def run(args: argparse.Namespace) -> int:
    """Build, or reuse, and print how large each split is. Raises LeapformerError for another task's option."""
    given = {name: getattr(args, name) for name in ONLY_FOR if getattr(args, name) is not None}
    for name in given:
        if ONLY_FOR[name] != args.task:
            flag = f"--{name.replace('_', '-')}"
            raise LeapformerError(f"{flag} is for --task {ONLY_FOR[name]}; leave it out with --task {args.task}")
    sizes = {split: SIZES[args.task][split] if (size := getattr(args, split)) is None else size for split in SPLITS}
    make = {SPEECH_TRANSLATION: build.build, tts.NAME: tts.build}[args.task]
    print_table(make(args.out, sizes, args.seed, overwrite=args.overwrite, **given))
    return 0


def print_table(corpus: Corpus) -> None:
    print(f"{'split':8}{'utterances':>12}{'hours':>8}{'words':>9}{'word types':>12}{'mean seconds':>14}")
    for split, size in corpus.splits.items():
        mean = size.seconds / size.utterances
        hours = size.seconds / 3600
        print(f"{split:8}{size.utterances:>12}{hours:>8.2f}{size.words:>9}{size.word_types:>12}{mean:>14.2f}")
    print(f"corpus in {corpus.folder}\nchecksum {corpus.checksum}")
