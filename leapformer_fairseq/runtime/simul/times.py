"""Seconds of computation by part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class ComputeTimes:
    """Seconds of computation for one utterance, by part, and how often encoder and decoder ran.

    `prenet_s`: the part of `encoder_s` for the convolutions, if the encoder is rerun on the whole source.
    """

    features_s: float = 0.0
    encoder_s: float = 0.0
    decoder_s: float = 0.0
    prenet_s: float = 0.0
    encoder_passes: int = 0
    decoder_steps: int = 0

    @property
    def total_s(self) -> float:
        """Total seconds of all parts."""
        return self.features_s + self.encoder_s + self.decoder_s

    @contextmanager
    def measure(self, part: str, wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Add the wall time of the block to `part`; `wait` returns when what the block started is done."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if wait is not None:
                wait()
            setattr(self, part, getattr(self, part) + time.perf_counter() - start)
