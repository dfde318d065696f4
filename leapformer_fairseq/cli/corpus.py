"""`leapformer corpus`: make a small corpus: speech translation, text to speech, Long Range Arena."""

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
from ..support.options import choice, flag
from ..support.progress import progress

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


TREE, PICTURE, SNR = listops.Trees(), PUBLISHED, build.SNR_DB
COUNTS = "\n".join(
    f"--{split} {split.upper()}:int  {split} utterances or trees "
    f"({', '.join(f'{task}: {sizes[split]}' for task, sizes in SIZES.items() if sizes)})"
    for split in SPLITS
)
OPTIONS = f"""
--out OUT:path!         folder of the corpus; an equal one there is reused
--task {choice(SIZES)} = {SPEECH_TRANSLATION}  st: speech translation, several voices in noise; text: its sentences as
                        parallel text, for `leapformer prepare text`; tts: text to speech, one voice, phonemes with
                        their times; listops and pathfinder: these tasks of Long Range Arena, in the layout of its
                        release
{COUNTS}
--seed SEED:int = {SEED}  seed of everything random
--vocab-size N:int      subwords per language (st: {build.VOCAB_SIZE})
--snr-db LOW HIGH:float  range of the speech to noise ratio in dB (st: {SNR[0]:g} {SNR[1]:g})
--overwrite             replace another corpus in --out (st, tts)
--min-length N:int      a tree has more tokens than this (listops: {TREE.min_length})
--max-length N:int      a tree has fewer tokens than this (listops: {TREE.max_length})
--max-depth N:int       levels of a tree, the last one only digits (listops: {TREE.max_depth})
--max-arguments N:int   greatest number of arguments of an operation (listops: {TREE.max_arguments})
--images N:int          pictures (pathfinder: {pathfinder.IMAGES})
--contour N:int         lines of a target: 6 is easy, 9 intermediate, 14 hard (pathfinder: {PICTURE.contour})
--side N:int            pixels of a side (pathfinder: {PICTURE.side})
--contrast NAME         published: targets have 3/4 of the brightness of distractors, which gives them away; equal: the
                        same (pathfinder: {PICTURE.contrast})
--workers N:int         processes (st, for features, and pathfinder: 1)
"""


def run(args: argparse.Namespace) -> int:
    """Build or reuse the corpus, and print its size. Raises LeapformerError for an option of another task."""
    args.overwrite = args.overwrite or None  # not given, as the other options that only some tasks have
    options = {name: getattr(args, name) for name in ONLY_FOR if getattr(args, name) is not None}
    for name in options:
        if args.task not in ONLY_FOR[name]:
            tasks = " or ".join(ONLY_FOR[name])
            raise LeapformerError(f"{flag(name)} is for --task {tasks}; leave it out with --task {args.task}")
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
