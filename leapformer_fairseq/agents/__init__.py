"""The public face of `simul`: `simuleval --agent-class leapformer_fairseq.agents.LeapformerAgent`."""

from typing import Any


def __getattr__(name: str) -> Any:
    from .. import simul

    return getattr(simul, name)
