"""How much of a talk without pauses can be forgotten: the text that is kept decides which source is kept.

After StreamAtt (Papi et al., ACL 2024, 2024.acl-long.202): the last words are kept, with the source from the first
state that they attend to.
"""

from __future__ import annotations

from ..audio import UNIT_MS
from .stream import TranslationStream

MARGIN = 4  # states that are kept before the first one that retained text is aligned with
LEAST = 1000 // UNIT_MS  # forgetting fewer states is not worth reading the others again


def forgettable(stream: TranslationStream, words: int) -> tuple[int, int]:
    """How many of the first tokens and encoder states a stream with `aligns` can drop; (0, 0) if none.

    The tokens are those before the last `words` words; the states are those up to `MARGIN` before all states with which
    the remaining tokens are aligned. The states are a whole number of pre-decision steps, so that step boundaries do
    not move, and at least one step of the rest can be read, wherever an encoder chunk begins.
    """
    starts = stream.emitter.starts()
    if len(starts) <= words:
        return 0, 0
    step, first, unready = stream.step_states, starts[-words], stream.system.chunk_states - 1
    states = min(min(stream.aligned[first:]) - MARGIN, stream.engine.ready - unready - step)
    states -= states % step
    return (first, states) if states >= LEAST else (0, 0)
