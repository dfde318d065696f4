"""Simultaneous translation of one utterance: audio in, text out, everything it remembers in one object."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ..audio import SAMPLE_RATE
from ..errors import LeapformerError
from .engine import ComputeTimes, RecomputeEngine
from .features import Cmvn, FeatureStream
from .policy import Decision, WaitK
from .text import EMITTERS, Detokenizer

EARLY_EOS = ("mask", "wait")


@dataclass(frozen=True)
class TranslationSystem:
    """What all utterances share: the model and what its training data says about features and text.

    `step_frames`: fbank frames (10 ms) of one pre-decision step. `forbidden`: ids that are never written.
    """

    model: Any
    eos: int
    forbidden: tuple[int, ...]
    detokenizer: Detokenizer
    cmvn: Cmvn | None
    lagging: int
    step_frames: int


@dataclass(frozen=True)
class DecodingOptions:
    """How to write. At most `max_len_a` * frames (10 ms each, as in fairseq-generate) + `max_len_b` tokens.

    `early_eos` is what happens to an end of sentence before the end of the source: "mask" forbids it, "wait" takes the
    token back and reads on. `unit` is "word" or "char", see `text`.
    """

    max_len_a: float = 0.0
    max_len_b: int = 200
    early_eos: str = "mask"
    unit: str = "word"

    def __post_init__(self) -> None:
        if self.max_len_a < 0 or self.max_len_b < 0 or self.max_len_a + self.max_len_b == 0:
            raise LeapformerError(
                f"--max-len-a {self.max_len_a} and --max-len-b {self.max_len_b} allow no output; give positive values"
            )
        for value, option, choices in (self.early_eos, "--early-eos", EARLY_EOS), (self.unit, "--unit", EMITTERS):
            if value not in choices:
                raise LeapformerError(f"{option} is {value!r}; choose from {', '.join(choices)}")


class TranslationStream:
    """One utterance under wait-k with greedy search: `push` audio, `advance`, `flush` the text.

    Which tokens come out does not depend on how the audio is cut. That is why an end of sentence is open only once
    wait-k asks for source that does not exist: whether the source ends exactly here is known sooner with large segments
    than with small ones, so it must not decide.
    """

    def __init__(self, system: TranslationSystem, options: DecodingOptions) -> None:
        self.system, self.options = system, options
        self.policy = WaitK(system.lagging)
        self.times = ComputeTimes()
        self.features = FeatureStream(system.step_frames, system.cmvn)
        self.engine = RecomputeEngine(system.model, system.eos, self.times)
        self.emitter = EMITTERS[options.unit](system.detokenizer)
        self.n_samples = 0
        self.n_steps = 0  # pre-decision steps fed
        self._held = False  # an early end of sentence was taken back: read before the next try

    def push(self, samples: np.ndarray) -> None:
        """Take in samples in [-1, 1] at 16 kHz, shape (T,), of any length."""
        self.n_samples += len(samples)
        with self.times.measure("features_s"):
            self.features.push(samples)

    def advance(self, source_finished: bool) -> bool:
        """Read and write as far as the audio allows; False: more audio is needed, True: the translation is complete."""
        while True:
            wants_source = self._held or self._is_full() or self._decide(source_done=False) is Decision.READ
            if wants_source and self._read(source_finished):
                continue
            if wants_source and not source_finished:
                return False
            if wants_source and (self._is_full() or not self.engine.n_frames):
                return True  # nothing may be added, or not even one window of audio was heard
            if self._write(at_end=wants_source):
                return True

    def flush(self, final: bool) -> str:
        """Text that became certain since the last call; with `final` all that is left."""
        return self.emitter.flush(final)

    def report(self) -> dict[str, float]:
        """Seconds of computation by part, seconds of audio and the number of tokens so far, ready for JSON."""
        return {**asdict(self.times), "audio_s": self.n_samples / SAMPLE_RATE, "tokens": self.engine.n_tokens}

    def _decide(self, source_done: bool) -> Decision:
        return self.policy.decide(self.n_steps, self.engine.n_tokens, source_done)

    def _is_full(self) -> bool:
        allowed = self.options.max_len_a * self.engine.n_frames + self.options.max_len_b
        return self.engine.n_tokens >= min(math.floor(allowed), self.system.model.max_decoder_positions() - 1)

    def _read(self, source_finished: bool) -> bool:
        """Feed one pre-decision step; False when there is none."""
        step = self.features.next_step(final=source_finished)
        if step is None:
            return False
        self.engine.feed(step)
        self.n_steps += 1
        self._held = False
        return True

    def _write(self, at_end: bool) -> bool:
        """Write one token; True when it was the end of the sentence."""
        may_hold = self.options.early_eos == "wait" and not at_end
        snapshot = self.engine.snapshot() if may_hold else None
        token = self._best_token(eos_open=at_end or may_hold)
        if token != self.system.eos:
            self.engine.commit(token)
            self.emitter.push([token])
        elif snapshot is not None:
            self.engine.restore(snapshot)
            self._held = True
        return token == self.system.eos and at_end

    def _best_token(self, eos_open: bool) -> int:
        logits = self.engine.step()
        forbidden = self.system.forbidden if eos_open else (*self.system.forbidden, self.system.eos)
        with self.times.measure("decoder_s"):
            logits[torch.tensor(forbidden, device=logits.device)] = -math.inf
            return int(logits.argmax())
