"""Times with computation that a log of a talk does not hold itself."""

from __future__ import annotations

from collections.abc import Sequence


def repaired(elapsed: Sequence[float], delays: Sequence[float]) -> tuple[float, ...]:
    """Computation-aware times of a talk from SimulEval's log, which includes all past computation in each of them.

    e'[i] = max(e[i] - e[i - 1] + d[i - 1], e'[i - 1]), e'[1] = e[1]: OmniSTEval's --fix_simuleval_emission_ca.
    """
    times = list(elapsed[:1])
    for rank in range(1, len(elapsed)):
        times.append(max(elapsed[rank] - elapsed[rank - 1] + delays[rank - 1], times[-1]))
    return tuple(times)


def queued(heard: Sequence[float], costs: Sequence[float]) -> list[float]:
    """The end of the computation for each chunk of audio, if a chunk waits until the one before it is done.

    end[i] = max(heard[i], end[i - 1]) + cost[i], in any one unit of time.
    """
    ends: list[float] = []
    for moment, cost in zip(heard, costs, strict=True):
        ends.append(max(moment, ends[-1] if ends else 0.0) + cost)
    return ends
