"""The text-to-speech corpus: short English sentences by one voice, with phonemes and their times.

espeak-ng reports the times itself, so the durations are not an aligner's estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ...runtime.acoustics.mel import log_mel
from ...runtime.audio import SAMPLE_RATE, read_speech
from ...runtime.spoken import PAUSE
from ..alignments import PHONES, read_textgrid, tier
from ..manifests import CMVN, BinStatistics
from ..tts import (
    CONFIG,
    VOCABULARY,
    Row,
    mel_config,
    phonemes_with_durations,
    write_tts_config,
    write_tts_manifest,
    write_vocabulary,
)
from . import folder
from .folder import TASK, Corpus, Recipe
from .plan import SEED, SPLITS, Reading, fingerprint, of_split, plan_readings
from .synthesize import synthesize

NAME = "tts"
SIZES: Mapping[str, int] = {"train": 3000, "dev": 60, "test": 100}
LIBRARIES = ("espeakng-loader", "numpy", "scipy", "soundfile")


def build(out: str | Path, sizes: Mapping[str, int] = SIZES, seed: int = SEED, overwrite: bool = False) -> Corpus:
    """Make the corpus in the folder `out`, or return the existing one if it was made with the same options.

    Layout: `wav/{split}/NNNNN.wav`, `textgrid/{split}/NNNNN.TextGrid`, `mel/{split}/NNNNN.npy`, `{split}.tsv`,
    `vocab.txt`, `config.yaml`, `gcmvn.npz` and `corpus.json`; see also `folder.provide`. Raises LeapformerError for
    impossible options, if espeak-ng is missing, or if `out` contains something else.
    """
    readings = plan_readings(sizes, seed)
    options = {
        TASK: NAME,
        **{split: sizes[split] for split in SPLITS},
        "seed": seed,
        "plan_sha256": fingerprint(readings),
    }
    return folder.provide(out, Recipe(options, partial(fill, readings=readings), locate, LIBRARIES), overwrite)


def fill(out: Path, root: Path, readings: Sequence[Reading]) -> dict[str, Any]:
    """Write everything except `corpus.json` to `out`, which will be renamed to `root`."""
    synthesize(out, readings, NAME)
    rows, seconds = write_features(out, readings)
    for split in SPLITS:
        write_tts_manifest(out / f"{split}.tsv", [rows[reading.id] for reading in of_split(readings, split)])
    write_vocabulary(out / VOCABULARY, (rows[reading.id] for reading in of_split(readings, "train")))
    locate(out, root)
    records = (((r.id, r.english), [out / r.wav, out / r.textgrid]) for r in readings)
    return folder.contents(readings, seconds, records)


def locate(out: Path, root: Path) -> None:
    """Write the configuration, whose paths are relative: `root` does not matter."""
    write_tts_config(out / CONFIG, mel_config(), {"voice": Reading.voice, "silence": True})


def write_features(out: Path, readings: Sequence[Reading]) -> tuple[dict[str, Row], dict[str, float]]:
    """Write all log-mels and the training set's statistics; return manifest rows and seconds of audio, by id."""
    config = mel_config()
    rows, seconds, statistics = {}, {}, BinStatistics(config.n_mels)
    for reading in tqdm(readings, desc="features", unit="utt", mininterval=1.0):
        samples = read_speech(out / reading.wav)
        mel = log_mel(samples, config)
        (out / reading.mel).parent.mkdir(parents=True, exist_ok=True)
        np.save(out / reading.mel, mel)
        path = out / reading.textgrid
        intervals = [phone._replace(text=phone.text or PAUSE) for phone in tier(read_textgrid(path), PHONES, path)]
        phonemes, durations = phonemes_with_durations(intervals, len(mel), config)
        rows[reading.id] = Row(
            reading.id, reading.mel, len(mel), phonemes, reading.voice, durations, reading.english, reading.wav
        )
        seconds[reading.id] = len(samples) / SAMPLE_RATE
        if reading.split == "train":
            statistics.add(mel)
    statistics.save(out / CMVN)
    return rows, seconds
