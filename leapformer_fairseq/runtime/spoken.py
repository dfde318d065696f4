"""Text to speech: what is said, how, and what comes of it. PyTorch is not needed here.

Shapes: T decoder steps, S phonemes, M mel channels.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..support.errors import LeapformerError

PAUSE = "_"  # the phoneme of silence


@dataclass(frozen=True)
class Script:
    """A sentence to speak: its name, phonemes and written text; and, if somebody spoke it, the recording."""

    id: str
    phonemes: str
    text: str = ""
    speaker: int = 0
    recording: Path | None = None
    frames: int | None = None  # of the recording

    def numbers(self, index: Callable[[str], int], unknown: int) -> list[int]:
        """The phonemes as a vocabulary numbers them, without an end. Raises LeapformerError for an unknown one."""
        words = self.phonemes.split()
        if not words:
            raise LeapformerError(f"sentence {self.id}: there is nothing to say; remove the line, or give its phonemes")
        numbers = list(map(index, words))
        if unknown in numbers:
            raise LeapformerError(
                f"sentence {self.id}: the model does not know the phoneme {words[numbers.index(unknown)]!r}; "
                "take those of the dictionary it was trained with"
            )
        return numbers


@dataclass(frozen=True)
class Manner:
    """How to speak: when a sentence ends, how many at a time, and for how many of the first to keep the alignment.

    A sentence ends with the first step whose probability of being the last exceeds `threshold`, or after `max_steps`.
    """

    threshold: float = 0.5
    max_steps: int = 1000
    batch_size: int = 16
    seed: int = 1
    alignments: int = 0


@dataclass(frozen=True)
class Utterance:
    """What the model said.

    frames:    (T * frames per step, M), log-mels.
    stopped:   True when its end was predicted, False when it was cut off.
    ended:     (T,), the probability of having ended at each step.
    predicted: the length its attention reckoned with, in steps, where there is a predictor.
    alignment: (T, S), cross-attention of the last layer averaged over heads, if it was asked for.
    """

    frames: np.ndarray
    stopped: bool
    ended: np.ndarray
    predicted: float | None = None
    alignment: np.ndarray | None = None


class Manifests(NamedTuple):
    """Where the sentences of a data set are listed, and below which folder their recordings are."""

    folder: Path
    root: Path


class Voice(Protocol):
    """A model that speaks.

    data:   the configuration of its data: `features`, of which log-mels are made, and perhaps what espeak-ng is told.
    origin: the checkpoint, as `checkpoints.describe_checkpoint` tells of it.
    manifests: of its data; None where it does not know them.
    speakers: their numbers by name; None: there is one.
    """

    data: Mapping[str, Any]
    origin: Mapping[str, Any]
    manifests: Manifests | None
    speakers: Mapping[str, int] | None

    def numbers(self, script: Script) -> list[int]:
        """The phonemes' numbers, and the end. Raises LeapformerError as `Script.numbers`."""
        ...

    def speak(
        self, scripts: Sequence[Script], manner: Manner, done: Container[str] = ()
    ) -> Iterator[tuple[Script, Utterance]]:
        """Every sentence but those whose id is in `done`, with log-mels as they are."""
        ...
