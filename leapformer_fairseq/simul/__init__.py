"""Simultaneous speech translation with SimulEval: `simuleval --agent-class leapformer_fairseq.agents.LeapformerAgent`.

What needs no model is in `runtime/simul/`: `features` (frames in pre-decision steps), `policy` (when to read and when
to write), `text` (tokens to words), `stream` (all of these, for one utterance) and `session` (for speech without end).
Here are the engines that run a fairseq model for them (`engine`, `states`), `loading` (from a checkpoint), `live` (from
the options of a command), simulations of test sets and talks, and the classes of SimulEval and simulstream (`agent`,
`simulstream_processor`). Only `agent` needs SimulEval.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ..compat.errors_explained import print_in_one_line
from ..support.errors import LeapformerError

if TYPE_CHECKING:
    from .agent import LeapformerAgent
    from .loading import load_system

__all__ = ["LeapformerAgent", "load_system"]

SIMULEVAL = "1.1.4"  # other versions have other states and logs


def __getattr__(name: str) -> Any:
    """Import on first use, so that everything but the agent works where SimulEval is not installed."""
    if name == "load_system":
        from .loading import load_system

        return load_system
    if name != "LeapformerAgent":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    print_in_one_line()  # where SimulEval's command is what runs
    try:
        installed = version("simuleval")
    except PackageNotFoundError:
        message = "LeapformerAgent needs SimulEval: pip install 'leapformer-fairseq[simul]'"
        raise ModuleNotFoundError(message, name="simuleval") from None
    if installed != SIMULEVAL:
        raise LeapformerError(
            f"SimulEval {installed} is installed, LeapformerAgent speaks to {SIMULEVAL}: "
            f"pip install simuleval=={SIMULEVAL}"
        )
    from .agent import LeapformerAgent

    return LeapformerAgent
