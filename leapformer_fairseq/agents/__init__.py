"""Simultaneous speech translation with SimulEval: `simuleval --agent-class leapformer_fairseq.agents.LeapformerAgent`.

From the audio to the text, one file each: `features` (fbank frames in pre-decision steps), `engine` (the model as
feed / step / commit), `policy` (when to read, when to write), `text` (tokens to words), `stream` (these together, for
one utterance), `loading` (checkpoint to model) and `agent`, the only one that needs SimulEval: the others are
importable and tested without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import LeapformerAgent

__all__ = ["LeapformerAgent"]


def __getattr__(name: str) -> Any:
    """Import the agent on first use, so that everything else here works where SimulEval is not installed."""
    if name != "LeapformerAgent":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .agent import LeapformerAgent
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "simuleval":
            raise
        message = "LeapformerAgent needs SimulEval: pip install simuleval==1.1.4"
        raise ModuleNotFoundError(message, name=error.name) from error
    return LeapformerAgent
