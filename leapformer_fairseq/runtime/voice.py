"""Text to speech with an exported model, one sentence at a time.

Shapes: T decoder steps, F values per step.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..support.errors import LeapformerError
from .cmvn import Cmvn
from .engine import Graphs, Values
from .folder import ENDED, FRAMES, KEPT, LENGTH, NEXT, POSITIONS, REFINE, SELF, STEP, Folder, Speaking
from .spoken import Manifests, Manner, Script, Utterance


class ExportedVoice:
    """An exported model that speaks (`spoken.Voice`)."""

    def __init__(self, folder: Folder, manifests: Manifests | None = None, threads: int = 1) -> None:
        """Raises LeapformerError for a folder of another task."""
        if folder.speaking is None:
            raise LeapformerError(f"{folder.path} holds a model for {folder.task}; export one of leapformer_tts")
        self.folder, self.speaking, self.graphs = folder, folder.speaking, Graphs(folder, threads)
        self.data: Mapping[str, Any] = self.speaking.data
        self.origin: Mapping[str, Any] = {**folder.origin, "checkpoint": folder.path.name}
        self.manifests = manifests
        self.speakers: Mapping[str, int] | None = self.speaking.speakers
        self._cmvn = Cmvn.of(self.speaking.mean, self.speaking.std)

    def numbers(self, script: Script) -> list[int]:
        words = self.folder.vocabularies["source"]
        return [*script.numbers(words.number, words.unk), words.eos]

    def speak(
        self, scripts: Sequence[Script], manner: Manner, done: Container[str] = ()
    ) -> Iterator[tuple[Script, Utterance]]:
        """As `Voice.speak`; the random numbers of a sentence depend on the seed and its place in the list only."""
        for place, script in enumerate(scripts):
            if script.id not in done:
                utterance = self.say(
                    self.numbers(script), manner, np.random.default_rng([manner.seed, place]), script.speaker
                )
                frames = utterance.frames if self._cmvn is None else self._cmvn.undo(utterance.frames)
                yield script, replace(utterance, frames=frames)

    def say(self, numbers: Sequence[int], manner: Manner, rng: np.random.Generator, speaker: int = 0) -> Utterance:
        """Speak one sentence; the frames are normalised as in training."""
        source = self.read(numbers, speaker)
        frames, ended = self.steps(source, manner, rng)
        return Utterance(
            frames=self.refined(frames).reshape(len(ended) * self.speaking.per_step, -1),
            stopped=bool(ended[-1] > manner.threshold),
            ended=ended,
            predicted=float(source[LENGTH].numpy()[0]) if LENGTH in source else None,
        )

    def read(self, numbers: Sequence[int], speaker: int = 0) -> Values:
        """The states of cross-attention over a sentence."""
        return self.graphs.read(np.array([numbers]), None if self.speakers is None else np.array([speaker]))

    def steps(self, source: Values, manner: Manner, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The decoder's frames (1, T, F) before the post-net, and the probability of the end after each step, (T,)."""
        states = self.graphs.begin(SELF, 1)
        frames, ended = [np.zeros((1, 1, self.speaking.values), np.float32)], list[float]()
        for position in range(1, manner.max_steps + 1):
            given = {FRAMES: frames[-1], POSITIONS: np.array([[position]]), KEPT: kept(self.speaking, rng)}
            (step, end), states = self.graphs.advance(STEP, {**given, **source}, states, f"{FRAMES}{NEXT}", ENDED)
            frames.append(step.numpy())
            ended.append(float(end.numpy()[0, 0]))
            if ended[-1] > manner.threshold:
                break
        return np.concatenate(frames[1:], 1), np.array(ended, np.float32)

    def refined(self, frames: np.ndarray) -> np.ndarray:
        """The frames (1, T, F) of an utterance after the post-net."""
        return self.graphs.run(REFINE, {FRAMES: frames}, [f"{FRAMES}{NEXT}"])[0].numpy()


def kept(speaking: Speaking, rng: np.random.Generator) -> np.ndarray:
    """The dropout mask of the pre-net for one step, (layers, 1, 1, units).

    As in Tacotron 2 (Shen et al. 2018), the pre-net drops units in inference, too; fairseq's models expect it.
    """
    drawn = rng.random((speaking.layers, 1, 1, speaking.units), np.float32) >= speaking.dropout
    return (drawn / (1 - speaking.dropout)).astype(np.float32)
