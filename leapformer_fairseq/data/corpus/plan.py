"""Who says what: the utterances of a corpus, drawn from a seed before anything is synthesised.

Everything random is decided here, so a corpus is known by its plan: the worker that speaks it only carries it out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from ...errors import LeapformerError
from . import grammar
from .grammar import Sentence

SPLITS = ("train", "dev", "test")
MAX_UTTERANCES = 1_000_000  # far below the number of sentences, so drawing new ones never slows down

# Variants with `breath` in their definition (f2, f3, f5, ...) are left out: espeak-ng's breath differs from run to run.
VOICES = ("en-us", "en-us+m3", "en-us+f4")
RATES = (160, 185)  # words per minute, as espeak-ng counts them
PITCHES = (44, 56)  # 0 to 99
NOISE_COLOURS = (0.0, 1.0, 2.0)  # power falls as 1 / frequency ** colour: white, pink, brown


@dataclass(frozen=True)
class Utterance:
    """One sentence and how it is spoken; `snr_db` is the ratio of speech to noise power over the whole utterance."""

    split: str
    index: int
    english: str
    german: str
    voice: str
    rate: int
    pitch: int
    snr_db: float
    noise_colour: float
    noise_seed: int

    @property
    def id(self) -> str:
        """Its name in manifests."""
        return f"{self.split}_{self.index:05d}"

    @property
    def wav(self) -> str:
        """Its file below the corpus folder."""
        return f"wav/{self.split}/{self.index:05d}.wav"


def plan(sizes: Mapping[str, int], seed: int, snr_db: tuple[float, float]) -> list[Utterance]:
    """All utterances in order of synthesis, train then dev then test; no sentence occurs twice.

    Test and dev depend on their own size and the seed alone: a larger train set is compared on the same test set.
    Raises LeapformerError for sizes, a seed or a range that make no corpus.
    """
    check(sizes, seed, snr_db)
    taken: set[str] = set()
    sentences = {split: draw(sizes[split], seed, split, taken) for split in reversed(SPLITS)}
    return [
        speak(split, index, sentence, np.random.default_rng([seed, 1, number, index]), snr_db)
        for number, split in enumerate(SPLITS)
        for index, sentence in enumerate(sentences[split])
    ]


def check(sizes: Mapping[str, int], seed: int, snr_db: tuple[float, float]) -> None:
    """Raise LeapformerError for what cannot be planned."""
    for split in SPLITS:
        if not 1 <= sizes.get(split, 0) <= MAX_UTTERANCES:
            raise LeapformerError(
                f"{sizes.get(split, 0)} {split} utterances are not possible; give 1 to {MAX_UTTERANCES} with --{split}"
            )
    if seed < 0:
        raise LeapformerError(f"seed {seed} is negative; give --seed 0 or more")
    if not snr_db[0] <= snr_db[1]:
        raise LeapformerError(f"--snr-db {snr_db[0]} {snr_db[1]} is no range; give the lower ratio first")


def draw(size: int, seed: int, split: str, taken: set[str]) -> list[Sentence]:
    """`size` new sentences, added to `taken`."""
    rng = np.random.default_rng([seed, 0, SPLITS.index(split)])
    drawn: list[Sentence] = []
    while len(drawn) < size:
        sentence = grammar.sample(rng)
        if sentence[0] not in taken:
            taken.add(sentence[0])
            drawn.append(sentence)
    return drawn


def speak(
    split: str, index: int, sentence: Sentence, rng: np.random.Generator, snr_db: tuple[float, float]
) -> Utterance:
    """Choose voice, speed, pitch and noise for a sentence."""
    return Utterance(
        split=split,
        index=index,
        english=sentence[0],
        german=sentence[1],
        voice=VOICES[int(rng.integers(len(VOICES)))],
        rate=int(rng.integers(RATES[0], RATES[1] + 1)),
        pitch=int(rng.integers(PITCHES[0], PITCHES[1] + 1)),
        snr_db=round(float(rng.uniform(*snr_db)), 2),
        noise_colour=NOISE_COLOURS[int(rng.integers(len(NOISE_COLOURS)))],
        noise_seed=int(rng.integers(2**31)),
    )


def fingerprint(utterances: list[Utterance]) -> str:
    """sha256 of the plan; it changes with the grammar and the voices as well as with the options."""
    lines = (json.dumps(asdict(utterance), sort_keys=True) for utterance in utterances)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
