"""A fairseq model with the feature and text processing of its training data, for simultaneous translation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from ..runtime.cmvn import Cmvn
from ..runtime.simul.policy import PolicyOptions
from ..runtime.simul.session import Samples
from ..runtime.simul.text import Detokenizer
from ..runtime.simul.times import ComputeTimes
from .engine import Engine, engine_for
from .states import States


@dataclass(frozen=True)
class TranslationSystem:
    """A `stream.System` of a model in PyTorch. `engine`: as for `engine_for`."""

    model: Any
    eos: int
    forbidden: tuple[int, ...]
    detokenizer: Detokenizer
    cmvn: Cmvn | None
    policy: PolicyOptions
    step_frames: int
    engine: str = "auto"

    @property
    def state_frames(self) -> int:
        """Fbank frames of an encoder state."""
        return self.model.encoder.pooling_ratio()

    @property
    def chunk_states(self) -> int:
        """Encoder states that become final together."""
        chunks = getattr(self.model.encoder, "chunks", None)
        return 1 if chunks is None else chunks.size

    @property
    def positions(self) -> int:
        """The longest target that the decoder has positions for."""
        return self.model.max_decoder_positions()

    def begin(self, times: ComputeTimes) -> Engine:
        """An engine for one more utterance."""
        return engine_for(self.model, self.engine)(self.model, self.eos, times)

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Move the model to a device."""
        self.model.to(device=device, dtype=dtype)

    def carried(self) -> type[Samples]:
        """The input of sessions that carry their encoder over, which `States` refuses for some encoders."""
        return States

    def waiting(self, k: int) -> Self:
        """The same system with another k of wait-k."""
        return replace(self, policy=self.policy.but(k=k))
