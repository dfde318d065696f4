"""The speech translation corpus: English sentences by several voices in noise, with transcripts and translations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...runtime.audio import FRAME_MS
from ..speech import need_workers
from . import files, folder
from .folder import SPEECH_TRANSLATION, Corpus, Recipe
from .plan import SEED, SPLITS, Utterance, fingerprint, plan
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
        locate=partial(files.write_locations, utterances=utterances),
        libraries=LIBRARIES,
    )
    return folder.provide(out, recipe, overwrite)


def fill(out: Path, root: Path, utterances: list[Utterance], vocab_size: int, workers: int = 1) -> dict[str, Any]:
    """Write everything except `corpus.json` to `out`, with the absolute paths that files will have below `root`."""
    files.write_subwords(out, utterances, vocab_size)  # first, since this fails if the options do not fit
    synthesize(out, utterances, SPEECH_TRANSLATION)
    features = files.write_features(out, utterances, workers)
    files.write_manifests(out, utterances, features)
    files.write_locations(out, root, utterances)
    seconds = {utterance.id: features[utterance.id].frames * FRAME_MS / 1000 for utterance in utterances}
    return folder.contents(utterances, seconds, (((u.id, u.english, u.german), [out / u.wav]) for u in utterances))
