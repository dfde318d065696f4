"""The plan of a corpus, who says what and how, drawn from a seed before anything is synthesised.

Everything random is decided here and the workers only execute it, so a corpus is identified by its plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from ...support.errors import LeapformerError
from . import grammar
from .grammar import Sentence

SPLITS = ("train", "dev", "test")
SEED = 1
# Far below the numbers of sentences and of short sentences in the grammar, so that drawing a new one stays fast.
MAX_UTTERANCES, MAX_READINGS = 1_000_000, 30_000
READING_WORDS = range(2, 8)  # one to three seconds of speech

# Variants with `breath` in their definition (f2, f3, f5, ...) are left out: espeak-ng's breath differs from run to run.
VOICES = ("en-us", "en-us+m3", "en-us+f4")
RATES = (160, 185)  # words per minute, as espeak-ng counts them
PITCHES = (44, 56)  # on espeak-ng's scale from 0 to 99
NOISE_COLOURS = (0.0, 1.0, 2.0)  # the power falls as 1 / frequency ** colour: white, pink, brown


@dataclass(frozen=True)
class Line:
    """A sentence of a corpus, number `index` in its split."""

    split: str
    index: int
    english: str

    @property
    def id(self) -> str:
        """The utterance's id in manifests."""
        return f"{self.split}_{self.index:05d}"

    @property
    def wav(self) -> str:
        """The recording's path below the corpus folder."""
        return f"wav/{self.split}/{self.index:05d}.wav"


@dataclass(frozen=True)
class Utterance(Line):
    """A sentence and how it is spoken; `snr_db` is the ratio of speech to noise power over the whole utterance."""

    german: str
    voice: str
    rate: int
    pitch: int
    snr_db: float
    noise_colour: float
    noise_seed: int


@dataclass(frozen=True)
class Reading(Line):
    """A sentence read aloud by the single voice of the text-to-speech corpus."""

    voice: str = "en-us"
    rate: int = 160
    pitch: int = 50

    @property
    def textgrid(self) -> str:
        """The path of the phoneme times below the corpus folder."""
        return f"textgrid/{self.split}/{self.index:05d}.TextGrid"

    @property
    def mel(self) -> str:
        """The path of the log-mels below the corpus folder."""
        return f"mel/{self.split}/{self.index:05d}.npy"


AnyLine = TypeVar("AnyLine", bound=Line)


def of_split(utterances: Sequence[AnyLine], split: str) -> list[AnyLine]:
    """The utterances of one split, in order."""
    return [utterance for utterance in utterances if utterance.split == split]


def plan(sizes: Mapping[str, int], seed: int, snr_db: tuple[float, float]) -> list[Utterance]:
    """All utterances in the order of synthesis, train, dev, test; no sentence occurs twice.

    The test set depends only on its size and the seed, and dev not on the training set, so that training sets of any
    size are compared on the same data. Raises LeapformerError for impossible sizes, seeds and ranges.
    """
    check(sizes, seed, MAX_UTTERANCES)
    if not snr_db[0] <= snr_db[1]:
        raise LeapformerError(f"--snr-db {snr_db[0]} {snr_db[1]} is not a range; give the lower ratio first")
    # A generator for each utterance: its voice and noise do not depend on the utterances before it.
    return [
        speak(split, index, sentence, np.random.default_rng([seed, 1, SPLITS.index(split), index]), snr_db)
        for split, index, sentence in drawn_splits(sizes, seed)
    ]


def plan_readings(sizes: Mapping[str, int], seed: int) -> list[Reading]:
    """All readings of the text-to-speech corpus, planned as in `plan`, from short sentences (READING_WORDS)."""
    check(sizes, seed, MAX_READINGS)
    sentences = drawn_splits(sizes, seed, lambda sentence: len(sentence[0].split()) in READING_WORDS)
    return [Reading(split, index, english) for split, index, (english, _) in sentences]


def check(sizes: Mapping[str, int], seed: int, most: int) -> None:
    """Raise LeapformerError for options that cannot be planned."""
    for split in SPLITS:
        if not 1 <= sizes.get(split, 0) <= most:
            raise LeapformerError(
                f"{sizes.get(split, 0)} {split} utterances are not possible; give 1 to {most} with --{split}"
            )
    if seed < 0:
        raise LeapformerError(f"seed {seed} is negative; give --seed 0 or more")


def drawn_splits(
    sizes: Mapping[str, int], seed: int, fits: Callable[[Sentence], bool] = lambda _: True
) -> list[tuple[str, int, Sentence]]:
    """Distinct sentences that fit, each with its split and its index there, in the order train, dev, test."""
    taken: set[str] = set()
    # The test set is drawn first: what it takes must not depend on the size of the training set.
    sentences = {split: draw(sizes[split], seed, split, taken, fits) for split in reversed(SPLITS)}
    return [(split, index, sentence) for split in SPLITS for index, sentence in enumerate(sentences[split])]


def draw(size: int, seed: int, split: str, taken: set[str], fits: Callable[[Sentence], bool]) -> list[Sentence]:
    """Draw `size` sentences that are not yet `taken`, and add them to it."""
    rng = np.random.default_rng([seed, 0, SPLITS.index(split)])  # 0: sentences; 1: how they are spoken, see `plan`
    drawn: list[Sentence] = []
    while len(drawn) < size:
        sentence = grammar.sample(rng)
        if sentence[0] not in taken and fits(sentence):
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


def fingerprint(utterances: Sequence[Line]) -> str:
    """The SHA-256 of the plan, which changes with the options, the grammar and the voices."""
    lines = (json.dumps(asdict(utterance), sort_keys=True) for utterance in utterances)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
