"""The input of a session that carries its encoder over from segment to segment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models.streaming_encoder import ArrivingSource
from ..modules import PassOptions
from ..runtime.audio import UNIT_MS, UNIT_SAMPLES
from ..runtime.simul.features import FeatureStream
from ..runtime.simul.segments import Place
from ..runtime.simul.session import Samples
from ..runtime.simul.stream import DecodingOptions, TranslationStream
from ..runtime.simul.times import ComputeTimes
from ..support.errors import LeapformerError
from .engine import EncodedEngine, kernels_of


class States(Samples):
    """The input of a session's streams as encoder states: one pass over all audio, whose states each segment gets.

    Here a unit is an encoder state, (1, C). It is ready when the encoder has read its look-ahead; until then, the
    places of units wait in a queue. Raises LeapformerError for an encoder that sees whole utterances.
    """

    goes_on = True

    def __init__(self, system: Any, options: DecodingOptions, times: ComputeTimes, aligns: bool = False) -> None:
        super().__init__(system, options, times, aligns)
        self.model: Any = system.model  # of a `TranslationSystem`
        self.encoder = self.model.encoder
        if getattr(self.encoder, "chunks", None) is None:
            raise LeapformerError(
                "--carry encoder: this encoder sees whole utterances; train with --encoder-causal or "
                "--encoder-chunk-ms, or leave --carry out"
            )
        self._features = FeatureStream(self.encoder.pooling_ratio(), system.cmvn)
        self._source = ArrivingSource()
        self._places: deque[Place] = deque()

    @torch.no_grad()
    def push(self, audio: np.ndarray, place: Place | None) -> list[tuple[Place, Any]]:
        final = place is None
        if place is not None:
            self._places.append(place)
        with self.times.measure("features_s"):
            self._features.push(audio)
            steps = [np.zeros((0, self._features.n_bins), np.float32)]
            while (frames := self._features.next_step(final)) is not None:
                steps.append(frames)
        if len(steps) == 1 and not final:
            return []
        weight = next(self.encoder.parameters())
        with self.times.measure("encoder_s", kernels_of(weight.device)), self.encoder.context.own(PassOptions()):
            states = self.encoder.extend(self._source, torch.from_numpy(np.concatenate(steps)).to(weight), final)
        self.times.encoder_passes += 1
        return [(self._places.popleft(), state) for state in states.split(1) if len(state)]

    def length(self, unit: Tensor) -> int:
        return UNIT_SAMPLES

    def stream(self) -> TranslationStream:
        engine = EncodedEngine(self.model, self.system.eos, self.times)
        return TranslationStream(self.system, self.options, self.times, engine, self.aligns)

    def last(self, units: Iterable[Tensor], milliseconds: int) -> list[Tensor]:
        states = list(units)
        return states[max(0, len(states) - milliseconds // UNIT_MS) :]

    def after(self, units: Sequence[Tensor], states: int) -> list[Tensor]:
        return list(units[states:])

    def give(self, stream: TranslationStream, unit: Tensor) -> None:
        engine: Any = stream.engine  # `EncodedEngine`, which is fed states
        engine.feed(unit)
