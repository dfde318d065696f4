"""`leapformer corpus`: generate a corpus for speech translation, text to speech, or a task of Long Range Arena."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..data.corpus import build, text, tts
from ..data.corpus.folder import SPEECH_TRANSLATION, Corpus
from ..data.corpus.plan import SEED, SPLITS
from ..data.lra import listops, pathfinder
from ..data.lra.pathfinder_pictures import PUBLISHED, Sizes
from ..support.errors import LeapformerError
from ..support.files import owned
from ..support.progress import progress

HELP = "make a small corpus: English-German speech or text translation, text to speech, ListOps, Pathfinder"
SIZES: dict[str, Mapping[str, int]] = {
    SPEECH_TRANSLATION: build.SIZES,
    text.NAME: text.SIZES,
    tts.NAME: tts.SIZES,
    listops.NAME: listops.SIZES,
    pathfinder.NAME: {},
}
TREES, PICTURES = ("min_length", "max_length", "max_depth", "max_arguments"), ("contour", "side", "contrast")
ONLY_FOR = {
    "vocab_size": (SPEECH_TRANSLATION,),
    "snr_db": (SPEECH_TRANSLATION,),
    "overwrite": (SPEECH_TRANSLATION, tts.NAME),
    **dict.fromkeys(SPLITS, (SPEECH_TRANSLATION, text.NAME, tts.NAME, listops.NAME)),
    **dict.fromkeys(TREES, (listops.NAME,)),
    **dict.fromkeys((*PICTURES, "images"), (pathfinder.NAME,)),
    "workers": (SPEECH_TRANSLATION, pathfinder.NAME),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpus; an equal one there is reused")
    parser.add_argument(
        "--task", choices=SIZES, default=SPEECH_TRANSLATION,
        help="st: speech translation, several voices in noise; text: its sentences as parallel text, for `leapformer "
        "prepare text`; tts: text to speech, one voice, phonemes with their times; listops and pathfinder: these tasks "
        "of Long Range Arena, in the layout of its release (%(default)s)",
    )  # fmt: skip
    for split in SPLITS:
        defaults = ", ".join(f"{task}: {sizes[split]}" for task, sizes in SIZES.items() if sizes)
        parser.add_argument(f"--{split}", type=int, help=f"{split} utterances or trees ({defaults})")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of everything random (%(default)s)")
    parser.add_argument("--vocab-size", type=int, help=f"subwords per language (st: {build.VOCAB_SIZE})")
    parser.add_argument(
        "--snr-db", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help=f"range of the speech to noise ratio in dB (st: {build.SNR_DB[0]:g} {build.SNR_DB[1]:g})",
    )  # fmt: skip
    parser.add_argument(  # None unless given, as for all options that only some tasks have
        "--overwrite", action="store_true", default=None, help="replace another corpus in --out (st, tts)"
    )
    trees, pictures = listops.Trees(), PUBLISHED
    for name, about in (
        ("min_length", "a tree has more tokens than this"),
        ("max_length", "a tree has fewer tokens than this"),
        ("max_depth", "levels of a tree, the last one only digits"),
        ("max_arguments", "greatest number of arguments of an operation"),
    ):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, metavar="N", help=f"{about} (listops: {getattr(trees, name)})")
    parser.add_argument("--images", type=int, metavar="N", help=f"pictures (pathfinder: {pathfinder.IMAGES})")
    parser.add_argument(
        "--contour", type=int, metavar="N",
        help=f"lines of a target: 6 is easy, 9 intermediate, 14 hard (pathfinder: {pictures.contour})",
    )  # fmt: skip
    parser.add_argument("--side", type=int, metavar="N", help=f"pixels of a side (pathfinder: {pictures.side})")
    parser.add_argument(
        "--contrast", metavar="NAME",
        help="published: targets have 3/4 of the brightness of distractors, which gives them away; equal: the same "
        f"(pathfinder: {pictures.contrast})",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="processes (st, for features, and pathfinder: 1)")


def run(args: argparse.Namespace) -> int:
    """Build or reuse the corpus, and print its size. Raises LeapformerError for an option of another task."""
    options = {name: getattr(args, name) for name in ONLY_FOR if getattr(args, name) is not None}
    for name in options:
        if args.task not in ONLY_FOR[name]:
            flag, tasks = f"--{name.replace('_', '-')}", " or ".join(ONLY_FOR[name])
            raise LeapformerError(f"{flag} is for --task {tasks}; leave it out with --task {args.task}")
    if args.task == pathfinder.NAME:
        sizes = Sizes(**{name: options.pop(name) for name in PICTURES if name in options})
        with owned(args.out, waits=True), progress("corpus", "picture") as watch:
            _print_summary(pathfinder.build(args.out, sizes, seed=args.seed, watch=watch, **options), args.out)
        return 0
    counts = {split: options.pop(split, size) for split, size in SIZES[args.task].items()}
    if args.task == listops.NAME:
        with owned(args.out, waits=True), progress("corpus", "tree") as watch:
            _print_summary(listops.build(args.out, counts, args.seed, listops.Trees(**options), watch), args.out)
        return 0
    if args.task == text.NAME:
        with owned(args.out, waits=True):
            _print_summary(text.build(args.out, counts, args.seed), args.out)
        return 0
    makers: dict[str, Callable[..., Corpus]] = {SPEECH_TRANSLATION: build.build, tts.NAME: tts.build}
    print_table(makers[args.task](args.out, counts, args.seed, **options))
    return 0


def print_table(corpus: Corpus) -> None:
    """Print the size of each split, and the checksum."""
    print(f"{'split':8}{'utterances':>12}{'hours':>8}{'words':>9}{'word types':>12}{'mean seconds':>14}")
    for split, size in corpus.splits.items():
        mean = size.seconds / size.utterances
        hours = size.seconds / 3600
        print(f"{split:8}{size.utterances:>12}{hours:>8.2f}{size.words:>9}{size.word_types:>12}{mean:>14.2f}")
    print(f"corpus in {corpus.folder}\nchecksum {corpus.checksum}")


def _print_summary(summary: Mapping[str, Any], out: Path) -> None:
    for name, value in summary.items():
        text = ", ".join(f"{split} {count}" for split, count in value.items()) if isinstance(value, dict) else value
        print(f"{name.replace('_', ' ')}: {text}")
    print(f"corpus in {out}")
