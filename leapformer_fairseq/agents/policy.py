"""When to read more source and when to write: pure decisions, no model and no audio."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..errors import LeapformerError


class Decision(Enum):
    """What to do next: READ one pre-decision step of source, or WRITE one token."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class WaitK:
    """Wait-k (Ma et al. 2019, arXiv 1810.08398): stay k source steps ahead of the target.

    Token t (from 0) is written when min(all, t + k) steps have been read. For speech a step is a fixed number of
    encoder states, the pre-decision ratio (Ma et al. 2020, arXiv 2011.02048), however the audio arrives.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise LeapformerError(f"wait-k needs k >= 1, got {self.k}; give --waitk-lagging 1 or more")

    def decide(self, n_steps: int, n_tokens: int, source_done: bool) -> Decision:
        """READ or WRITE after `n_steps` steps read and `n_tokens` tokens written.

        `source_done` says that no further step exists: then there is only writing.
        """
        return Decision.WRITE if source_done or n_steps - n_tokens >= self.k else Decision.READ
