"""The decoding step: one token with fused projections and, on a CPU, the kernel in C for a mechanism's description."""

from __future__ import annotations

from typing import Any

from ..kernels import CachedKernel, LinearKernel, PackedKernel, Projections, RecurrentKernel, SlotKernel
from ..mechanism import Mechanism
from .cached import CachedStep
from .linear import LinearStep
from .recurrent import RecurrentStep
from .slots import PackedStep, SlotStep
from .step import Step

STEPS: dict[type, Any] = {
    LinearKernel: LinearStep,
    RecurrentKernel: RecurrentStep,
    SlotKernel: SlotStep,
    PackedKernel: PackedStep,
    CachedKernel: CachedStep,
}


def step_of(mechanism: Mechanism, projections: Projections) -> Step:
    """The decoding step of a block of self-attention, or of cross-attention if `projections` lack k and v.

    The step copies the weights; call this again after they change.
    """
    # The kernels are for CPUs. On a GPU, where launching operations takes most of the time, only projections are fused.
    kernel = mechanism.kernel() if projections.q.weight.is_cpu else None
    if kernel is None or not (step := STEPS[type(kernel)]).fits(kernel, projections):
        return Step(mechanism, projections)
    return step(mechanism, projections, kernel)
