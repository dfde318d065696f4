"""Attention mechanisms on (B, H, T, D) tensors in pure torch; nothing here needs fairseq.

To add a mechanism, write its file and name it in the import below.
"""

from . import (  # noqa: F401  (each import registers its mechanisms)
    abc_cluster,
    abc_linformer,
    abc_mlp,
    abc_positions,
    abc_window,
    cosformer,
    elu,
    leap,
    luna,
    relu,
    rope,
    softmax,
)
from .base import BLOCKS, Mechanism, State
from .linear import Features, LinearMechanism, LinearState
from .masks import CAUSAL, Blocks, Packed, Rows, Visible
from .positions import sinusoids
from .registry import MECHANISMS, OPTIONS, Option, build, find, register
from .step import Projections, Step, StepMap

__all__ = [
    "BLOCKS",
    "CAUSAL",
    "MECHANISMS",
    "OPTIONS",
    "Blocks",
    "Features",
    "LinearMechanism",
    "LinearState",
    "Mechanism",
    "Option",
    "Packed",
    "Projections",
    "Rows",
    "State",
    "Step",
    "StepMap",
    "Visible",
    "build",
    "find",
    "register",
    "sinusoids",
]
