"""The speech translation corpus: English sentences by several voices in noise, with transcripts and translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ...runtime.audio import FRAME_MS, fbank, read_speech
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
from ..speech import mapper, need_workers
from . import folder
from .folder import SPEECH_TRANSLATION, Corpus, Recipe
from .plan import SEED, SPLITS, Utterance, fingerprint, of_split, plan
from .synthesize import synthesize

SIZES: Mapping[str, int] = {"train": 6000, "dev": 100, "test": 400}
VOCAB_SIZE = 500
SNR_DB = (25.0, 40.0)
LIBRARIES = ("espeakng-loader", "numpy", "scipy", "sentencepiece", "soundfile", "onnxruntime")


def build(
    out: str | Path,
    sizes: Mapping[str, int] = SIZES,
    seed: int = SEED,
    vocab_size: int = VOCAB_SIZE,
    snr_db: tuple[float, float] = SNR_DB,
    overwrite: bool = False,
    workers: int = 1,
) -> Corpus:
    """Make the corpus in the folder `out`, or return the existing one if it was made with the same options.

    `workers` processes compute features; their number does not change the result.

    Layout: `wav/{split}/NNNNN.wav`, `fbank80.zip`, `{split}_{asr,st}.tsv`, `spm_{asr,st}.{model,txt}`,
    `config_{asr,st}.yaml`, `gcmvn.npz`, `{split}.{source,target}` for SimulEval, and `corpus.json`; see also
    `folder.provide`. Raises LeapformerError for impossible options, if espeak-ng is missing, or if `out` contains
    something else.
    """
    need_workers(workers)
    utterances = plan(sizes, seed, snr_db)
    options = {
        **{split: sizes[split] for split in SPLITS},
        "seed": seed,
        "vocab_size": vocab_size,
        "snr_db": [float(ratio) for ratio in snr_db],
        "plan_sha256": fingerprint(utterances),
    }
    recipe = Recipe(
        options,
        fill=partial(fill, utterances=utterances, vocab_size=vocab_size, workers=workers),
        locate=partial(write_locations, utterances=utterances),
        libraries=LIBRARIES,
    )
    return folder.provide(out, recipe, overwrite)


def fill(out: Path, root: Path, utterances: list[Utterance], vocab_size: int, workers: int = 1) -> dict[str, Any]:
    """Write everything except `corpus.json` to `out`, with the absolute paths that files will have below `root`."""
    write_subwords(out, utterances, vocab_size)  # first, since this fails if the options do not fit
    synthesize(out, utterances, SPEECH_TRANSLATION)
    features = write_features(out, utterances, workers)
    write_manifests(out, utterances, features)
    write_locations(out, root, utterances)
    seconds = {utterance.id: features[utterance.id].frames * FRAME_MS / 1000 for utterance in utterances}
    return folder.contents(utterances, seconds, (((u.id, u.english, u.german), [out / u.wav]) for u in utterances))


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
