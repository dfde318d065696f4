"""Attention mechanisms on (B, H, T, D) tensors in pure torch; nothing here needs fairseq.

To add a mechanism, write its file and name it in the one import below.
"""

from . import cosformer, elu, leap, relu, rope, softmax  # noqa: F401  (each import registers a mechanism)
from .base import BLOCKS, Mechanism, State
from .linear import Features, LinearMechanism, LinearState
from .masks import CAUSAL, Rows, Visible
from .registry import MECHANISMS, OPTIONS, Option, build, find, register
from .step import Projections, Step, StepMap

__all__ = [
    "BLOCKS",
    "CAUSAL",
    "MECHANISMS",
    "OPTIONS",
    "Features",
    "LinearMechanism",
    "LinearState",
    "Mechanism",
    "Option",
    "Projections",
    "Rows",
    "State",
    "Step",
    "StepMap",
    "Visible",
    "build",
    "find",
    "register",
]
