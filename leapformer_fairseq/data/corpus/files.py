"""The files of a speech translation corpus except its recordings: features, manifests, subword models and so on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ...runtime.audio import fbank, read_speech
from ...support.lines import write_lines
from ..manifests import (
    CMVN,
    COLUMNS,
    BinStatistics,
    FeatureArchive,
    Features,
    train_subwords,
    write_config,
    write_manifest,
)
from ..speech import mapper
from .plan import SPLITS, Utterance, of_split

ARCHIVE = "fbank80.zip"
TASKS = ("asr", "st")


def target_text(utterance: Utterance, task: str) -> str:
    """The target text for a task: the transcript for `asr`, the translation for `st`."""
    return utterance.english if task == "asr" else utterance.german


def write_features(folder: Path, utterances: Sequence[Utterance], workers: int = 1) -> dict[str, Features]:
    """Write all filterbanks to an archive, and the training set's statistics; return the locations by id.

    The bytes do not depend on the number of processes, `workers`, since results arrive in the order of the utterances.
    """
    locations, statistics = {}, BinStatistics()
    with FeatureArchive(folder / ARCHIVE, ARCHIVE) as archive, mapper(workers, "give fewer, and make it again") as run:
        computed = run(features_of, [folder / utterance.wav for utterance in utterances])
        progress = tqdm(utterances, desc="features", unit="utt", mininterval=1.0)
        for utterance, features in zip(progress, computed, strict=True):
            locations[utterance.id] = archive.add(utterance.id, features)
            if utterance.split == "train":
                statistics.add(features)
    statistics.save(folder / CMVN)
    return locations


def features_of(wav: Path) -> np.ndarray:
    """The filterbanks (frames, bins) of a recording."""
    return fbank(read_speech(wav))


def write_manifests(folder: Path, utterances: Sequence[Utterance], features: dict[str, Features]) -> None:
    """Write `{split}_{asr,st}.tsv`, whose rows for translation also have the transcript, and `{split}.target`."""
    for split in SPLITS:
        members = of_split(utterances, split)
        for task in TASKS:
            rows = [
                (u.id, features[u.id].address, str(features[u.id].frames), target_text(u, task), u.voice, u.english)
                for u in members
            ]
            columns = (*COLUMNS, "src_text") if task == "st" else COLUMNS
            write_manifest(folder / f"{split}_{task}.tsv", [row[: len(columns)] for row in rows], columns)
        write_lines(folder / f"{split}.target", [utterance.german for utterance in members])


def write_subwords(folder: Path, utterances: Sequence[Utterance], vocab_size: int) -> None:
    """Train a subword model of at most `vocab_size` pieces for each task on the targets of the training split."""
    for task in TASKS:
        texts = [target_text(utterance, task) for utterance in of_split(utterances, "train")]
        train_subwords(folder / f"spm_{task}", texts, vocab_size)


def write_locations(folder: Path, root: Path, utterances: Sequence[Utterance]) -> None:
    """Write the configurations, and SimulEval's lists of recordings with absolute paths below `root`."""
    for task in TASKS:
        write_config(folder / f"config_{task}.yaml", f"spm_{task}")
    for split in SPLITS:
        write_lines(folder / f"{split}.source", [root / utterance.wav for utterance in of_split(utterances, split)])
