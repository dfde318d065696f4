"""Text to speech: its input, its options, its output, and the interface of a model that speaks.

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
    """A sentence to speak, with its phonemes separated by spaces, and a human recording of it if there is one."""

    id: str
    phonemes: str
    text: str = ""
    speaker: int = 0
    recording: Path | None = None
    frames: int | None = None  # of the recording

    def numbers(self, index: Callable[[str], int], unknown: int) -> list[int]:
        """The ids of the phonemes, without an end. Raises LeapformerError for a phoneme unknown to the model."""
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
    """How to speak: `batch_size` sentences at a time, with alignments of the first `alignments` sentences.

    A sentence ends with the first step whose probability of being the last exceeds `threshold`, or after `max_steps`.
    """

    threshold: float = 0.5
    max_steps: int = 1000
    batch_size: int = 16
    seed: int = 1
    alignments: int = 0


@dataclass(frozen=True)
class Utterance:
    """A spoken sentence.

    frames:    (T * frames per step, M), log-mels.
    stopped:   True when its end was predicted, False when it was cut off.
    ended:     (T,), the probability of having ended at each step.
    predicted: the predicted length in steps, which its attention used, if the model has a length predictor.
    alignment: (T, S), cross-attention of the last layer averaged over heads, if requested.
    """

    frames: np.ndarray
    stopped: bool
    ended: np.ndarray
    predicted: float | None = None
    alignment: np.ndarray | None = None


class Manifests(NamedTuple):
    """The folder of a data set's manifests, and the one that its recordings are relative to."""

    folder: Path
    root: Path


class Voice(Protocol):
    """A model that speaks.

    data:      the configuration of its data: `features` (of the log-mels) and perhaps `espeak` (voice of espeak-ng).
    origin:    the checkpoint, as described by `checkpoints.describe_checkpoint`.
    manifests: those of its data; None if unknown.
    speakers:  their ids by name; None: there is one.
    """

    data: Mapping[str, Any]
    origin: Mapping[str, Any]
    manifests: Manifests | None
    speakers: Mapping[str, int] | None

    def numbers(self, script: Script) -> list[int]:
        """The ids of the phonemes and of the end. Raises LeapformerError as `Script.numbers` does."""
        ...

    def speak(
        self, scripts: Sequence[Script], manner: Manner, done: Container[str] = ()
    ) -> Iterator[tuple[Script, Utterance]]:
        """Speak every sentence whose id is not in `done`; log-mels are not normalised."""
        ...
